//! The caller's own tensors, used where they lie.

use super::loaded::Loaded;
use super::place::Place;
use super::refused;
use super::tables::{ROW_BYTES, bound_info, pitch_bytes, region_info};
use crate::abi::{Launch, RegionInfo, TensorMap};
use crate::driver::{self, DeviceMemory, Matrix, Memory as _, Plain, bytes_of, encode};
use crate::layout::ConstPtr;
use mk_core::{Error as Refused, Program, Rank, Region, RegionKind, RunError, Verified};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of the boxes that tensor maps are made for: MAP_ROWS64, MAP_ROWS128, MAP_ROWS16.
const BOX_ROWS: [u32; 3] = [64, 128, 16];

/// A matrix in the memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// Where its first row begins: a multiple of 16.
    pub address: u64,
    /// From one row to the next, in bytes: a multiple of 16.
    pub pitch_bytes: u64,
}

/// The caller's tensors, by rank and region name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTensors(BTreeMap<(Rank, String), DeviceTensor>);

impl DeviceTensors {
    /// None.
    pub fn new() -> DeviceTensors {
        DeviceTensors::default()
    }

    /// Binds a tensor to the region of this name on `rank`.
    pub fn set(&mut self, rank: Rank, region: &str, tensor: DeviceTensor) {
        self.0.insert((rank, region.into()), tensor);
    }

    /// The tensor of a region on `rank`, which must be there if the region has elements.
    pub(super) fn of(&self, region: &Region, rank: Rank) -> Result<DeviceTensor, RunError> {
        let [rows, cols] = region.extent(rank);
        let row = cols * region.dtype.bytes();
        let given = self.0.get(&(rank, region.name.clone())).copied();
        let refuse = |message: &str, given: String, hint: &str| {
            let allowed = format!(
                "{rows} x {cols}, {}; address and pitch are multiples of {ROW_BYTES} bytes, the pitch at least {row}",
                region.dtype
            );
            Err(Refused::input(format!("{message} '{}' on {rank}", region.name), given, allowed, hint).into())
        };
        match given {
            None if rows * cols == 0 => Ok(DeviceTensor { address: 0, pitch_bytes: pitch_bytes(region) }),
            None => {
                refuse("no tensor is bound to", "nothing".into(), "bind one on every rank of this process")
            }
            Some(t)
                if t.address % ROW_BYTES != 0 || t.pitch_bytes % ROW_BYTES != 0 || t.pitch_bytes < row =>
            {
                refuse("the tensor does not fit", format!("{t:x?}"), "copy it to a place that does")
            }
            Some(t) => Ok(t),
        }
    }
}

/// A program with the tensors that it works on, for any number of runs.
pub struct Bound {
    pub(super) program: Verified,
    pub(super) generation: u64,
    /// By GPU of this process.
    pub(super) launches: Vec<Prepared>,
    /// What the launches name.
    tables: Vec<DeviceMemory>,
    later: Later,
}

/// Memory that is given back when no kernel is resident: to free it beside one would wait for it.
pub(super) type Later = Arc<Mutex<Vec<DeviceMemory>>>;

impl Drop for Bound {
    fn drop(&mut self) {
        let copies = self.launches.iter_mut().filter_map(|p| p.copy.take());
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        later.extend(self.tables.drain(..).chain(copies));
    }
}

/// A launch with all addresses.
pub(super) struct Prepared {
    pub(super) launch: Box<Launch>,
    /// Its blocks come in pairs.
    pub(super) pairs: bool,
    /// The same in device memory, for a resident kernel.
    pub(super) copy: Option<DeviceMemory>,
}

