//! What went wrong, in words: from the records that the kernel leaves.
//!
//! Whoever sees a fault first writes its rank's record and raises the abort words of all ranks in reach. So when every word is
//! raised, no record is written any more, and all processes read the same ones: of several, that of the lowest rank is told.

use super::bound::all_ranks;
use super::loaded::Loaded;
use super::memory::piece;
use super::place::Place;
use super::tables::tasks_of;
use super::{Limits, STUCK, refused};
use crate::abi::{self, FaultReason, Role};
use crate::driver;
use mk_core::{Explanation, Fault, Program, Rank, Reason, RunError, Stream};
use std::mem::offset_of;
use std::time::{Duration, Instant};

const RECORD_BYTES: usize = size_of::<abi::Fault>();
/// How long records are waited for that peers may still be writing.
const SETTLES: Duration = Duration::from_millis(100);
/// How long kernels have to leave, beyond the bound of a wait.
const LEAVES: Duration = Duration::from_secs(1);

/// The fault of a run that has failed, once all kernels of this process have left.
pub(super) fn fault(loaded: &Loaded, places: &[Place], limits: &Limits) -> RunError {
    match await_leaving(loaded, places, limits).and_then(|()| settled(loaded, places)) {
        Ok(Some(record)) => explain(loaded, &record, limits).into(),
        Ok(None) => told(loaded, limits).into(),
        Err(error) => error,
    }
}

/// A run that has not ended within the bound of a whole one: tells the kernels to leave, and says so.
pub(super) fn give_up(loaded: &Loaded, places: &[Place], limits: &Limits) -> RunError {
    match raise(loaded, places).map_err(refused) {
        Ok(()) => fault(loaded, places, limits),
        Err(error) => error,
    }
}

/// Raises the abort words of own ranks; the kernel raises those of the others.
fn raise(loaded: &Loaded, places: &[Place]) -> Result<(), driver::Error> {
    for own in &loaded.own {
        let record = record_of(loaded, own.rank);
        places[own.place].control.upload(
            &record,
            offset_of!(abi::Fault, abort) as u64,
            &2u32.to_le_bytes(),
        )?;
    }
    Ok(())
}

#[allow(unsafe_code, reason = "a transport's memory is known by its address only")]
fn record_of(loaded: &Loaded, rank: Rank) -> driver::ForeignMemory {
    // SAFETY: the record is the first thing in a rank's part.
    unsafe { piece(loaded.symmetric().address(rank), 0, RECORD_BYTES as u64) }
}

