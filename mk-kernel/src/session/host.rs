//! Tensors of the host: copied to the GPU before a run, and back after it.

use super::bound::{Bound, DeviceTensor, DeviceTensors, Later};
use super::loaded::Loaded;
use super::memory::{piece, poison};
use super::place::Place;
use super::tables::ROW_BYTES;
use super::{Limits, refused};
use crate::driver::{self, DeviceMemory, Memory as _, Stream};
use mk_core::{Bindings, Io, Rank, Region, RegionKind, RunError, Tensor};
use std::borrow::Cow;

/// Memory of the GPU for the tensors that a caller with tensors on the GPU would bind.
pub(super) struct HostTensors {
    bound: Bound,
    tensors: DeviceTensors,
    _memory: Vec<DeviceMemory>,
}

impl HostTensors {
    pub(super) fn new(
        loaded: &Loaded,
        places: &[Place],
        generation: u64,
        later: &Later,
    ) -> Result<HostTensors, RunError> {
        let (mut tensors, mut memory) = (DeviceTensors::new(), Vec::new());
        for own in &loaded.own {
            let place = &places[own.place];
            for region in loaded.program().regions.iter().filter(|r| r.kind == RegionKind::Bound) {
                let (tensor, kept) = room(place, region, own.rank).map_err(refused)?;
                tensors.set(own.rank, &region.name, tensor);
                memory.push(kept);
            }
        }
        let bound = Bound::new(loaded, places, generation, later, &tensors)?;
        Ok(HostTensors { bound, tensors, _memory: memory })
    }

    pub(super) fn run(
        &self,
        loaded: &mut Loaded,
        places: &mut [Place],
        limits: &Limits,
        bindings: &Bindings,
    ) -> Result<Bindings, RunError> {
        for (rank, name, tensor) in bindings.iter() {
            if let Some((place, region, at)) = self.find(loaded, rank, name)? {
                copy_in(&places[place].control, region, at, tensor).map_err(refused)?;
            }
        }
        // Where a rotating region of the heap lies depends on the epoch.
        let outputs = self.outputs(loaded)?;
        loaded.start(&self.bound, places, None, limits)?;
        loaded.wait(places, limits)?;
        let mut results = Bindings::new();
        for (rank, i, at) in outputs {
            let region = &loaded.program().regions[i];
            let place = loaded.own.iter().find(|o| o.rank == rank).map_or(0, |o| o.place);
            let tensor = copy_out(&places[place].control, region, rank, at).map_err(refused)?;
            results.set(rank, &region.name, tensor);
        }
        Ok(results)
    }

    fn find<'a>(
        &self,
        loaded: &'a Loaded,
        rank: Rank,
        name: &str,
    ) -> Result<Option<(usize, &'a Region, DeviceTensor)>, RunError> {
        let region = loaded.program().regions.iter().find(|r| r.name == name);
        let own = loaded.own.iter().find(|o| o.rank == rank);
        let (Some(region), Some(own)) = (region, own) else { return Ok(None) };
        Ok(Some((own.place, region, self.place_of(loaded, rank, region)?)))
    }

    fn place_of(&self, loaded: &Loaded, rank: Rank, region: &Region) -> Result<DeviceTensor, RunError> {
        match region.kind {
            RegionKind::Bound => self.tensors.of(region, rank),
            _ => loaded.region(rank, &region.name),
        }
    }

    /// Rank, region and place of everything that comes back.
    fn outputs(&self, loaded: &Loaded) -> Result<Vec<(Rank, usize, DeviceTensor)>, RunError> {
        let mut all = Vec::new();
        for own in &loaded.own {
            for (i, region) in loaded.program().regions.iter().enumerate() {
                if matches!(region.io, Io::Output | Io::InOut) {
                    all.push((own.rank, i, self.place_of(loaded, own.rank, region)?));
                }
            }
        }
        Ok(all)
    }
}

/// Memory for a region on a rank.
fn room(place: &Place, region: &Region, rank: Rank) -> Result<(DeviceTensor, DeviceMemory), driver::Error> {
    let [rows, cols] = region.extent(rank);
    let pitch_bytes = (cols * region.dtype.bytes()).next_multiple_of(ROW_BYTES);
    let memory = DeviceMemory::new(&place.context, rows.saturating_mul(pitch_bytes))?;
    place.control.fill(&memory, poison(region.io))?;
    Ok((DeviceTensor { address: memory.address(), pitch_bytes }, memory))
}

#[allow(unsafe_code, reason = "a tensor on the device is known by its address only")]
fn view(at: DeviceTensor, bytes: u64) -> impl driver::Memory {
    // SAFETY: memory of the session's own, for a tensor of this size.
    unsafe { piece(at.address, 0, bytes) }
}

fn copy_in(stream: &Stream, region: &Region, at: DeviceTensor, tensor: &Tensor) -> Result<(), driver::Error> {
    let bytes = pitched(tensor, at.pitch_bytes);
    debug_assert_eq!(tensor.dtype, region.dtype, "it was checked");
    if bytes.is_empty() { Ok(()) } else { stream.upload(&view(at, bytes.len() as u64), 0, &bytes) }
}

fn copy_out(stream: &Stream, region: &Region, rank: Rank, at: DeviceTensor) -> Result<Tensor, driver::Error> {
    let [rows, cols] = region.extent(rank);
    let mut bytes = vec![0; (rows * at.pitch_bytes) as usize];
    if !bytes.is_empty() {
        stream.download(&view(at, bytes.len() as u64), 0, &mut bytes)?;
    }
    Ok(packed(region, [rows, cols], &bytes, at.pitch_bytes))
}

/// A tensor's rows, each from a multiple of the pitch on.
fn pitched(tensor: &Tensor, pitch: u64) -> Cow<'_, [u8]> {
    let row = (tensor.cols * tensor.dtype.bytes()) as usize;
    if row as u64 == pitch || row == 0 {
        return Cow::Borrowed(&tensor.bytes);
    }
    let mut bytes = vec![0; tensor.rows as usize * pitch as usize];
    for (to, from) in bytes.chunks_exact_mut(pitch as usize).zip(tensor.bytes.chunks_exact(row)) {
        to[..row].copy_from_slice(from);
    }
    Cow::Owned(bytes)
}

/// The reverse.
fn packed(region: &Region, [rows, cols]: [u64; 2], bytes: &[u8], pitch: u64) -> Tensor {
    let row = (cols * region.dtype.bytes()) as usize;
    let mut packed = Vec::with_capacity(row * rows as usize);
    if row > 0 {
        bytes.chunks_exact(pitch as usize).for_each(|r| packed.extend_from_slice(&r[..row]));
    }
    Tensor { dtype: region.dtype, rows, cols, bytes: packed }
}