impl Bound {
    pub(super) fn new(
        loaded: &Loaded,
        places: &[Place],
        generation: u64,
        later: &Later,
        tensors: &DeviceTensors,
    ) -> Result<Bound, RunError> {
        let mut tables = Vec::new();
        let mut launches = Vec::new();
        for (i, place) in places.iter().enumerate() {
            let mut launch = Box::new(loaded.launch(i));
            for (at, &rank) in place.ranks.iter().enumerate() {
                let of_rank = Addresses::of(loaded, place, rank, tensors)?;
                let mut put = |bytes: &[u8]| upload(place, bytes, &mut tables).map_err(refused);
                let params = &mut launch.params[at];
                params.regions = ConstPtr::new(put(bytes_of(&of_rank.infos))?);
                params.bases = ConstPtr::new(put(bytes_of(&of_rank.bases))?);
                params.maps = ConstPtr::new(put(bytes_of(&of_rank.maps))?);
            }
            launches.push(Prepared::new(place, launch, loaded.in_pairs(i)).map_err(refused)?);
        }
        let (program, later) = (loaded.verified().clone(), Arc::clone(later));
        Ok(Bound { program, generation, launches, tables, later })
    }
}

impl Prepared {
    fn new(place: &Place, launch: Box<Launch>, pairs: bool) -> Result<Prepared, driver::Error> {
        let copy = match place.resident {
            None => None,
            Some(_) => {
                let memory = DeviceMemory::new(&place.context, size_of::<Launch>() as u64)?;
                place.control.upload(&memory, 0, bytes_of(&[*launch]))?;
                Some(memory)
            }
        };
        Ok(Prepared { launch, pairs, copy })
    }
}

/// Puts a table on the device; at least a byte, so that it has an address.
pub(super) fn upload(
    place: &Place,
    bytes: &[u8],
    kept: &mut Vec<DeviceMemory>,
) -> Result<u64, driver::Error> {
    let memory = DeviceMemory::new(&place.context, bytes.len() as u64)?;
    place.control.upload(&memory, 0, bytes)?;
    let address = memory.address();
    kept.push(memory);
    Ok(address)
}

/// The same, for a table of records.
pub(super) fn table<T: Plain>(
    place: &Place,
    records: &[T],
    kept: &mut Vec<DeviceMemory>,
) -> Result<u64, driver::Error> {
    upload(place, bytes_of(records), kept)
}

/// What a rank sees of all regions.
struct Addresses {
    infos: Vec<RegionInfo>,
    /// By rank and region.
    bases: Vec<u64>,
    /// By region and kind of box.
    maps: Vec<TensorMap>,
}

impl Addresses {
    fn of(
        loaded: &Loaded,
        place: &Place,
        rank: Rank,
        tensors: &DeviceTensors,
    ) -> Result<Addresses, RunError> {
        let program = loaded.program();
        let regions = program.regions.len();
        let mut a = Addresses { infos: Vec::new(), bases: Vec::new(), maps: Vec::new() };
        a.bases = vec![0; program.ranks as usize * regions];
        for (i, region) in program.regions.iter().enumerate() {
            let info = if region.kind == RegionKind::Bound {
                let tensor = tensors.of(region, rank)?;
                a.bases[rank.index() * regions + i] = tensor.address;
                bound_info(region, rank, &tensor)
            } else {
                for owner in all_ranks(program) {
                    a.bases[owner.index() * regions + i] = loaded.heap_address(owner, i);
                }
                region_info(region, rank, loaded.heap_address(rank, i))
            };
            a.maps.extend(maps(place, region, &info).map_err(refused)?);
            a.infos.push(info);
        }
        Ok(a)
    }
}

fn maps(
    place: &Place,
    region: &Region,
    info: &RegionInfo,
) -> Result<[TensorMap; BOX_ROWS.len()], driver::Error> {
    let matrix = Matrix {
        address: info.own.0,
        dtype: region.dtype,
        rows: info.rows,
        cols: info.cols,
        copies: info.depth,
        pitch_bytes: info.pitch_bytes,
        copy_bytes: info.copy_bytes,
    };
    let mut maps = [TensorMap::default(); BOX_ROWS.len()];
    for (map, rows) in maps.iter_mut().zip(BOX_ROWS) {
        *map = encode(&place.context, &matrix, rows)?.into();
    }
    Ok(maps)
}

pub(super) fn all_ranks(program: &Program) -> impl Iterator<Item = Rank> + use<> {
    (0..program.ranks).map(|r| Rank(r as u16))
}
