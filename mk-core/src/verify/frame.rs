//! What can be checked before any task is looked at: sizes, streams, lanes.

use super::FindingKind as Kind;
use super::report::{Findings, refuted};
use crate::{Hardware, Program, Queue, Registry};
use std::collections::HashSet;

/// Checks what a program says of itself as a whole.
pub(super) fn check_frame(
    p: &Program,
    registry: &Registry,
    hardware: Option<&Hardware>,
    findings: &mut Findings,
) {
    let mut bad = |kind, text: String| findings.push(refuted(kind, Vec::new(), text));
    if let Err(e) = p.well_formed(registry) {
        bad(Kind::Malformed, e.to_string());
    }
    if let Some(r) = p.regions.iter().find(|r| r.shared && r.depth != 1) {
        bad(
            Kind::Malformed,
            format!("region '{}' is shared and rotates: a shared region has one copy", r.name),
        );
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
