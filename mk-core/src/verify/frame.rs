//! What can be checked before any task is looked at: sizes, streams, lanes.

use super::FindingKind as Kind;
use super::report::{Findings, refuted};
use crate::{Hardware, Limits, Program, Queue, Registry};
use std::collections::HashSet;

/// Checks what a program says of itself as a whole.
pub(super) fn check_frame(
    p: &Program,
    registry: &Registry,
    hardware: Option<&Hardware>,
    findings: &mut Findings,
) {
    let mut bad = |kind, text: String| findings.push(refuted(kind, Vec::new(), text));
    if p.ranks != registry.world().size() {
        let text = format!("it is for {} ranks, but this world has {}", p.ranks, registry.world().size());
        bad(Kind::Malformed, text);
    }
    if p.lanes.len() != p.ranks as usize {
        bad(Kind::Malformed, format!("it gives lanes for {} of {} ranks", p.lanes.len(), p.ranks));
    }
    if p.words().saturating_mul(p.ranks as u64) > Limits::ALL_WORDS {
        bad(Kind::Malformed, format!("its signals are {} words on each of {} ranks", p.words(), p.ranks));
    }
    let mut words: Vec<_> = p.signals.iter().filter(|s| s.words > 0).map(|s| (s.first, s.words)).collect();
    words.sort_unstable();
    if words.windows(2).any(|w| w[0].0 as u64 + w[0].1 as u64 > w[1].0 as u64) {
        bad(Kind::Malformed, "two of its signals share a word".into());
    }
    for r in &p.regions {
        if let Err(e) = crate::builder::check_region(r, p.ranks) {
            bad(Kind::Malformed, e.to_string());
        }
        if r.shared && r.depth != 1 {
            bad(
                Kind::Malformed,
                format!("region '{}' is shared and rotates: a shared region has one copy", r.name),
            );
        }
    }
    let mut next = 0u64;
    for s in &p.streams {
        let lanes = p.lanes.get(s.rank.index()).copied();
        let lane_known = match s.queue {
            Queue::Lane(lane) => lanes.is_some_and(|n| lane.0 < n),
            Queue::Ticket => lanes.is_some_and(|n| n > 0),
        };
        if !lane_known || s.first as u64 != next {
            bad(Kind::Malformed, format!("stream {s:?} has no lane, or does not follow the one before"));
        }
        next = s.first as u64 + s.len as u64;
    }
    if next != p.tasks.len() as u64 {
        bad(Kind::Malformed, format!("its streams hold {next} tasks, but it has {}", p.tasks.len()));
    }
    let key = |s: &crate::StreamTasks| (s.rank, s.queue, s.stream);
    if p.streams.windows(2).any(|w| key(&w[0]) >= key(&w[1])) {
        bad(Kind::Malformed, "its streams are not sorted by rank, queue and kind, each once".into());
    }
    let tickets: HashSet<_> =
        p.streams.iter().filter(|s| s.queue == Queue::Ticket).map(|s| (s.rank, s.stream)).collect();
    let both = |s: &&crate::StreamTasks| s.queue != Queue::Ticket && tickets.contains(&(s.rank, s.stream));
    if let Some(s) = p.streams.iter().find(both) {
        let text =
            format!("{} has both a ticket queue and lanes' own streams for {:?} work", s.rank, s.stream);
        bad(Kind::Malformed, text);
    }
    check_lanes(p, hardware, findings);
}

fn check_lanes(p: &Program, hardware: Option<&Hardware>, findings: &mut Findings) {
    let Some(hw) = hardware else { return };
    if let Some((rank, &lanes)) = p.lanes.iter().enumerate().find(|(_, n)| **n as u32 > hw.lanes()) {
        let left = if hw.reserved_sms > 0 {
            format!(", less {} for other kernels", hw.reserved_sms)
        } else {
            String::new()
        };
        let text = format!(
            "rank {rank} has {lanes} lanes, but {} can hold only {} at once (one an SM{left}): the others would never start",
            hw.name,
            hw.lanes()
        );
        findings.push(refuted(Kind::Lanes, Vec::new(), text));
    }
}
