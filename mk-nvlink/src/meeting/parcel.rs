//! What one process gives to the others.

use super::life::Life;
use super::line::Packet;
use super::message::{Given, Message};
use crate::error::Error;
use crate::memory::{Gpus, Piece};
use mk_core::Rank;
use mk_cuda::Memory as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Memory by rank, and a sign of life.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) given: Vec<Given>,
    /// One for each that is given.
    pub(crate) memory: Vec<OwnedFd>,
    pub(crate) sign: OwnedFd,
}

impl Parcel {
    /// This process's.
    pub(crate) fn pack(gpus: &Gpus<'_>, pieces: &[Piece], life: &Life) -> Result<Parcel, Error> {
        let given = |p: &Piece| Given { rank: p.rank, bytes: p.mapping.bytes(), gpu: gpus.uuid(p.rank) };
        let export = |p: &Piece| {
            let exported = p.mapping.allocation().export();
            exported.map_err(|source| Error::Driver { rank: p.rank, source })
        };
        let sign = life.sign().map_err(|e| Error::system("another end of a pipe", e))?;
        let memory = pieces.iter().map(export).collect::<Result<_, _>>()?;
        Ok(Parcel { given: pieces.iter().map(given).collect(), memory, sign })
    }

    /// Another process's, of a size that all have agreed on.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn unpack(packet: Packet, bytes: u64) -> Result<Parcel, String> {
        let Packet { message: Message::Given(given), mut descriptors } = packet else {
            return Err("it is another message than was due".into());
        };
        if given.is_empty() || descriptors.len() != given.len() + 1 {
            return Err(format!("{} descriptors for {} ranks", descriptors.len(), given.len()));
        }
        if let Some(small) = given.iter().find(|g| g.bytes < bytes) {
            return Err(format!("memory of {} bytes for {}, not {bytes}", small.bytes, small.rank));
        }
        let sign = descriptors.pop().ok_or("no sign of life")?;
        Ok(Parcel { given, memory: descriptors, sign })
    }

    pub(crate) fn message(&self) -> Message {
        Message::Given(self.given.clone())
    }

    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.memory.iter().chain([&self.sign]).map(|d| d.as_fd()).collect()
    }

    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.given.iter().map(|g| g.rank)
    }

    /// Maps what is in it.
    pub(crate) fn map(&self, gpus: &Gpus<'_>) -> Result<Vec<Piece>, Error> {
        let map = |(given, memory): (&Given, &OwnedFd)| {
            gpus.check_atomics(given.rank, &given.gpu)?;
            gpus.take(given.rank, memory.as_fd(), given.bytes)
        };
        self.given.iter().zip(&self.memory).map(map).collect()
    }
}
