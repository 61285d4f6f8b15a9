//! One GPU of this process: its kernel, its streams, the ranks that it runs.

use super::resident::Resident;
use super::{Limits, refused};
use crate::Error;
use crate::abi::{self, ENTRY, Geometry};
use crate::driver::{self, Context, Device, DeviceMemory, Kernel, Launch, Module, Residency, Stream};
use mk_core::{Program, Rank, RunError};

/// See the module. Fields are dropped in this order.
pub(super) struct Place {
    pub(super) ranks: Vec<Rank>,
    pub(super) resident: Option<Resident>,
    pub(super) kernel: Kernel,
    shared_bytes: u32,
    /// Pairs of blocks that can be resident.
    pairs: u32,
    /// Which launch runs here: the last word. Those of older generations may still be looked at.
    admission: Vec<DeviceMemory>,
    /// For runs of host tensors, and for tables.
    pub(super) stream: Stream,
    /// For looking at memory while a kernel runs.
    pub(super) control: Stream,
    pub(super) context: Context,
}

impl Place {
    pub(super) fn new(
        device: &Device,
        rank: Rank,
        cubin: &[u8],
        shared_bytes: u32,
        resident: bool,
    ) -> Result<Place, Error> {
        let context = device.context()?;
        let kernel = Module::load(&context, cubin)?.kernel(ENTRY)?;
        kernel.allow_shared(shared_bytes)?;
        let pairs = kernel.pairs(Geometry::THREADS, shared_bytes)?;
        let (stream, control) = (Stream::new(&context)?, Stream::new(&context)?);
        let admission = vec![admission(&context, &stream)?];
        let resident = if resident { Some(Resident::new(&context)?) } else { None };
        let ranks = vec![rank];
        Ok(Place { ranks, resident, kernel, shared_bytes, pairs, admission, stream, control, context })
    }

    pub(super) fn device(&self) -> &Device {
        self.context.device()
    }

    pub(super) fn admission(&self) -> u64 {
        self.admission.last().map_or(0, driver::Memory::address)
    }

    /// Blocks that a program has here.
    pub(super) fn blocks(&self, program: &Program) -> u32 {
        self.ranks.iter().map(|r| u32::from(program.lanes[r.index()])).sum()
    }

    pub(super) fn residency(&self) -> Result<Residency, driver::Error> {
        self.kernel.residency(Geometry::THREADS, self.shared_bytes)
    }

    /// Whether all lanes of a program can be resident here.
    pub(super) fn check(&self, program: &Program, reserved_sms: u32) -> Result<(), driver::Error> {
        self.residency()?.check(self.blocks(program), reserved_sms)
    }

    /// Whether the lanes of a program can come in pairs here.
    pub(super) fn can_pair(&self, program: &Program, limits: &Limits) -> Result<bool, driver::Error> {
        let blocks = match &self.resident {
            Some(_) => self.resident_blocks(limits)?,
            None => self.blocks(program),
        };
        Ok(self.fit_in_pairs(blocks))
    }

    /// Whether so many blocks can be resident in pairs, whatever else runs on the GPU: only if they take all of it. Else other blocks
    /// may hold one multiprocessor of a pair, and lanes that never begin would keep the others waiting.
    pub(super) fn fit_in_pairs(&self, blocks: u32) -> bool {
        blocks == self.device().facts().multiprocessors
            && blocks.is_multiple_of(2)
            && blocks / 2 <= self.pairs
    }

    /// Blocks of a resident kernel.
    pub(super) fn resident_blocks(&self, limits: &Limits) -> Result<u32, driver::Error> {
        Ok(self.residency()?.blocks(limits.reserved_sms))
    }

    /// Starts the kernel on so many blocks, perhaps in pairs.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    #[allow(unsafe_code, reason = "a launch is what its parameter says")]
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        (blocks, pairs): (u32, bool),
        parameter: &abi::Launch,
    ) -> Result<(), driver::Error> {
        let size = Launch {
            blocks,
            pairs,
            threads: Geometry::THREADS,
            shared_bytes: self.shared_bytes,
            // A run waits for the kernel before it itself; a resident kernel does not.
            early: parameter.resident.0 == 0,
        };
        // SAFETY: the caller's promise.
        unsafe { self.kernel.launch(stream, size, parameter) }
    }

    /// Whether the resident kernel takes no launch before it has ended one.
    pub(super) fn is_full(&mut self) -> bool {
        self.resident.as_mut().is_some_and(Resident::is_full)
    }

    /// Gives the resident kernel a launch, whose parameters lie at this address of the device.
    pub(super) fn ring(&mut self, limits: &Limits, launch: u64) -> Result<(), RunError> {
        self.with_resident(|r, place| r.ring(place, limits, launch))
    }

    /// While a run is waited for: whether the GPU still answers; and a resident kernel that has gone comes back. False: it
    /// has failed.
    pub(super) fn attend(&mut self, limits: &Limits) -> Result<bool, RunError> {
        self.is_idle()?;
        let mut well = true;
        self.with_resident(|r, place| r.attend(place, limits).map(|yes| well = yes))?;
        Ok(well)
    }

    /// Lets the resident kernel leave.
    pub(super) fn park(&mut self, limits: &Limits) -> Result<(), RunError> {
        self.with_resident(|r, place| r.park(place, limits))
    }

    fn with_resident(
        &mut self,
        f: impl FnOnce(&mut Resident, &Place) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let Some(mut resident) = self.resident.take() else { return Ok(()) };
        let result = f(&mut resident, self);
        self.resident = Some(resident);
        result
    }

    /// After a fault: no launch of the new generation runs here yet.
    pub(super) fn renew(&mut self) -> Result<(), driver::Error> {
        if let Some(resident) = &mut self.resident {
            resident.forget();
        }
        // A kernel that did not leave may keep the other stream for ever.
        self.admission.push(admission(&self.context, &self.control)?);
        Ok(())
    }

    /// Whether no kernel of ours runs on the streams of this place.
    pub(super) fn is_idle(&self) -> Result<bool, RunError> {
        self.stream.is_done().map_err(refused)
    }
}

fn admission(context: &Context, stream: &Stream) -> Result<DeviceMemory, driver::Error> {
    let word = DeviceMemory::new(context, size_of::<abi::Admission>() as u64)?;
    stream.fill(&word, 0)?;
    Ok(word)
}
