//! What is random about a program.

use super::Rng;
use proptest::prelude::*;

/// The parameters of a random program. Any values give a program; smaller ones give a smaller one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Ranks of each node; nodes with none are left out.
    pub nodes: Vec<u32>,
    /// Row chunks of each tensor, by their rows.
    pub chunks: Vec<u32>,
    /// Columns, in units of 8.
    pub units: u32,
    /// Number of stages between input and output.
    pub stages: u32,
    /// Lanes of each rank.
    pub lanes: u16,
    /// Whether compute tasks are claimed from a ticket queue.
    pub ticket: bool,
    /// Whether the network keeps order.
    pub ordered: bool,
    /// Most rotating copies of a tensor.
    pub depth: u32,
    /// All that is chosen beyond this.
    pub seed: u64,
}

impl Params {
    /// Parameters that are all drawn from one number.
    pub fn from_seed(seed: u64) -> Params {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let nodes = 1 + rng.below(3);
        let most = 8 / nodes;
        Params {
            nodes: (0..nodes).map(|_| 1 + rng.below(most) as u32).collect(),
            chunks: (0..1 + rng.below(3)).map(|_| 1 + rng.below(3) as u32).collect(),
            units: 1 + rng.below(3) as u32,
            stages: rng.below(6) as u32,
            lanes: 1 + rng.below(3) as u16,
            ticket: rng.chance(25),
            ordered: rng.chance(50),
            depth: 1 + rng.below(3) as u32,
            seed: rng.next(),
        }
    }
}

/// Random parameters, of at most 8 ranks on at most 3 nodes. Shrinks towards one rank and no stages.
pub fn params() -> impl Strategy<Value = Params> {
    let world = prop::collection::vec(1u32..=8, 1..=3).prop_map(|mut nodes| {
        let most = 8 / nodes.len() as u32;
        nodes.iter_mut().for_each(|n| *n = (*n).min(most));
        nodes
    });
    let sizes = (prop::collection::vec(1u32..=3, 1..=3), 1u32..=3, 0u32..=6);
    (world, sizes, (1u16..=3, any::<bool>(), any::<bool>()), 1u32..=3, any::<u64>()).prop_map(
        |(nodes, (chunks, units, stages), (lanes, ticket, ordered), depth, seed)| Params {
            nodes,
            chunks,
            units,
            stages,
            lanes,
            ticket,
            ordered,
            depth,
            seed,
        },
    )
}
