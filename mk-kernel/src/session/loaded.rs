//! A program on the GPUs of this process: its memory, its tables, its runs.

use super::bound::{Bound, Later, Prepared, all_ranks, table};
use super::host::HostTensors;
use super::memory::{Layout, Symmetric, piece, poison, region_bytes};
use super::place::Place;
use super::tables::{Tables, copy_bytes, pitch_bytes};
use super::trace::Rings;
use super::{DeviceTensor, Limits, faults, is_stuck, refused};
use crate::abi::{CLOCKS, Launch, Outcome, Params, STREAMS};
use crate::driver::{self, DeviceMemory, HostMemory, Memory as _, Stream};
use crate::layout::{ConstPtr, MutPtr};
use mk_core::{Bindings, Error as Refused, Program, Rank, RegionKind, Registry, RunError, Verified};
use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const OUTCOME_BYTES: u64 = size_of::<Outcome>() as u64;

/// What the host knows of the runs that it has started.
enum State {
    Running,
    Ended,
    Refused,
    Faulted,
}

/// How the last runs of a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By themselves.
    Out,
    /// Kernels were told to leave, and have left.
    GivenUp,
}

/// A rank of this process.
pub(super) struct Own {
    pub(super) rank: Rank,
    /// Its GPU.
    pub(super) place: usize,
    /// Tables that tests break.
    pub(super) tasks: u64,
    pub(super) streams: u64,
}

/// See the module.
pub(super) struct Loaded {
    verified: Verified,
    layout: Layout,
    pub(super) own: Vec<Own>,
    /// By GPU: everything but the addresses of regions.
    pub(super) launches: Vec<Launch>,
    /// By place: whether lanes share what they load, so that blocks are launched in pairs.
    pairs: Vec<bool>,
    /// What the kernel tells of each own rank.
    outcomes: HostMemory,
    /// The epoch of the last run that was started here.
    started: u64,
    /// Of those that were refused, how many the caller knows of.
    refused: u64,
    host: Option<HostTensors>,
    pub(super) tables: Vec<DeviceMemory>,
    /// By own rank; none without tracing.
    pub(super) rings: Vec<Rings>,
    symmetric: Symmetric,
}

impl Loaded {
    /// Takes memory for a program that was checked, and fills in its tables. All processes of the world do it together.
    pub(super) fn new(
        verified: &Verified,
        registry: &Registry,
        places: &[Place],
        limits: &Limits,
        generation: u64,
        folder: Option<&Path>,
    ) -> Result<Loaded, RunError> {
        let Some(first) = places.first() else {
            return Err(Refused::input(
                "the session has no rank",
                "no rank",
                "ranks on GPUs of this process",
                "name them when the session is opened: GpuBuilder::all, GpuBuilder::rank",
            )
            .into());
        };
        let layout = Layout::of(verified.program());
        let symmetric = Symmetric::new(verified, registry, places, limits, (generation, folder), &layout)?;
        let ranks: usize = places.iter().map(|p| p.ranks.len()).sum();
        let outcomes = HostMemory::new(&first.context, ranks as u64 * OUTCOME_BYTES).map_err(refused)?;
        let mut loaded = Loaded {
            verified: verified.clone(),
            layout,
            own: Vec::new(),
            launches: Vec::new(),
            pairs: Vec::new(),
            outcomes,
            started: 0,
            refused: 0,
            host: None,
            tables: Vec::new(),
            rings: Vec::new(),
            symmetric,
        };
        for (i, place) in places.iter().enumerate() {
            let launch = loaded.make_launch((i, place), limits, generation).map_err(refused)?;
            loaded.launches.push(launch);
        }
        if folder.is_none() {
            loaded.poison(places).map_err(refused)?;
        }
        Ok(loaded)
    }

