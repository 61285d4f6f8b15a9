//! Who meets.

use crate::error::Error;
use mk_core::{Error as Refused, Meeting, Rank};
use std::collections::BTreeSet;

/// Most ranks of one process, where there are others: so many descriptors go into one message.
pub(crate) const MOST_RANKS: usize = 64;

/// The ranks whose memory is mapped into that of this process's ranks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Island {
    /// The lowest of all of them.
    pub(crate) host: Rank,
    /// This process's, the lowest first.
    pub(crate) own: Vec<Rank>,
    /// Those of other processes.
    pub(crate) others: BTreeSet<Rank>,
}

impl Island {
    /// Of a meeting that can be.
    pub(crate) fn of(meeting: &Meeting) -> Result<Island, Error> {
        let topology = &meeting.topology;
        let mut own: Vec<Rank> = meeting.own.iter().map(|(rank, _)| *rank).collect();
        own.sort();
        let groups: BTreeSet<u32> = own.iter().map(|r| topology.group_of(*r)).collect();
        let ranks = topology.ranks().filter(|r| groups.contains(&topology.group_of(*r)));
        let ranks: BTreeSet<Rank> = ranks.collect();
        let others: BTreeSet<Rank> = ranks.iter().copied().filter(|r| !own.contains(r)).collect();
        if !others.is_empty() {
            of_one_island(groups.len(), own.len())?;
        }
        Ok(Island { host: *ranks.first().unwrap_or(&own[0]), own, others })
    }

    /// Whether this process is the one that the others come to.
    pub(crate) fn is_host(&self) -> bool {
        self.own[0] == self.host
    }
}

fn of_one_island(islands: usize, ranks: usize) -> Result<(), Error> {
    let refuse = |message: &str, given: String, allowed: String, hint: &str| {
        Err(Refused::input(message, given, allowed, hint).into())
    };
    if islands > 1 {
        return refuse(
            "a process has ranks of several islands, and not all of them",
            format!("ranks of {islands} islands"),
            "ranks of one island, or whole islands".into(),
            "start a process for each island",
        );
    }
    if ranks > MOST_RANKS {
        return refuse(
            "a process has too many ranks",
            format!("{ranks} ranks"),
            format!("at most {MOST_RANKS}, where other processes have some, too"),
            "start more processes",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::Topology;
    use std::time::Duration;

    fn island(own: &[u16]) -> Result<Island, Error> {
        // Two nodes: rank 0 with 2, rank 1 with 3; all of 4, 5.
        let text =
            "[[node]]\nranks = 4\nnics = 1\nnvlink = [[0, 2], [1, 3]]\n[[node]]\nranks = 2\nnics = 1\n";
        let topology = Topology::from_toml(text).unwrap();
        let own = own.iter().map(|&r| (Rank(r), 0)).collect();
        let bound = Duration::from_secs(1);
        Island::of(&Meeting { topology, own, folder: None, key: [0; 32], bytes: 1, bound })
    }

    #[test]
    fn those_meet_that_are_mapped_into_each_other() {
        let of = |host: u16, own: &[u16], others: &[u16]| Island {
            host: Rank(host),
            own: own.iter().map(|r| Rank(*r)).collect(),
            others: others.iter().map(|r| Rank(*r)).collect(),
        };
        assert_eq!(island(&[2]).unwrap(), of(0, &[2], &[0]));
        assert_eq!(island(&[1]).unwrap(), of(1, &[1], &[3]));
        assert_eq!(island(&[5]).unwrap(), of(4, &[5], &[4]));
        // Whole islands need nobody else.
        assert_eq!(island(&[3, 2, 1, 0]).unwrap(), of(0, &[0, 1, 2, 3], &[]));
        let e = island(&[0, 1]).unwrap_err().to_string();
        assert!(e.contains("ranks of 2 islands"), "{e}");
    }
}
