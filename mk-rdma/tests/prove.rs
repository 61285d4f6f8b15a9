//! Programs over a network: what is proved, and what is refuted without its signals.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use mk_core::*;
use mk_rdma::Rdma;

const ROWS: u64 = 4;
const COLS: u64 = 16;

fn registry(nodes: u64, rdma: Rdma) -> Registry {
    let world = World::of(Topology::uniform(nodes, nodes, 1).unwrap());
    Registry::builder().transport(rdma).build(&world).unwrap()
}

fn networks() -> [Rdma; 2] {
    [Rdma::ordered(), Rdma::unordered()]
}

/// A whole matrix from `src` to `dst`, which is on `peer`.
fn whole(src: RegionId, dst: RegionId, peer: Rank) -> CopyArgs {
    let (rows, cols) = (ROWS as u32, COLS as u32);
    CopyArgs { src, dst, peer, units: 2, src_row: 0, src_col: 0, dst_row: 0, dst_col: 0, rows, cols }
}

const LANE: Queue = Queue::Lane(Lane(0));

/// Rank 0's sum of all ranks' matrices, in rank order: it starts with its own, every other rank adds its own when the one
/// before has, and rank 0 copies the sum out. `chained`: each rank waits for its turn.
fn sum(registry: &Registry, chained: bool) -> Program {
    let shape = || Shape::Uniform([ROWS, COLS]);
    let mut b = ProgramBuilder::new("sum", registry);
    let x = b.region(Region::input("x", DType::F32, shape())).unwrap();
    let sum = b.region(Region::heap("sum", DType::F32, shape())).unwrap();
    let only_rank_0 =
        (0..registry.world().size()).map(|r| if r == 0 { [ROWS, COLS] } else { [0, 0] }).collect();
    let out = b.region(Region::output("out", DType::F32, Shape::PerRank(only_rank_0))).unwrap();
    let [copy, add, signal] =
        ["put_signal", "reduce_put", "signal"].map(|op| b.op(&format!("rdma.{op}")).unwrap());
    let label = b.label("start");
    let mut last = b.task(Rank(0), LANE, copy, label, &whole(x, sum, Rank(0))).unwrap();
    for r in 1..registry.world().size() as u16 {
        let label = b.label(format!("add of rank {r}"));
        let next = b.task(Rank(r), LANE, add, label, &whole(x, sum, Rank(0))).unwrap();
        if chained {
            // A put raises words only where its data goes; the turn is passed on by a task of its own.
            let (from, label) = (Rank(r - 1), b.label(format!("turn of rank {r}")));
            let pass = b.task(from, LANE, signal, label, &SyncArgs { peer: Rank(r) }).unwrap();
            b.edge(&[last], pass).unwrap();
            b.edge(&[pass], next).unwrap();
        }
        last = next;
    }
    let label = b.label("copy out");
    let copied = b.task(Rank(0), LANE, copy, label, &whole(sum, out, Rank(0))).unwrap();
    b.edge(&[last], copied).unwrap();
    b.finish().unwrap()
}

#[test]
fn a_sum_in_rank_order_is_proved_on_every_network_without_nic_atomics() {
    for rdma in networks() {
        for nodes in [2, 3, 5] {
            let registry = registry(nodes, rdma);
            let proof = sum(&registry, true)
                .verify(&registry, &Hardware::h200())
                .unwrap_or_else(|e| panic!("{e}"))
                .proof();
            assert_eq!(proof.tasks, 2 * nodes, "a copy in, {nodes} - 1 turns and adds, a copy out");
        }
    }
}

#[test]
fn two_adds_without_an_order_are_refuted_by_name() {
    for rdma in networks() {
        let registry = registry(3, rdma);
        let Err(Error::NotProved { finding, .. }) =
            sum(&registry, false).verify(&registry, &Hardware::h200())
        else {
            panic!("the adds of ranks 1 and 2 race")
        };
        assert_eq!(finding.verdict, Verdict::Refuted);
        assert!(finding.tasks.iter().any(|t| t.starts_with("add of rank")), "{finding:?}");
    }
}
