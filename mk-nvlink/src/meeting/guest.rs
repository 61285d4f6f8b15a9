//! The process that comes to a meeting.

use super::Party;
use super::bond::Bond;
use super::life::{Life, Watch};
use super::line::{Line, Packet, Trouble};
use super::message::{Hello, Message};
use super::parcel::Parcel;
use super::place::Place;
use crate::deadline::Deadline;
use crate::error::{Error, Reason};
use crate::heap::Mapped;
use crate::memory::Gpus;
use crate::step::Step;
use mk_core::Rank;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::thread::sleep;
use std::time::Duration;

/// Between two looks whether the host is there.
const PAUSE: Duration = Duration::from_millis(2);

struct Guest<'a> {
    party: &'a Party<'a>,
    line: Line,
    deadline: Deadline,
}

/// Comes to a meeting, and stays until it is over.
pub(crate) fn visit(party: &Party<'_>, place: &Place, deadline: Deadline) -> Result<Bond, Error> {
    party.nvlink.enter(Step::Arrive);
    let line = arrive(place, party.island.host, &deadline)?;
    let guest = Guest { party, line, deadline };
    guest.stay().inspect_err(|e| guest.complain(e))
}

/// Connects as soon as the host is there.
fn arrive(place: &Place, host: Rank, deadline: &Deadline) -> Result<Line, Error> {
    let path = place.socket.display().to_string();
    let system = |e| Error::system(format!("a connection to {path}"), e);
    loop {
        if let Some(line) = Line::open(&place.address).map_err(system)? {
            if line.same_user().map_err(system)? {
                return Ok(line);
            }
            return Err(Error::Taken { path, found: "a process of another user waits there" });
        }
        if deadline.left().is_zero() {
            return Err(Error::Missing { ranks: vec![host], bound: deadline.bound() });
        }
        sleep(PAUSE.min(deadline.left()));
    }
}

impl Guest<'_> {
    fn stay(&self) -> Result<Bond, Error> {
        let Party { nvlink, meeting, island, purpose } = self.party;
        nvlink.enter(Step::Greet);
        let patience_ms = u64::try_from(self.deadline.left().as_millis()).unwrap_or(u64::MAX);
        let hello = Hello { purpose: purpose.clone(), ranks: island.own.clone(), patience_ms };
        self.say(&Message::Hello(hello), &[], Step::Greet)?;

        nvlink.enter(Step::Make);
        let gpus = Gpus::open(meeting)?;
        let mut pieces = gpus.make(true)?;

        nvlink.enter(Step::Give);
        let life = Life::new().map_err(|e| Error::system("a pipe", e))?;
        let own = Parcel::pack(&gpus, &pieces, &life)?;
        self.say(&own.message(), &own.descriptors(), Step::Give)?;

        nvlink.enter(Step::Take);
        let parcels = self.take_all()?;
        drop(own);

        nvlink.enter(Step::Map);
        for parcel in &parcels {
            pieces.extend(parcel.map(&gpus)?);
        }

        nvlink.enter(Step::Report);
        self.say(&Message::Done, &[], Step::Verdict)?;

        nvlink.enter(Step::Verdict);
        match self.hear(Step::Verdict)?.message {
            Message::Verdict(None) => {}
            _ => return Err(self.garbled(Step::Verdict, "it is another message than was due".into())),
        }
        let signs = parcels.into_iter().map(|p| (p.given[0].rank, p.sign)).collect();
        Ok(Bond { mapped: Mapped::new(pieces), watch: Watch::new(signs), life: Some(life) })
    }

    /// What all others give.
    fn take_all(&self) -> Result<Vec<Parcel>, Error> {
        let mut missing: BTreeSet<Rank> = self.party.island.others.clone();
        let mut parcels = Vec::new();
        while !missing.is_empty() {
            let packet = self.hear(Step::Take)?;
            let parcel = Parcel::unpack(packet, self.party.meeting.bytes)
                .map_err(|what| self.garbled(Step::Take, what))?;
            for rank in parcel.ranks() {
                if !missing.remove(&rank) {
                    return Err(self.garbled(Step::Take, format!("memory of {rank}, which was not due")));
                }
            }
            parcels.push(parcel);
        }
        Ok(parcels)
    }

    fn say(&self, message: &Message, descriptors: &[BorrowedFd<'_>], step: Step) -> Result<(), Error> {
        match self.line.send(message, descriptors, &self.deadline) {
            Ok(()) => Ok(()),
            Err(Trouble::Ended) => Err(self.last_words(step)),
            Err(trouble) => Err(trouble.of(self.party.island.host, step, &self.deadline)),
        }
    }

    /// What the host says next; an error if that is that it is over.
    fn hear(&self, step: Step) -> Result<Packet, Error> {
        match self.line.receive(&self.deadline) {
            Ok(Packet { message: Message::Verdict(Some(reason)), .. }) => {
                Err(Error::Elsewhere(Box::new(reason)))
            }
            Ok(packet) => Ok(packet),
            Err(trouble) => Err(trouble.of(self.party.island.host, step, &self.deadline)),
        }
    }

    /// The host has hung up. What it said before that tells why.
    fn last_words(&self, step: Step) -> Error {
        while let Ok(Some(packet)) = self.line.take() {
            if let Message::Verdict(Some(reason)) = packet.message {
                return Error::Elsewhere(Box::new(reason));
            }
        }
        Trouble::Ended.of(self.party.island.host, step, &self.deadline)
    }

    fn garbled(&self, step: Step, what: String) -> Error {
        Trouble::Garbled(what).of(self.party.island.host, step, &self.deadline)
    }

    /// Tells the host, who tells the others, what went wrong here.
    fn complain(&self, e: &Error) {
        if !matches!(e, Error::Elsewhere(_)) {
            let reason = Reason::of(e, self.party.island.own[0]);
            // If it does not arrive, the host sees that this process has hung up.
            let _ = self.line.send(&Message::Failed(reason), &[], &self.deadline);
        }
    }
}
