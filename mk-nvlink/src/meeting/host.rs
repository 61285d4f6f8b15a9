//! The process that the others come to.

use super::Party;
use super::bond::Bond;
use super::life::{Life, Watch};
use super::line::{Line, Packet, Trouble};
use super::message::{Hello, Message};
use super::parcel::Parcel;
use super::place::Place;
use super::poll::ready;
use super::seat::Seat;
use crate::deadline::Deadline;
use crate::error::{Error, Reason};
use crate::heap::Mapped;
use crate::memory::Gpus;
use crate::step::Step;
use mk_core::Rank;
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeSet;
use std::time::Duration;

/// Most connections that have not said who they are. Beyond it, the oldest is let go: it is none of ours, which say so at once.
const MOST_UNKNOWN: usize = 128;

struct Host<'a> {
    party: &'a Party<'a>,
    /// Until all have come.
    seat: Option<Seat>,
    /// Ranks that have not come.
    absent: BTreeSet<Rank>,
    /// Connections that have not said who they are.
    unknown: Vec<Line>,
    guests: Vec<Guest>,
    deadline: Deadline,
}

/// A process that came.
struct Guest {
    /// Its first rank.
    rank: Rank,
    ranks: Vec<Rank>,
    line: Line,
    parcel: Option<Parcel>,
    done: bool,
}

/// Holds a meeting.
pub(crate) fn host(party: &Party<'_>, place: &Place, deadline: Deadline) -> Result<Bond, Error> {
    party.nvlink.enter(Step::Arrive);
    let seat = Some(Seat::take(place, &deadline)?);
    let absent = party.island.others.clone();
    let mut host = Host { party, seat, absent, unknown: Vec::new(), guests: Vec::new(), deadline };
    host.hold().inspect_err(|e| host.dismiss(e))
}

