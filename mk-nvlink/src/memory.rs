//! Memory of this process's ranks, and of others.

use crate::error::Error;
use mk_core::{Meeting, Rank};
use mk_cuda::{Allocation, Context, Device, Driver, Mapping, Stream};
use std::collections::{BTreeMap, btree_map::Entry};
use std::os::fd::BorrowedFd;

/// Memory of a rank, mapped.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) rank: Rank,
    pub(crate) mapping: Mapping,
}

/// The GPUs of this process's ranks.
pub(crate) struct Gpus<'a> {
    meeting: &'a Meeting,
    /// All that this process may use.
    devices: Vec<Device>,
    /// By ordinal.
    contexts: BTreeMap<u32, Context>,
}

/// What the driver refused to a rank.
fn of(rank: Rank) -> impl Fn(mk_cuda::Error) -> Error {
    move |source| Error::Driver { rank, source }
}

impl<'a> Gpus<'a> {
    /// Finds the driver, and holds the primary contexts.
    pub(crate) fn open(meeting: &'a Meeting) -> Result<Gpus<'a>, Error> {
        let first = meeting.own[0].0;
        let devices = Driver::find().and_then(|driver| driver.devices()).map_err(of(first))?;
        let mut contexts = BTreeMap::new();
        for &(rank, ordinal) in &meeting.own {
            if let Entry::Vacant(place) = contexts.entry(ordinal) {
                place.insert(context(&devices, ordinal).map_err(of(rank))?);
            }
        }
        let gpus = Gpus { meeting, devices, contexts };
        gpus.check_own_atomics()?;
        Ok(gpus)
    }

    /// Memory for each rank of this process, all 0, the lowest rank first. If it is `shared`, other processes can take it.
    pub(crate) fn make(&self, shared: bool) -> Result<Vec<Piece>, Error> {
        let make = |rank, ordinal| {
            let context = &self.contexts[ordinal];
            let new = if shared { Allocation::shared } else { Allocation::new };
            let mapping = new(context, self.meeting.bytes)?.map(&self.reaching(rank))?;
            Stream::new(context)?.fill(&mapping, 0)?;
            Ok(Piece { rank, mapping })
        };
        let by_rank: BTreeMap<&Rank, &u32> = self.meeting.own.iter().map(|(rank, o)| (rank, o)).collect();
        by_rank.into_iter().map(|(rank, ordinal)| make(*rank, ordinal).map_err(of(*rank))).collect()
    }

    /// Memory of another process's rank, of so many bytes.
    pub(crate) fn take(&self, rank: Rank, from: BorrowedFd<'_>, bytes: u64) -> Result<Piece, Error> {
        let reaching = self.reaching(rank);
        let take = || {
            let mapping = Allocation::import(reaching[0], from, bytes)?.map(&reaching)?;
            Ok(Piece { rank, mapping })
        };
        take().map_err(of(self.meeting.own[0].0))
    }

    /// The GPU of a rank of this process, by the name that all processes know it by.
    pub(crate) fn uuid(&self, rank: Rank) -> String {
        let own = self.meeting.own.iter().find(|(own, _)| *own == rank);
        own.map_or_else(String::new, |(_, ordinal)| self.contexts[ordinal].device().facts().uuid.clone())
    }

    /// Checks that the GPUs of this process have atomics at the memory of this one, if they see it: what CUDA_VISIBLE_DEVICES
    /// hides is not known.
    pub(crate) fn check_atomics(&self, rank: Rank, uuid: &str) -> Result<(), Error> {
        let Some(owner) = self.devices.iter().find(|d| d.facts().uuid == uuid) else { return Ok(()) };
        let check = |context: &&Context| atomics(context.device(), owner);
        self.reaching(rank).iter().try_for_each(check).map_err(of(self.meeting.own[0].0))
    }

    fn check_own_atomics(&self) -> Result<(), Error> {
        self.meeting.own.iter().try_for_each(|(rank, _)| self.check_atomics(*rank, &self.uuid(*rank)))
    }

    /// The GPUs of this process whose ranks reach the memory of `rank`, each once.
    fn reaching(&self, rank: Rank) -> Vec<&Context> {
        let mapped = |own: &Rank| self.meeting.topology.mapped(*own, rank);
        let reaches = |ordinal: &u32| self.meeting.own.iter().any(|(own, o)| o == ordinal && mapped(own));
        self.contexts.iter().filter(|(ordinal, _)| reaches(ordinal)).map(|(_, context)| context).collect()
    }
}

fn context(devices: &[Device], ordinal: u32) -> Result<Context, mk_cuda::Error> {
    let ordinal = ordinal as usize;
    let missing = mk_cuda::Error::NoSuchDevice { ordinal, devices: devices.len() };
    devices.get(ordinal).ok_or(missing)?.context()
}

/// Signals are raised by atomics. Where the driver says no to all access, the mapping itself will tell why.
fn atomics(from: &Device, owner: &Device) -> Result<(), mk_cuda::Error> {
    let peer = from.peer(owner)?;
    if peer.atomics || !peer.access {
        return Ok(());
    }
    Err(mk_cuda::Error::Lacks {
        device: from.to_string(),
        what: format!("atomics at the memory of {owner}"),
        found: "no".into(),
        needed: "that".into(),
    })
}
