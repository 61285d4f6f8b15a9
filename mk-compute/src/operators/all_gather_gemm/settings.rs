//! What a plan can be like.

use mk_core::Error;
use std::fmt;
use std::str::FromStr;

/// When tiles start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plan {
    /// A tile starts when the first K slice of its rows has arrived; tiles of the rank's own rows start at once. No tile
    /// crosses the border of a shard.
    Fused,
    /// Every tile starts when all rows have arrived: two kernels, one after the other. Tiles cross borders of shards, so there
    /// may be fewer of them.
    Unfused,
}

/// Who moves the rows of a rank to its neighbours on the same NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gather {
    /// Their rank writes them into its peers' memory.
    Push,
    /// The peers read them from their rank's memory, which must then be on the symmetric heap.
    Pull,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Plan::Fused => "fused",
            Plan::Unfused => "unfused",
        })
    }
}

impl fmt::Display for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Gather::Push => "push",
            Gather::Pull => "pull",
        })
    }
}

impl FromStr for Plan {
    type Err = Error;
    fn from_str(s: &str) -> Result<Plan, Error> {
        named(s, [Plan::Fused, Plan::Unfused], "plan")
    }
}

impl FromStr for Gather {
    type Err = Error;
    fn from_str(s: &str) -> Result<Gather, Error> {
        named(s, [Gather::Push, Gather::Pull], "gather")
    }
}

fn named<T: fmt::Display, const N: usize>(s: &str, all: [T; N], what: &str) -> Result<T, Error> {
    let names = all.iter().map(T::to_string).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|x| x.to_string() == s).ok_or_else(|| {
        Error::input(format!("unknown {what}"), s, names, format!("name one of the allowed {what}s"))
    })
}

/// Everything that a planner decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// When tiles start.
    pub plan: Plan,
    /// Who moves rows inside an NVLink group.
    pub gather: Gather,
    /// Lanes of each rank.
    pub lanes: u16,
    /// Those of them whose comm streams move rows inside an NVLink group. Fewer keep the rows closer to their order: what is
    /// multiplied first arrives first.
    pub comm_lanes: u16,
    /// Those of them whose comm streams send to other NVLink groups.
    pub network_lanes: u16,
    /// K slices of a row block: each is sent, and waited for, by itself.
    pub slices: u16,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { plan, gather, lanes, comm_lanes, network_lanes, slices } = self;
        write!(
            f,
            "{plan}, {gather}, {slices} slices, {lanes} lanes ({comm_lanes} move rows, {network_lanes} send)"
        )
    }
}