    fn make_launch(
        &mut self,
        (i, place): (usize, &Place),
        limits: &Limits,
        generation: u64,
    ) -> Result<Launch, driver::Error> {
        let verified = self.verified.clone();
        let program = verified.program();
        let bases: Vec<u64> = all_ranks(program).map(|r| self.symmetric.address(r)).collect();
        let signals = ConstPtr::new(table(place, &self.signals(), &mut self.tables)?);
        let faults = ConstPtr::new(table(place, &bases, &mut self.tables)?);
        let mut launch = Launch { count: place.ranks.len() as u32, ..Launch::default() };
        let with_lanes = place.ranks.iter().filter(|r| program.lanes[r.index()] > 0).count() as u32;
        let (can, mut shares) = (place.can_pair(program, limits)?, false);
        for (at, &rank) in place.ranks.iter().enumerate() {
            let tables = Tables::of(&verified, rank, can && launch.blocks.is_multiple_of(2));
            shares |= tables.shares;
            let mut put = |words: &[u64]| table(place, words, &mut self.tables);
            let mut clocks = [MutPtr::new(0); CLOCKS];
            clocks[0] = MutPtr::new(put(&[1])?);
            let (tickets, left) = (put(&[0; STREAMS])?, put(&[0])?);
            let tasks = table(place, &tables.tasks, &mut self.tables)?;
            let streams = table(place, &tables.streams, &mut self.tables)?;
            let outcome = self.outcomes.address() + self.own.len() as u64 * OUTCOME_BYTES;
            let lanes = program.lanes[rank.index()].into();
            launch.first_blocks[at] = launch.blocks;
            launch.params[at] = Params {
                tasks: ConstPtr::new(tasks),
                streams: ConstPtr::new(streams),
                queues: tables.queues,
                tickets: MutPtr::new(tickets),
                signals,
                clocks,
                fault: MutPtr::new(bases[rank.index()]),
                faults,
                left: MutPtr::new(left),
                outcome: MutPtr::new(outcome),
                admission: MutPtr::new(place.admission()),
                bounds: limits.bounds(),
                generation,
                rank: rank.0.into(),
                ranks: program.ranks,
                region_count: program.regions.len() as u32,
                first_block: launch.blocks,
                lanes,
                launch_ranks: with_lanes,
                ..Params::default()
            };
            launch.blocks += lanes;
            self.own.push(Own { rank, place: i, tasks, streams });
        }
        self.pairs.push(shares);
        Ok(launch)
    }

