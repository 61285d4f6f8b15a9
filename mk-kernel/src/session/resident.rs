//! The host's side of a resident kernel: a ring of commands in pinned memory, and a bell that the kernel rings back.
//!
//! The kernel leaves by itself when it has had nothing to do for a while. A command that it has not taken by then is not lost:
//! whoever waits for it sees that the kernel has gone, and starts it again with what is left of the queue.

use super::place::Place;
use super::{Limits, STUCK, clocks, refused};
use crate::abi::{self, Bell, COMMANDS, Command};
use crate::driver::{self, Context, DeviceMemory, HostMemory, Memory as _, bytes_of};
use crate::layout::{ConstPtr, MutPtr};
use mk_core::{Explanation, RunError};
use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const COMMAND_BYTES: u64 = size_of::<Command>() as u64;
/// Where the bell lies, behind the ring.
const BELL: u64 = COMMANDS as u64 * COMMAND_BYTES;
const ENDED: u64 = BELL + offset_of!(Bell, ended) as u64;
/// What the bell says when the kernel has left because of a fault.
const GONE_IN_FAULT: u64 = 2;
const GONE: u64 = BELL + offset_of!(Bell, gone) as u64;

/// See the module.
pub(super) struct Resident {
    state: DeviceMemory,
    host: HostMemory,
    /// The kernel has been started, and has not been seen to have gone.
    here: bool,
    /// Commands that this kernel was given.
    rung: u64,
    /// Those that it is not known to have ended: addresses of launches.
    queue: VecDeque<u64>,
}

impl Resident {
    pub(super) fn new(context: &Context) -> Result<Resident, driver::Error> {
        let state = DeviceMemory::new(context, size_of::<abi::Resident>() as u64)?;
        let host = HostMemory::new(context, BELL + size_of::<Bell>() as u64)?;
        Ok(Resident { state, host, here: false, rung: 0, queue: VecDeque::new() })
    }

    fn word(&self, offset: u64) -> u64 {
        self.host.word(offset).map_or(0, |w| w.load(Ordering::Acquire))
    }

    fn write(&self, offset: u64, value: u64) {
        if let Ok(word) = self.host.word(offset) {
            word.store(value, Ordering::Release);
        }
    }

    /// Forgets the commands that have ended.
    fn update(&mut self) {
        let left = self.rung - self.word(ENDED).min(self.rung);
        while self.queue.len() as u64 > left {
            self.queue.pop_front();
        }
    }

    /// Whether it takes no command before it has ended one.
    pub(super) fn is_full(&mut self) -> bool {
        self.update();
        self.queue.len() == COMMANDS
    }

    /// Whether the kernel has left because of a fault; its commands are void.
    fn has_failed(&self) -> bool {
        self.here && self.word(GONE) == GONE_IN_FAULT
    }

    /// Gives the kernel a launch, whose parameters lie at this address of the device, and starts it if it is not here.
    pub(super) fn ring(&mut self, place: &Place, limits: &Limits, launch: u64) -> Result<(), RunError> {
        if self.is_full() {
            return Err(RunError::Busy);
        }
        // After a fault nothing is started until the memory has been given up: whoever waits is told.
        if !self.has_failed() && (!self.here || self.word(GONE) != 0) {
            self.start(place, limits)?;
        }
        self.queue.push_back(launch);
        self.command(launch);
        Ok(())
    }

    fn command(&mut self, launch: u64) {
        self.rung += 1;
        let at = self.rung % COMMANDS as u64 * COMMAND_BYTES;
        self.write(at + offset_of!(Command, launch) as u64, launch);
        self.write(at + offset_of!(Command, number) as u64, self.rung);
    }

    /// Starts the kernel again if it has gone and commands are left. False: it has failed.
    pub(super) fn attend(&mut self, place: &Place, limits: &Limits) -> Result<bool, RunError> {
        self.update();
        if self.has_failed() {
            return Ok(false);
        }
        if self.here && self.word(GONE) != 0 && !self.queue.is_empty() {
            self.start(place, limits)?;
        }
        Ok(true)
    }

    /// Starts the kernel with what is left of the queue.
    #[allow(unsafe_code, reason = "a launch is what its parameter says")]
    fn start(&mut self, place: &Place, limits: &Limits) -> Result<(), RunError> {
        self.await_leaving(place)?;
        self.update();
        let blocks = place.resident_blocks(limits).map_err(refused)?;
        self.reset(place, limits).map_err(refused)?;
        for launch in self.queue.clone() {
            self.command(launch);
        }
        let resident = MutPtr::new(self.state.address());
        let parameter = abi::Launch { blocks, resident, ..abi::Launch::default() };
        // SAFETY: state and ring are owned by `self`, which waits for the kernel before they are freed; what the commands name
        // is owned by programs, which are parked before they are dropped.
        unsafe { place.launch(&place.stream, (blocks, place.fit_in_pairs(blocks)), &parameter) }
            .map_err(refused)?;
        self.here = true;
        Ok(())
    }

    fn reset(&mut self, place: &Place, limits: &Limits) -> Result<(), driver::Error> {
        self.host.write(0, &[0; BELL as usize + size_of::<Bell>()])?;
        let state = abi::Resident {
            commands: ConstPtr::new(self.host.address()),
            bell: MutPtr::new(self.host.address() + BELL),
            idle_clocks: clocks(limits.idle_us),
            ..abi::Resident::default()
        };
        place.control.upload(&self.state, 0, bytes_of(&[state]))?;
        self.rung = 0;
        Ok(())
    }

    /// Tells the kernel to leave once it has done all commands, and waits for that.
    pub(super) fn park(&mut self, place: &Place, limits: &Limits) -> Result<(), RunError> {
        if !self.here {
            return Ok(());
        }
        let begin = Instant::now();
        while self.attend(place, limits)? && !self.queue.is_empty() {
            if begin.elapsed() > Duration::from_micros(limits.whole_us) {
                return Err(stays(place));
            }
            std::thread::sleep(POLL);
        }
        if self.word(GONE) == 0 {
            self.command(0);
        }
        self.await_leaving(place)
    }

    /// Waits until the kernel, which is leaving, has left.
    fn await_leaving(&mut self, place: &Place) -> Result<(), RunError> {
        let begin = Instant::now();
        while self.here && !place.is_idle()? {
            if begin.elapsed() > LEAVES {
                return Err(stays(place));
            }
            std::hint::spin_loop();
        }
        self.here = false;
        Ok(())
    }

    /// After a fault, when the kernel has left: its commands are void.
    pub(super) fn forget(&mut self) {
        self.here = false;
        self.queue.clear();
        self.rung = 0;
    }
}

/// Between two looks at what takes long.
const POLL: Duration = Duration::from_micros(50);
/// How long a kernel may take to leave that has said it does, or was told to.
const LEAVES: Duration = Duration::from_secs(2);

fn stays(place: &Place) -> RunError {
    RunError::Hardware(Box::new(Explanation {
        kind: STUCK,
        message: format!("the kernel on {} does not leave", place.device()),
        given: "it was told to leave, or said that it does".into(),
        allowed: format!("{} s", LEAVES.as_secs()),
        hint: "a handler that never returns keeps it there: end this process, and look at the handlers of your own".into(),
    }))
}