fn await_leaving(loaded: &Loaded, places: &[Place], limits: &Limits) -> Result<(), RunError> {
    let (begin, bound) = (Instant::now(), Duration::from_micros(limits.run_us) + LEAVES);
    for place in places {
        // A lane of a resident kernel that has failed may not have begun the run: it leaves, and tells nobody.
        while !(place.is_idle()? && (place.resident.is_some() || loaded.is_out())) {
            if begin.elapsed() > bound {
                return Err(stays(place, bound));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(())
}

fn stays(place: &Place, bound: Duration) -> RunError {
    RunError::Hardware(Box::new(Explanation {
        kind: STUCK,
        message: format!("after a fault, the kernel on {} does not leave", place.device()),
        given: format!("{} ms", bound.as_millis()),
        allowed: "every handler returns".into(),
        hint: "end this process: a handler that never returns keeps the GPU".into(),
    }))
}

/// A record, as the kernel wrote it.
struct Record {
    rank: Rank,
    reason: u32,
    lane: u32,
    role: u32,
    task: u32,
    word: u32,
    expected: u64,
    seen: u64,
    epoch: u64,
}

/// The record that all processes agree on; none if nobody wrote one.
fn settled(loaded: &Loaded, places: &[Place]) -> Result<Option<Record>, RunError> {
    let begin = Instant::now();
    let mut settled = false;
    loop {
        let mut open = false;
        let mut found = None;
        for rank in all_ranks(loaded.program()).filter(|&r| loaded.symmetric().address(r) != 0) {
            let mut bytes = [0; RECORD_BYTES];
            places[0].control.download(&record_of(loaded, rank), 0, &mut bytes).map_err(refused)?;
            let (abort, record) = read(&bytes);
            open |= abort == 0 || (abort == 1 && record.reason == 0);
            if abort == 1 && record.reason != 0 {
                found = found.or(Some(record));
            }
        }
        // A record that a peer had just written may have been read in part: it is read once more.
        if settled || begin.elapsed() > SETTLES {
            return Ok(found);
        }
        settled = !open;
    }
}

fn read(bytes: &[u8; RECORD_BYTES]) -> (u32, Record) {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let record = Record {
        rank: Rank(word(offset_of!(abi::Fault, rank)) as u16),
        reason: word(offset_of!(abi::Fault, reason)),
        lane: word(offset_of!(abi::Fault, lane)),
        role: word(offset_of!(abi::Fault, role)),
        task: word(offset_of!(abi::Fault, task)),
        word: word(offset_of!(abi::Fault, word)),
        expected: long(offset_of!(abi::Fault, expected)),
        seen: long(offset_of!(abi::Fault, seen)),
        epoch: long(offset_of!(abi::Fault, epoch)),
    };
    (word(offset_of!(abi::Fault, abort)), record)
}

/// In words.
fn explain(loaded: &Loaded, record: &Record, limits: &Limits) -> Fault {
    let program = loaded.program();
    let Record { rank, expected, seen, epoch, .. } = *record;
    let reason = FaultReason::from_code(record.reason);
    let bound = match reason {
        Some(FaultReason::Signal) => Some(limits.run_us),
        Some(FaultReason::Start) => Some(limits.start_us),
        _ => None,
    };
    let signal = if bound.is_some() { program.word_name(rank, record.word) } else { String::new() };
    let kernel = |what: &str| Reason::Kernel(what.into());
    let reason = match reason {
        Some(FaultReason::Signal | FaultReason::Start) => match loaded.symmetric().lost() {
            Some(peer) => Reason::PeerLost(peer),
            None => Reason::Timeout(bound.unwrap_or(limits.whole_us)),
        },
        Some(FaultReason::Barrier) => kernel("a barrier between roles was not reached"),
        Some(FaultReason::Opcode) => kernel(&format!("it has no handler with opcode {}", record.word)),
        Some(FaultReason::Unreachable) => kernel("a region or the signals of a rank are out of reach"),
        Some(FaultReason::Alignment) => kernel(
            "a rectangle does not consist of 16-byte rows: on a GPU, rows and their starts are multiples of 16 bytes",
        ),
        Some(FaultReason::Arguments) => kernel("its arguments are too large for a GPU"),
        None => kernel("it was told to leave"),
    };
    Fault { rank, task: task_name(program, record), signal, expected, seen, epoch, reason }
}

/// The task of a record, if the role that wrote it has such tasks.
fn task_name(program: &Program, record: &Record) -> String {
    let comm = record.role == Role::Comm as u32;
    match tasks_of(program, record.rank).nth(record.task as usize) {
        Some((task, stream)) if comm == (stream == Stream::Comm) => program.task_name(task),
        _ => format!("lane {} of {}", record.lane, record.rank),
    }
}

/// All were told to leave, and nobody has seen anything.
fn told(loaded: &Loaded, limits: &Limits) -> Fault {
    let rank = loaded.own.first().map_or(Rank(0), |o| o.rank);
    let reason = match loaded.symmetric().lost() {
        Some(peer) => Reason::PeerLost(peer),
        None => Reason::Timeout(limits.whole_us),
    };
    let task = format!("program '{}'", loaded.program().name);
    let epoch = loaded.epoch();
    Fault { rank, task, signal: String::new(), expected: 0, seen: 0, epoch, reason }
}