    /// Fills the regions of own ranks. Only where all ranks are this process's: a peer may be writing already.
    #[allow(unsafe_code, reason = "a transport's memory is known by its address only")]
    fn poison(&self, places: &[Place]) -> Result<(), driver::Error> {
        for own in &self.own {
            let stream = &places[own.place].stream;
            for (region, at) in self.program().regions.iter().zip(&self.layout.regions) {
                let Some(at) = *at else { continue };
                // SAFETY: inside of the rank's part, as the layout says.
                let memory = unsafe { piece(self.symmetric.address(own.rank), at, region_bytes(region)) };
                if region_bytes(region) > 0 {
                    stream.fill(&memory, poison(region.io))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn verified(&self) -> &Verified {
        &self.verified
    }

    pub(super) fn program(&self) -> &Program {
        self.verified.program()
    }

    pub(super) fn launch(&self, place: usize) -> Launch {
        self.launches[place]
    }

    /// Whether the blocks of that launch come in pairs.
    pub(super) fn in_pairs(&self, place: usize) -> bool {
        self.pairs[place]
    }

    /// By rank: its signal words; 0 if they are out of reach.
    pub(super) fn signals(&self) -> Vec<u64> {
        let words = |base: u64| if base == 0 { 0 } else { base + self.layout.signals };
        all_ranks(self.program()).map(|r| words(self.symmetric.address(r))).collect()
    }

    /// What was bound for tensors of the host is bound again at the next run.
    pub(super) fn unbind_host(&mut self) {
        self.host = None;
    }

    pub(super) fn symmetric(&self) -> &Symmetric {
        &self.symmetric
    }

    /// Where the copies of a region of the symmetric heap begin on a rank; 0 if that is out of reach.
    pub(super) fn heap_address(&self, rank: Rank, region: usize) -> u64 {
        match (self.symmetric.address(rank), self.layout.regions[region]) {
            (0, _) | (_, None) => 0,
            (base, Some(at)) => base + at,
        }
    }

    /// The copy of a region of the symmetric heap that the next epoch uses.
    pub(super) fn region(&self, rank: Rank, name: &str) -> Result<DeviceTensor, RunError> {
        let program = self.program();
        let found = program.regions.iter().position(|r| r.name == name && r.kind != RegionKind::Bound);
        match found {
            Some(i) if self.own.iter().any(|o| o.rank == rank) => {
                let region = &program.regions[i];
                let rotation = self.epoch() % u64::from(region.depth) * copy_bytes(region);
                let address = self.heap_address(rank, i) + rotation;
                Ok(DeviceTensor { address, pitch_bytes: pitch_bytes(region) })
            }
            _ => {
                let heap = program.regions.iter().filter(|r| r.kind != RegionKind::Bound);
                Err(Refused::input(
                    "no such region of the symmetric heap",
                    format!("'{name}' on {rank}"),
                    heap.map(|r| r.name.as_str()).collect::<Vec<_>>().join(", "),
                    "name one of these, on a rank of this process; tensors of your own are bound",
                )
                .into())
            }
        }
    }

    // ---------------------------------------------------------------------------------------- outcomes

    fn word(&self, own: usize, field: usize) -> u64 {
        let at = own as u64 * OUTCOME_BYTES + field as u64;
        self.outcomes.word(at).map_or(0, |w| w.load(Ordering::Acquire))
    }

    /// Own ranks that run anything.
    fn running(&self) -> impl Iterator<Item = usize> {
        let lanes = |i: &usize| self.program().lanes[self.own[*i].rank.index()] > 0;
        (0..self.own.len()).filter(lanes)
    }

    /// Epochs that have ended on all own ranks.
    fn ended(&self) -> u64 {
        self.running().map(|i| self.word(i, offset_of!(Outcome, ended))).min().unwrap_or(self.started)
    }

    /// Of the next run, from 1.
    pub(super) fn epoch(&self) -> u64 {
        self.ended() + 1
    }

    /// Launches that were refused.
    fn all_refused(&self) -> u64 {
        self.running().map(|i| self.word(i, offset_of!(Outcome, refused))).max().unwrap_or(0)
    }

    pub(super) fn faulted(&self) -> bool {
        self.running().any(|i| self.word(i, offset_of!(Outcome, faulted)) != 0)
    }

    /// Whether every own rank is out of the runs that were started, well or not: the kernel touches their memory no more.
    pub(super) fn is_out(&self) -> bool {
        let out = |i: usize| {
            let word = |field| self.word(i, field);
            word(offset_of!(Outcome, faulted)) != 0
                || word(offset_of!(Outcome, ended)) + self.all_refused() >= self.started + self.refused
        };
        self.running().all(out)
    }

    /// The last epoch that has ended, 0 if there is none.
    ///
    /// # Errors
    /// [`RunError::Busy`] while another one is running.
    pub(super) fn last_epoch(&self) -> Result<u64, RunError> {
        match self.state() {
            State::Running => Err(RunError::Busy),
            State::Ended | State::Refused | State::Faulted => Ok(self.ended()),
        }
    }

    fn state(&self) -> State {
        if self.faulted() {
            State::Faulted
        } else if self.all_refused() > self.refused {
            State::Refused
        } else if self.ended() >= self.started {
            State::Ended
        } else {
            State::Running
        }
    }

    // ---------------------------------------------------------------------------------------- runs

    /// Starts a run of what is bound, on the caller's streams, or on the places' own.
    pub(super) fn start(
        &mut self,
        bound: &Bound,
        places: &mut [Place],
        streams: Option<&[&Stream]>,
        limits: &Limits,
    ) -> Result<(), RunError> {
        // On all GPUs or on none: what one of them began alone would wait for the others.
        if places.iter_mut().any(Place::is_full) {
            return Err(RunError::Busy);
        }
        // Replays of graphs, which nobody counts here, have ended epochs, too.
        let before = self.started.max(self.ended());
        let mut captured = false;
        for (i, (place, prepared)) in places.iter_mut().zip(&bound.launches).enumerate() {
            match start_on(place, prepared, streams.and_then(|s| s.get(i).copied()), limits) {
                Ok(recorded) => captured |= recorded,
                Err(error) if i == 0 => return Err(error),
                Err(error) => {
                    // Some GPUs have begun a run that the others will not.
                    self.started = before + 1;
                    let _ = faults::give_up(self, places, limits);
                    return Err(error);
                }
            }
        }
        if !captured {
            self.started = before + 1;
        }
        Ok(())
    }

    /// Waits until all runs that were started have ended.
    pub(super) fn wait(&mut self, places: &mut [Place], limits: &Limits) -> Result<(), RunError> {
        let begin = Instant::now();
        loop {
            match self.state() {
                State::Running => {}
                State::Ended => return Ok(()),
                State::Refused => return Err(self.take_refusals()),
                State::Faulted => return Err(faults::fault(self, places, limits)),
            }
            if begin.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            if !attend(places, limits)? {
                return Err(faults::fault(self, places, limits));
            }
            if begin.elapsed() > Duration::from_micros(limits.whole_us) {
                return Err(faults::give_up(self, places, limits));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Before the memory is given back: waits for runs that nobody has waited for.
    ///
    /// # Errors
    /// A kernel stays.
    pub(super) fn close(&self, places: &mut [Place], limits: &Limits) -> Result<End, RunError> {
        let begin = Instant::now();
        let patient = |begin: Instant| begin.elapsed() < Duration::from_micros(limits.whole_us);
        while !self.is_out() && patient(begin) && attend(places, limits).is_ok_and(|well| well) {
            std::thread::sleep(POLL);
        }
        if self.is_out() {
            return Ok(End::Out);
        }
        let why = faults::give_up(self, places, limits);
        if is_stuck(&why) { Err(why) } else { Ok(End::GivenUp) }
    }

    /// How many epochs have ended, if nothing went wrong.
    pub(super) fn outcome(&mut self, places: &mut [Place], limits: &Limits) -> Result<u64, RunError> {
        match self.state() {
            State::Faulted => Err(faults::fault(self, places, limits)),
            State::Refused => Err(self.take_refusals()),
            State::Ended => Ok(self.ended()),
            State::Running if attend(places, limits)? => Ok(self.ended()),
            State::Running => Err(faults::fault(self, places, limits)),
        }
    }

    /// Runs that were refused are not waited for.
    fn take_refusals(&mut self) -> RunError {
        // The kernel may tell a smaller number after a larger one, for a moment.
        let all = self.all_refused().max(self.refused);
        self.started = self.started.saturating_sub(all - self.refused);
        self.refused = all;
        RunError::Busy
    }

    /// Runs one epoch with tensors of the host.
    pub(super) fn run(
        &mut self,
        places: &mut [Place],
        limits: &Limits,
        (generation, later): (u64, &Later),
        bindings: &Bindings,
    ) -> Result<Bindings, RunError> {
        let host = match self.host.take() {
            Some(host) => host,
            None => {
                // To allocate may wait for a resident kernel.
                places.iter_mut().try_for_each(|p| p.park(limits))?;
                HostTensors::new(self, places, generation, later)?
            }
        };
        let result = host.run(self, places, limits, bindings);
        self.host = Some(host);
        result
    }
}

/// Starts a run on one GPU; whether that was recorded into a graph instead.
#[allow(unsafe_code, reason = "a launch is what its parameters say")]
fn start_on(
    place: &mut Place,
    prepared: &Prepared,
    stream: Option<&Stream>,
    limits: &Limits,
) -> Result<bool, RunError> {
    let blocks = prepared.launch.blocks;
    if blocks == 0 {
        return Ok(false);
    }
    if let Some(copy) = &prepared.copy {
        if let Some(stream) = stream
            && stream.is_capturing().map_err(refused)?
        {
            return Err(Refused::input(
                "a resident kernel's run cannot be recorded",
                "a stream that records",
                "no stream",
                "record runs of a session that launches them: GpuBuilder without resident",
            )
            .into());
        }
        return place.ring(limits, copy.address()).map(|()| false);
    }
    let stream = stream.unwrap_or(&place.stream);
    // SAFETY: the parameters name memory of the program and of the binding, which live until the run has ended, and the program
    // was proved to stay inside of it.
    unsafe { place.launch(stream, (blocks, prepared.pairs), &prepared.launch) }.map_err(refused)?;
    stream.is_capturing().map_err(refused)
}

/// Looks after the GPUs while runs are under way. False: a resident kernel has failed.
fn attend(places: &mut [Place], limits: &Limits) -> Result<bool, RunError> {
    let mut well = true;
    for place in places {
        well &= place.attend(limits)?;
    }
    Ok(well)
}

/// How long a run is waited for without giving the core away: most end sooner.
const SPIN: Duration = Duration::from_micros(200);
/// Between two looks after that.
const POLL: Duration = Duration::from_micros(20);
