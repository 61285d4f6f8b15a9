//! What a traced kernel tells of its tasks: a ring of events for each role of each lane.
//!
//! Counts and rings are never reset; the epoch of an event tells which run it is of.

mod slices;
#[cfg(test)]
mod tests;

pub use slices::RoleEvent;

use super::loaded::Loaded;
use super::place::Place;
use super::tables::tasks_of;
use super::{Gpu, refused};
use crate::abi::{Params, Role, STREAMS, TraceEvent};
use crate::driver::{self, DeviceMemory, Memory as _, Stream};
use crate::layout::MutPtr;
use mk_core::{Error as Refused, Lane, Program, Queue, Rank, RunError, TaskId, Trace, Verified};
use std::mem::offset_of;

const EVENT_BYTES: u64 = size_of::<TraceEvent>() as u64;
/// Rings of a lane, by ROLE_*.
const ROLES: u32 = Role::Comm as u32 + 1;
/// The roles that write events.
const TRACED: [Role; 4] = [Role::Load, Role::Math, Role::Store, Role::Comm];
/// Most memory of a rank's rings: with a lane on each of 132 SMs, ten thousand tasks of each.
const RINGS_BYTES: u64 = 256 << 20;

/// The program of a run that has failed, and what it did.
pub(super) struct FailedRun {
    verified: Verified,
    trace: Trace,
}

/// Rings of a rank.
pub(super) struct Rings {
    counts: DeviceMemory,
    events: DeviceMemory,
    lanes: u32,
    capacity: u32,
}

impl Rings {
    /// Takes memory for the events of one run.
    fn new(place: &Place, program: &Program, rank: Rank) -> Result<Rings, driver::Error> {
        let lanes = u32::from(program.lanes[rank.index()]);
        let (rings, capacity) = (u64::from(lanes * ROLES), capacity(program, rank));
        let counts = DeviceMemory::new(&place.context, rings * 8)?;
        place.control.fill(&counts, 0)?;
        let events = DeviceMemory::new(&place.context, rings * u64::from(capacity) * EVENT_BYTES)?;
        Ok(Rings { counts, events, lanes, capacity })
    }

    /// Tells the kernel of them.
    fn give_to(&self, params: &mut Params) {
        params.trace = MutPtr::new(self.events.address());
        params.trace_counts = MutPtr::new(self.counts.address());
        params.trace_events = self.capacity;
    }

    /// All events of a role that are there, the oldest first.
    fn read(&self, stream: &Stream, lane: u32, role: Role) -> Result<Vec<TraceEvent>, driver::Error> {
        let ring = u64::from(lane * ROLES + role as u32);
        let mut count = [0; 8];
        stream.download(&self.counts, ring * 8, &mut count)?;
        let (count, capacity) = (u64::from_le_bytes(count), u64::from(self.capacity));
        let mut bytes = vec![0; (count.min(capacity) * EVENT_BYTES) as usize];
        stream.download(&self.events, ring * capacity * EVENT_BYTES, &mut bytes)?;
        Ok(oldest_first(&bytes, count))
    }
}

/// What a ring holds, of which so many events were written.
fn oldest_first(bytes: &[u8], count: u64) -> Vec<TraceEvent> {
    let mut events: Vec<TraceEvent> = bytes.chunks_exact(EVENT_BYTES as usize).map(event).collect();
    let held = events.len() as u64;
    if count > held {
        // The next event is written over the oldest.
        events.rotate_left((count % held) as usize);
    }
    events
}

/// The most tasks that one role of a lane can have in one run: its own, and all that it may claim. As many as memory allows; of
/// more, the last ones are kept.
fn capacity(program: &Program, rank: Rank) -> u32 {
    let lanes = usize::from(program.lanes[rank.index()]);
    let (mut own, mut claimed) = (vec![0; lanes * STREAMS], [0; STREAMS]);
    for s in program.streams.iter().filter(|s| s.rank == rank) {
        match s.queue {
            Queue::Lane(lane) => own[lane.index() * STREAMS + s.stream as usize] += s.len,
            Queue::Ticket => claimed[s.stream as usize] += s.len,
        }
    }
    let most = own.iter().enumerate().map(|(i, own)| own + claimed[i % STREAMS]).max().unwrap_or(0);
    let room = RINGS_BYTES / EVENT_BYTES / (lanes.max(1) as u64 * u64::from(ROLES));
    most.clamp(1, room as u32)
}

