//! Memory of a program: what peers reach, at the same offsets on every rank, and what only one rank has.

use super::place::Place;
use super::tables::copy_bytes;
use super::{Limits, refused};
use crate::abi;
use crate::driver::{self, DeviceMemory, ForeignMemory};
use mk_core::{
    Error as Refused, Heap, Io, Meeting, Program, Rank, Region, RegionKind, Registry, RunError, Verified,
};
use std::path::Path;
use std::time::Duration;

/// Regions begin at multiples of this: a line of the L2, and more than TMA wants.
const ALIGN: u64 = 256;

/// Where things lie in a rank's part of the symmetric memory. The fault record is first.
pub(super) struct Layout {
    pub(super) signals: u64,
    /// By region; none for one that peers do not reach.
    pub(super) regions: Vec<Option<u64>>,
    bytes: u64,
}

impl Layout {
    pub(super) fn of(program: &Program) -> Layout {
        let signals = (size_of::<abi::Fault>() as u64).next_multiple_of(ALIGN);
        let mut next = signals.saturating_add(program.words() * 8);
        let mut place = |region: &Region| {
            (region.kind != RegionKind::Bound).then(|| {
                let at = next.next_multiple_of(ALIGN);
                next = at.saturating_add(region_bytes(region));
                at
            })
        };
        let regions = program.regions.iter().map(&mut place).collect();
        Layout { signals, regions, bytes: next }
    }
}

/// Bytes of all copies of a region.
pub(super) fn region_bytes(region: &Region) -> u64 {
    copy_bytes(region).saturating_mul(region.depth.into())
}

/// Symmetric memory: a transport's, or where all ranks are on one GPU of this process, its own.
pub(super) enum Symmetric {
    Peers(Box<dyn Heap>),
    Own(Vec<DeviceMemory>),
}

impl Symmetric {
    /// Takes it, together with all processes of the world.
    pub(super) fn new(
        verified: &Verified,
        registry: &Registry,
        places: &[Place],
        limits: &Limits,
        (generation, folder): (u64, Option<&Path>),
        layout: &Layout,
    ) -> Result<Symmetric, RunError> {
        let own: Vec<(Rank, u32)> = places
            .iter()
            .flat_map(|p| p.ranks.iter().map(|&r| (r, p.device().facts().ordinal as u32)))
            .collect();
        let meeting = Meeting {
            topology: registry.topology().clone(),
            own,
            folder: folder.map(Path::to_owned),
            key: if folder.is_some() { key(verified, registry, generation)? } else { [0; 32] },
            bytes: layout.bytes,
            bound: Duration::from_micros(limits.connect_us),
        };
        meeting.check()?;
        if let Some(heap) = registry.connect(&meeting)? {
            return Ok(Symmetric::Peers(heap));
        }
        match places {
            [place] if place.ranks.len() as u64 == u64::from(registry.world().size()) => {
                own_memory(place, layout.bytes).map_err(refused).map(Symmetric::Own)
            }
            _ => Err(Refused::input(
                "no transport makes memory that peers reach",
                registry.transports().collect::<Vec<_>>().join(", "),
                "a transport that does, such as mk_nvlink::NvLink; or all ranks on one GPU of one process",
                "register it",
            )
            .into()),
        }
    }

    /// Where the part of a rank begins; 0 if it is out of reach.
    pub(super) fn address(&self, rank: Rank) -> u64 {
        match self {
            Symmetric::Peers(heap) => heap.address(rank).unwrap_or(0),
            Symmetric::Own(own) => own.get(rank.index()).map_or(0, driver::Memory::address),
        }
    }

    /// A rank whose process has ended, as far as this one knows.
    pub(super) fn lost(&self) -> Option<Rank> {
        match self {
            Symmetric::Peers(heap) => heap.lost(),
            Symmetric::Own(_) => None,
        }
    }
}

fn own_memory(place: &Place, bytes: u64) -> Result<Vec<DeviceMemory>, driver::Error> {
    let part = |_: &Rank| {
        let memory = DeviceMemory::new(&place.context, bytes)?;
        place.stream.fill(&memory, 0)?;
        Ok(memory)
    };
    place.ranks.iter().map(part).collect()
}

/// What a meeting is about: the same program, of the same registry, in the same generation.
fn key(verified: &Verified, registry: &Registry, generation: u64) -> Result<[u8; 32], RunError> {
    let program = verified.program().hash(registry)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(program.as_bytes()).update(&generation.to_le_bytes());
    Ok(*hasher.finalize().as_bytes())
}

/// A piece of a rank's symmetric memory.
///
/// # Safety
/// `address` is where the rank's part begins, `at` an offset of the layout that it was taken with.
#[allow(unsafe_code, reason = "a transport's memory is known by its address only")]
pub(super) unsafe fn piece(address: u64, at: u64, bytes: u64) -> ForeignMemory {
    // SAFETY: the caller's promise.
    unsafe { ForeignMemory::at(address + at, bytes) }
}

/// NaN in all types of numbers, so that what is read and was never written is seen; zeros where a program goes on from the last
/// run.
pub(super) fn poison(io: Io) -> u8 {
    if io == Io::InOut { 0 } else { 0xff }
}