impl Host<'_> {
    fn hold(&mut self) -> Result<Bond, Error> {
        let Party { nvlink, meeting, .. } = self.party;
        nvlink.enter(Step::Greet);
        self.until(Step::Greet, |_| true)?;
        // Whoever comes now comes to another meeting.
        self.seat = None;
        self.unknown.clear();

        nvlink.enter(Step::Make);
        let gpus = Gpus::open(meeting)?;
        let mut pieces = gpus.make(true)?;

        nvlink.enter(Step::Give);
        let life = Life::new().map_err(|e| Error::system("a pipe", e))?;
        let own = Parcel::pack(&gpus, &pieces, &life)?;
        self.until(Step::Give, |guest| guest.parcel.is_some())?;

        nvlink.enter(Step::Take);
        self.pass_on(&own)?;
        drop(own);

        nvlink.enter(Step::Map);
        for parcel in self.guests.iter().filter_map(|g| g.parcel.as_ref()) {
            pieces.extend(parcel.map(&gpus)?);
        }

        nvlink.enter(Step::Report);
        self.until(Step::Report, |guest| guest.done)?;

        nvlink.enter(Step::Verdict);
        self.tell(&Message::Verdict(None));
        let signs = self.guests.drain(..).filter_map(|g| Some((g.rank, g.parcel?.sign))).collect();
        Ok(Bond { mapped: Mapped::new(pieces), watch: Watch::new(signs), life: Some(life) })
    }

    /// Listens until all have come and done what they are to do in this step.
    fn until(&mut self, step: Step, has: fn(&Guest) -> bool) -> Result<(), Error> {
        loop {
            self.let_in()?;
            self.greet()?;
            for guest in &mut self.guests {
                guest.hear(step, self.party.meeting.bytes, &self.deadline)?;
            }
            if self.absent.is_empty() && self.guests.iter().all(has) {
                return Ok(());
            }
            if !self.wait(&self.deadline.early())? {
                return Err(self.too_late(step, has));
            }
        }
    }

    fn too_late(&self, step: Step, has: fn(&Guest) -> bool) -> Error {
        let bound = self.deadline.bound();
        let idle = self.guests.iter().find(|g| !has(g));
        match idle {
            Some(guest) if self.absent.is_empty() => Error::Late { rank: guest.rank, step, bound },
            _ => Error::Missing { ranks: self.absent.iter().copied().collect(), bound },
        }
    }

    /// Waits until somebody says something.
    fn wait(&self, deadline: &Deadline) -> Result<bool, Error> {
        let seat = self.seat.iter().map(|s| PollFd::new(s, PollFlags::IN));
        let unknown = self.unknown.iter().map(|l| PollFd::new(l, PollFlags::IN));
        let guests = self.guests.iter().map(|g| PollFd::new(&g.line, PollFlags::IN));
        let mut all: Vec<PollFd<'_>> = seat.chain(unknown).chain(guests).collect();
        ready(&mut all, deadline).map_err(|e| Error::system("to wait for the others", e))
    }

    fn let_in(&mut self) -> Result<(), Error> {
        while let Some(line) = self.seat.as_ref().map_or(Ok(None), Seat::next)? {
            self.unknown.push(line);
            if self.unknown.len() > MOST_UNKNOWN {
                self.unknown.remove(0);
            }
        }
        Ok(())
    }

    /// Hears who those are that have come.
    fn greet(&mut self) -> Result<(), Error> {
        let mut waiting = std::mem::take(&mut self.unknown).into_iter();
        while let Some(line) = waiting.next() {
            if let Err(e) = self.hear_first(line) {
                self.unknown.extend(waiting);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Hears who somebody is. Strangers are let go; who came for something else is an error.
    fn hear_first(&mut self, line: Line) -> Result<(), Error> {
        match line.take() {
            Ok(None) => self.unknown.push(line),
            Ok(Some(Packet { message: Message::Hello(hello), .. })) => self.welcome(line, hello)?,
            Err(trouble @ Trouble::Version(_)) => {
                let host = self.party.island.host;
                self.guests.push(Guest::new(line, Vec::new(), host));
                return Err(trouble.of(host, Step::Greet, &self.deadline));
            }
            Ok(Some(_)) | Err(_) => {}
        }
        Ok(())
    }

    /// Takes up somebody who said who it is.
    fn welcome(&mut self, line: Line, hello: Hello) -> Result<(), Error> {
        let Party { island, purpose, .. } = self.party;
        let Some(&rank) = hello.ranks.first() else { return Ok(()) };
        if hello.purpose.key != purpose.key {
            return Ok(());
        }
        self.deadline.no_later_than(Duration::from_millis(hello.patience_ms));
        self.guests.push(Guest::new(line, hello.ranks.clone(), rank));
        let twice = hello.ranks.iter().find(|rank| !self.absent.contains(rank));
        self.absent.retain(|rank| !hello.ranks.contains(rank));
        if let Some((what, given, allowed)) = hello.purpose.differs(purpose) {
            return Err(Error::Mismatch { rank, what, given, host: island.host, allowed });
        }
        twice.map_or(Ok(()), |&rank| Err(Error::Twice { rank }))
    }

    /// Gives to each what the others give.
    fn pass_on(&self, own: &Parcel) -> Result<(), Error> {
        for to in &self.guests {
            let others = self.guests.iter().filter(|g| g.rank != to.rank).filter_map(|g| g.parcel.as_ref());
            for parcel in others.chain([own]) {
                let sent = to.line.send(&parcel.message(), &parcel.descriptors(), &self.deadline.early());
                sent.map_err(|trouble| trouble.of(to.rank, Step::Map, &self.deadline))?;
            }
        }
        Ok(())
    }

    /// Tells all who have come.
    fn tell(&self, message: &Message) {
        for guest in &self.guests {
            // Who has ended, or does not listen, is not told: the others will see it.
            let _ = guest.line.send(message, &[], &self.deadline);
        }
    }

    /// Tells all why it is over; those who have not come yet, too, if they come in time.
    fn dismiss(&mut self, e: &Error) {
        let verdict = Message::Verdict(Some(Reason::of(e, self.party.island.own[0])));
        self.tell(&verdict);
        self.guests.clear();
        while self.seat.is_some() && !self.absent.is_empty() {
            if !self.wait(&self.deadline).unwrap_or(false) || self.let_in().is_err() {
                return;
            }
            for line in std::mem::take(&mut self.unknown) {
                match line.take() {
                    Ok(None) => self.unknown.push(line),
                    Ok(Some(Packet { message: Message::Hello(hello), .. })) => {
                        let _ = line.send(&verdict, &[], &self.deadline);
                        self.absent.retain(|rank| !hello.ranks.contains(rank));
                    }
                    Ok(Some(_)) | Err(_) => {}
                }
            }
        }
    }
}

impl Guest {
    fn new(line: Line, ranks: Vec<Rank>, rank: Rank) -> Guest {
        Guest { rank, ranks, line, parcel: None, done: false }
    }

    /// Hears all that it has said.
    fn hear(&mut self, step: Step, bytes: u64, deadline: &Deadline) -> Result<(), Error> {
        loop {
            let heard = self.line.take().map_err(|trouble| trouble.of(self.rank, step, deadline))?;
            let Some(packet) = heard else { return Ok(()) };
            let garbled = |what| Trouble::Garbled(what).of(self.rank, step, deadline);
            match packet.message {
                Message::Failed(reason) => return Err(Error::Elsewhere(Box::new(reason))),
                Message::Done if self.parcel.is_some() && !self.done => self.done = true,
                Message::Given(_) if self.parcel.is_none() => {
                    let parcel = Parcel::unpack(packet, bytes).map_err(garbled)?;
                    if !parcel.ranks().eq(self.ranks.iter().copied()) {
                        return Err(garbled("memory of other ranks than its own".into()));
                    }
                    self.parcel = Some(parcel);
                }
                _ => return Err(garbled("it is another message than was due".into())),
            }
        }
    }
}