fn event(bytes: &[u8]) -> TraceEvent {
    let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let word = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    TraceEvent {
        start_ns: long(offset_of!(TraceEvent, start_ns)),
        end_ns: long(offset_of!(TraceEvent, end_ns)),
        waited_ns: long(offset_of!(TraceEvent, waited_ns)),
        epoch: long(offset_of!(TraceEvent, epoch)),
        task: word(offset_of!(TraceEvent, task)),
        op: short(offset_of!(TraceEvent, op)),
        role: short(offset_of!(TraceEvent, role)),
    }
}

impl Loaded {
    /// Takes memory for events. What is bound from now on is traced.
    pub(super) fn take_rings(&mut self, places: &[Place]) -> Result<(), driver::Error> {
        for (i, place) in places.iter().enumerate() {
            for (at, &rank) in place.ranks.iter().enumerate() {
                let rings = Rings::new(place, self.program(), rank)?;
                rings.give_to(&mut self.launches[i].params[at]);
                self.rings.push(rings);
            }
        }
        Ok(())
    }

    /// What the roles of own ranks did in an epoch, by GPU; each role's in order.
    fn role_events(&self, places: &[Place], epoch: u64) -> Result<Vec<Vec<RoleEvent>>, driver::Error> {
        let mut all: Vec<Vec<RoleEvent>> = places.iter().map(|_| Vec::new()).collect();
        for (own, rings) in self.own.iter().zip(&self.rings) {
            let tasks: Vec<TaskId> = tasks_of(self.program(), own.rank).map(|(task, _)| task).collect();
            for (lane, role) in (0..rings.lanes).flat_map(|lane| TRACED.map(|role| (lane, role))) {
                let events = rings.read(&places[own.place].control, lane, role)?;
                let of_epoch = events.iter().filter(|e| e.epoch == epoch);
                let lane = Lane(lane as u16);
                all[own.place]
                    .extend(of_epoch.filter_map(|e| RoleEvent::of(e, own.rank, lane, role, &tasks)));
            }
        }
        Ok(all)
    }

    fn trace(&self, places: &[Place], epoch: u64) -> Result<Trace, driver::Error> {
        Ok(slices::trace(self.program(), epoch, &self.role_events(places, epoch)?))
    }
}

impl Gpu {
    /// What the last run of a program did on the ranks of this process, in the form of the simulator's. After a fault, what the
    /// run that failed did, until the program runs again. Without a run it is empty.
    ///
    /// A compute task lasts from where its load role takes it up to where the store role is through with it. The waits of a role
    /// are added up, and shown as one at its beginning. Time begins with the first event of a GPU: those of several GPUs have
    /// no clock in common.
    ///
    /// Where a rank's events would take more than 256 MiB, the tasks that a lane ran first are not in it.
    ///
    /// # Errors
    /// The session does not trace: see [`GpuBuilder::trace`](super::GpuBuilder::trace). [`RunError::Busy`] while the program is
    /// running. What the driver says.
    pub fn trace(&self, program: &Verified) -> Result<Trace, RunError> {
        self.check_traced()?;
        match self.known(program) {
            Some(at) => {
                let loaded = &self.loaded[at];
                loaded.trace(&self.places, loaded.last_epoch()?).map_err(refused)
            }
            None => Ok(self.failed_trace(program)),
        }
    }

    /// For tests: what the trace of a run that has ended well is made of.
    #[doc(hidden)]
    pub fn role_events(&self, program: &Verified) -> Result<Vec<RoleEvent>, RunError> {
        self.check_traced()?;
        let Some(at) = self.known(program) else { return Ok(Vec::new()) };
        let loaded = &self.loaded[at];
        let events = loaded.role_events(&self.places, loaded.last_epoch()?).map_err(refused)?;
        Ok(events.concat())
    }

    fn check_traced(&self) -> Result<(), RunError> {
        if self.trace {
            return Ok(());
        }
        Err(Refused::input(
            "the session does not trace",
            "a session without tracing",
            "a session that is opened with tracing",
            "open it with GpuBuilder::trace(true)",
        )
        .into())
    }

    fn failed_trace(&self, program: &Verified) -> Trace {
        let failed = self.failed.as_ref().filter(|f| std::ptr::eq(f.verified.program(), program.program()));
        failed.map(|f| f.trace.clone()).unwrap_or_default()
    }

    /// Of a run that ended in a fault, before its memory is given up. All kernels have left by then.
    pub(super) fn failed_run<T>(&self, result: &Result<T, RunError>) -> Option<FailedRun> {
        if !self.trace || !matches!(result, Err(RunError::Fault(_))) {
            return None;
        }
        let loaded = self.loaded.iter().find(|l| l.faulted())?;
        // That it cannot be read must not hide the fault.
        let trace = loaded.trace(&self.places, loaded.epoch()).ok()?;
        Some(FailedRun { verified: loaded.verified().clone(), trace })
    }
}
