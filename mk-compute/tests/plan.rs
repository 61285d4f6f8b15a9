//! What AllGather + GEMM plans: every tile once, every row block moved once, no wait too few and none too many.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::inspect::{Inspected, Kind};
use common::worlds;
use mk_compute::{AllGatherGemm, Gather, Plan, handlers};
use mk_core::{
    Bindings, DType, Error, Hardware, Lane, Program, Queue, Rank, Rect, Registry, RegistryBuilder, Session,
    Stream, Topology, Verified, World,
};
use mk_nvlink::NvLink;
use mk_rdma::Rdma;
use mk_sim::{Checks, Mode, Simulator};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

const PLANS: [Plan; 2] = [Plan::Fused, Plan::Unfused];
const GATHERS: [Gather; 2] = [Gather::Push, Gather::Pull];

fn inspected(op: AllGatherGemm, registry: &Registry) -> Inspected {
    Inspected::new(op, registry.topology().ranks().collect(), registry)
}

/// Plans, checks and proves every shape, with both plans, both ways to gather, and few and many lanes in turn.
fn check_everything(registry: &Registry) {
    let mut lanes = [1, 5, 132].into_iter().cycle();
    for m in [0, 1, 127, 128, 129, 257, 520] {
        for (n, k) in [(0, 64), (8, 8), (264, 0), (264, 192), (576, 320), (2200, 1024)] {
            for (plan, gather) in PLANS.into_iter().flat_map(|p| GATHERS.map(|g| (p, g))) {
                let op = AllGatherGemm::new(m, n, k, DType::Bf16).lanes(lanes.next().unwrap());
                let plan = inspected(op.plan_kind(plan).gather(gather), registry);
                plan.check();
                proved(plan.program, registry);
            }
        }
    }
}

fn proved(program: Program, registry: &Registry) -> Verified {
    program.verify(registry, &Hardware::h200()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn one_node_is_tiled_once_and_proved() {
    for world in [1, 2, 3, 5, 6, 8] {
        check_everything(&worlds::local(world));
    }
}

#[test]
fn even_nodes_are_tiled_once_and_proved() {
    for (nodes, ranks) in [(2, 2), (2, 6), (3, 6), (2, 8)] {
        check_everything(&worlds::nodes(nodes, ranks));
    }
}

#[test]
fn uneven_nodes_are_tiled_once_and_proved() {
    for network in [Rdma::ordered(), Rdma::unordered()] {
        check_everything(&worlds::described(worlds::UNEVEN, network));
    }
}

#[test]
fn nvlink_groups_inside_a_node_are_tiled_once_and_proved() {
    check_everything(&worlds::described(worlds::GROUPS, Rdma::ordered()));
}

#[test]
fn dozens_of_ranks_are_tiled_once_and_proved() {
    for (nodes, ranks) in [(3, 24), (4, 32)] {
        let registry = worlds::nodes(nodes, ranks);
        for [m, n, k] in [[1, 8, 64], [129, 264, 192], [32 * 129 + 1, 32 * 8, 320]] {
            for (plan, gather) in PLANS.into_iter().flat_map(|p| GATHERS.map(|g| (p, g))) {
                let op = AllGatherGemm::new(m, n, k, DType::Bf16).plan_kind(plan).gather(gather);
                let plan = inspected(op, &registry);
                plan.check();
                proved(plan.program, &registry);
            }
        }
    }
}

/// The worlds of the property test, by number.
fn some_world(i: usize) -> Registry {
    match i {
        0 => worlds::described(worlds::UNEVEN, Rdma::unordered()),
        1 => worlds::described(worlds::GROUPS, Rdma::ordered()),
        2 => worlds::nodes(3, 12),
        3 => worlds::nodes(4, 4),
        _ => worlds::local(i as u64),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_legal_operator_is_tiled_once_and_proved(
        world in 0usize..10, m in 0u64..1400, n in 0u64..90, k in 0u64..90, lanes in 1u16..=132, comm_lanes in 1u16..20,
        slices in 1u16..12, fused: bool, push: bool,
    ) {
        let (plan, gather) = (if fused { Plan::Fused } else { Plan::Unfused }, if push { Gather::Push } else { Gather::Pull });
        let op = AllGatherGemm::new(m, 8 * n, 8 * k, DType::F16).plan_kind(plan).gather(gather).slices(slices);
        let registry = some_world(world);
        let plan = inspected(op.lanes(lanes).comm_lanes(comm_lanes), &registry);
        plan.check();
        proved(plan.program, &registry);
    }

    #[test]
    fn any_group_of_ranks_is_tiled_once_and_proved(
        world in 0usize..10, order in any::<u64>(), len in 1usize..9, m in 0u64..700, n in 0u64..40, fused: bool, push: bool,
    ) {
        let (plan, gather) = (if fused { Plan::Fused } else { Plan::Unfused }, if push { Gather::Push } else { Gather::Pull });
        let registry = some_world(world);
        let mut ranks: Vec<Rank> = registry.topology().ranks().collect();
        // Any order: by a hash of the rank.
        ranks.sort_by_key(|r| (order ^ u64::from(r.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        ranks.truncate(len);
        let op = AllGatherGemm::new(m, 8 * n, 192, DType::Bf16).plan_kind(plan).gather(gather).lanes(7);
        let plan = Inspected::new(op.group(ranks.clone()), ranks, &registry);
        plan.check();
        proved(plan.program, &registry);
    }
}

/// 24 ranks on three nodes: each of them sends its rows twice, however many ranks need them.
#[test]
fn a_byte_crosses_the_network_once_for_each_node() {
    let [m, n, k] = [24 * 128, 24 * 256, 512];
    let plan = inspected(AllGatherGemm::new(m, n, k, DType::Bf16), &worlds::nodes(3, 24));
    assert_eq!(plan.network_bytes(), 2 * m * k * 2);
    // Columns for the last node alone.
    let plan = inspected(AllGatherGemm::new(m, 8, k, DType::Bf16), &worlds::nodes(3, 24));
    assert_eq!(plan.network_bytes(), m / 3 * 2 * k * 2);
    // Shards go to as many NICs as there are.
    let relays: HashSet<Rank> = plan.of(Kind::Move).filter(|t| t.network).map(|t| t.target().rank).collect();
    assert_eq!(relays, (16..24).map(Rank).collect());
}

#[test]
fn a_rank_multiplies_its_own_rows_first_and_then_those_that_arrive_first() {
    let registry = worlds::local(4);
    let op =
        AllGatherGemm::new(1024, 1024, 256, DType::Bf16).plan_kind(Plan::Fused).gather(Gather::Push).lanes(1);
    let program = op.plan(&registry).unwrap();
    let labels = |rank, stream| -> Vec<&str> {
        let s = program.streams.iter().find(|s| (s.rank, s.stream) == (Rank(rank), stream)).unwrap();
        let mut labels: Vec<_> =
            s.tasks().map(|t| program.labels[program.task(t).label as usize].as_str()).collect();
        labels.dedup();
        labels
    };
    assert_eq!(
        labels(1, Stream::Compute),
        ["tile local", "tile from rank 2", "tile from rank 3", "tile from rank 0"]
    );
    // What rank 1 multiplies first is what is sent to it first.
    assert_eq!(labels(2, Stream::Comm)[0], "push to rank 1");
    // The peers of one round differ, so no two sources share an ingress.
    let rounds: Vec<Vec<&str>> = (0..4).map(|r| labels(r, Stream::Comm)).collect();
    for round in 0..3 {
        let to: HashSet<&str> = rounds.iter().map(|r| r[round]).collect();
        assert_eq!(to.len(), 4);
    }
}

/// How many tasks each stream of a rank has.
fn lengths(program: &Program, rank: u16, stream: Stream) -> Vec<(Queue, u32)> {
    let of = program.streams.iter().filter(|s| (s.rank, s.stream) == (Rank(rank), stream));
    of.map(|s| (s.queue, s.len)).collect()
}

#[test]
fn tasks_are_dealt_evenly_over_the_lanes_that_are_needed() {
    let registry = worlds::local(3);
    let op = AllGatherGemm::new(1000, 1000, 64, DType::Bf16).plan_kind(Plan::Fused).gather(Gather::Push);
    for (op, most) in [
        (op.clone().lanes(7), 7),
        (op.clone(), 132),
        (op.hardware(Hardware { sms: 20, ..Hardware::h200() }), 20),
    ] {
        let program = op.plan(&registry).unwrap();
        for rank in 0..3 {
            for stream in [Stream::Compute, Stream::Comm] {
                let lens: Vec<u32> =
                    lengths(&program, rank, stream).into_iter().map(|(_, len)| len).collect();
                assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1, "{stream:?} {lens:?}");
            }
            let tiles: u32 = lengths(&program, rank, Stream::Compute).into_iter().map(|(_, len)| len).sum();
            assert_eq!(u32::from(program.lanes[rank as usize]), tiles.min(most));
        }
    }
}

#[test]
fn rows_keep_to_the_lanes_that_they_are_given() {
    let lanes = |lanes: &[u16]| lanes.iter().map(|&l| Queue::Lane(Lane(l))).collect::<HashSet<_>>();
    for (plan, gather) in PLANS.into_iter().flat_map(|p| GATHERS.map(|g| (p, g))) {
        let op = AllGatherGemm::new(4000, 1000, 64, DType::Bf16).plan_kind(plan).gather(gather);
        for registry in [worlds::local(3), worlds::nodes(2, 6)] {
            let several = registry.topology().nodes().len() > 1;
            let program = op.clone().lanes(7).comm_lanes(2).plan(&registry).unwrap();
            let queues =
                |stream| lengths(&program, 0, stream).into_iter().map(|(q, _)| q).collect::<HashSet<_>>();
            // The last four send to the other node.
            assert_eq!(queues(Stream::Comm), lanes(if several { &[0, 1, 3, 4, 5, 6] } else { &[0, 1] }));
            assert_eq!(queues(Stream::Compute).len(), 7);
        }
    }
}

/// All processes plan for themselves, in any order, with registries of their own: their programs must have one hash.
#[test]
fn a_plan_is_a_pure_function_of_what_was_asked() {
    let ops = || {
        let op = AllGatherGemm::new(520, 576, 320, DType::Bf16);
        [op.clone(), op.clone().lanes(3), op.clone().gather(Gather::Pull), op.group([5, 0, 3].map(Rank))]
    };
    for new in [|| worlds::nodes(2, 6), || worlds::local(6)] {
        let hashes = |reversed: bool| {
            let registry = new();
            let mut ops: Vec<_> = ops().into_iter().collect();
            if reversed {
                ops.reverse();
            }
            let mut hashes: Vec<_> =
                ops.iter().map(|op| op.plan(&registry).unwrap().hash(&registry).unwrap()).collect();
            if reversed {
                hashes.reverse();
            }
            hashes
        };
        let first = hashes(false);
        assert_eq!(first, hashes(true));
        assert_eq!(
            first.iter().collect::<HashSet<_>>().len(),
            4,
            "what was asked for differently is another program"
        );
    }
}

#[test]
fn one_rank_needs_neither_transport_nor_gather() {
    let registry = Registry::builder().handlers(handlers()).build(&World::local(1).unwrap()).unwrap();
    let program = AllGatherGemm::new(300, 300 / 8 * 8, 64, DType::F16).plan(&registry).unwrap();
    assert_eq!(program.regions.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(program.signals.is_empty());
    proved(program, &registry);
}

fn missing(op: &AllGatherGemm, registry: &Registry) -> (String, [Rank; 2], String) {
    match op.plan(registry).unwrap_err() {
        Error::MissingCapability { need, from, to, found } => (need, [from, to], found),
        other => panic!("{other}"),
    }
}

#[test]
fn ranks_that_nothing_connects_are_named() {
    let world = World::of(Topology::uniform(2, 4, 1).unwrap());
    let op = AllGatherGemm::new(1024, 1024, 64, DType::Bf16);
    let with = |builder: RegistryBuilder| builder.handlers(handlers()).build(&world).unwrap();
    let (need, pair, found) = missing(&op, &with(Registry::builder().transport(NvLink::new())));
    assert_eq!((need.as_str(), found.as_str()), ("PUT | SIGNAL", "nvlink: nothing"));
    assert_ne!(pair[0].0 / 2, pair[1].0 / 2, "the two are on different nodes");
    let (_, _, found) = missing(&op, &with(Registry::builder()));
    assert_eq!(found, "no transport");
    // Two NVLink groups of one server, which has no NIC that would connect them, are no legal topology.
    assert!(Topology::from_toml("[[node]]\nranks = 4\nnvlink = [[0, 1], [2, 3]]").is_err());
}

#[test]
fn ranks_that_need_nothing_of_each_other_need_no_network() {
    let world = World::of(Topology::uniform(2, 4, 1).unwrap());
    let registry = Registry::builder().transport(NvLink::new()).handlers(handlers()).build(&world).unwrap();
    // One node's ranks, and matrices without columns.
    for op in [
        AllGatherGemm::new(500, 64, 64, DType::Bf16).group([3, 2].map(Rank)),
        AllGatherGemm::new(500, 0, 64, DType::Bf16),
        AllGatherGemm::new(500, 64, 0, DType::Bf16),
    ] {
        proved(op.plan(&registry).unwrap(), &registry);
    }
}

#[test]
fn a_group_that_is_none_is_refused() {
    let registry = worlds::local(4);
    for (group, given) in [(vec![], "none"), (vec![0, 2, 0], "rank 0"), (vec![1, 4], "rank 4")] {
        let op = AllGatherGemm::new(64, 64, 64, DType::Bf16).group(group.into_iter().map(Rank));
        let e = op.plan(&registry).unwrap_err().explain();
        assert_eq!(
            (e.given.as_str(), e.allowed.as_str()),
            (given, "at least one rank, each of 0..4 at most once")
        );
    }
}

#[test]
fn a_registry_without_gemm_is_refused_by_name() {
    let registry = Registry::builder().transport(NvLink::new()).build(&World::local(2).unwrap()).unwrap();
    let error = AllGatherGemm::new(8, 8, 8, DType::Bf16).plan(&registry).unwrap_err();
    assert!(error.to_string().contains("unknown handler: given gemm"), "{error}");
}

#[test]
fn illegal_sizes_are_refused_with_the_next_legal_one() {
    let refused = |op: AllGatherGemm| match op.plan(&worlds::local(2)).unwrap_err() {
        Error::Input { given, allowed, hint, .. } => (given, allowed, hint),
        other => panic!("{other}"),
    };
    let new = |m, n, k| AllGatherGemm::new(m, n, k, DType::Bf16);
    assert_eq!(refused(new(5, 100, 64)).0, "N = 100");
    assert_eq!(refused(new(5, 100, 64)).1, "multiples of 8; the next is 104");
    assert_eq!(refused(new(5, 64, 7)).1, "multiples of 8; the next is 8");
    assert_eq!(refused(new(5, 64, u64::MAX)).1, "multiples of 8");
    assert_eq!(refused(new(5, 64, 1 << 32)).0, "K = 4294967296");
    assert_eq!(refused(new(u64::MAX, 64, 64)).1, "at most 140737488355328");
    assert_eq!(refused(AllGatherGemm::new(8, 8, 8, DType::F32)).1, "bf16, fp16");
    assert_eq!(refused(new(8, 8, 8).lanes(0)).0, "0");
    assert_eq!(
        refused(new(8, 8, 8).lanes(5).comm_lanes(0)).0,
        "0 lanes that move rows, any number of slices"
    );
    assert!(refused(new(8, 8, 8).lanes(133)).1.contains("1 to 132, one an SM that h200 has"));
    let shared = Hardware { reserved_sms: 4, ..Hardware::h200() };
    assert!(refused(new(8, 8, 8).hardware(shared).lanes(129)).1.contains("1 to 128"));
    assert_eq!(refused(new(8, 8, 8).slices(0)).0, "any number of lanes that move rows, 0 slices");
    // 2^33 rows and 2^33 columns: 2^51 tiles, refused before one of them is planned.
    assert!(refused(new(1 << 33, 1 << 33, 8)).0.contains("2251799813685248 of them tiles"));
}

#[test]
fn a_region_beyond_the_address_space_is_refused() {
    let error = AllGatherGemm::new(1 << 40, 8, 1 << 20, DType::Bf16).plan(&worlds::local(2)).unwrap_err();
    assert!(error.to_string().contains("too large") || error.to_string().contains("too many"), "{error}");
}

/// Plans and simulates without the memory, and checks the largest place of every kind against products in 128 bits.
fn plan_beyond_32_bits([m, n, k]: [u64; 3], plan: Plan) {
    let registry = worlds::local(8);
    let op = AllGatherGemm::new(m, n, k, DType::Bf16).plan_kind(plan).gather(Gather::Push);
    let program = op.plan(&registry).unwrap();
    let opcodes = program.opcodes(&registry).unwrap();
    let mut furthest: HashMap<&str, u128> = HashMap::new();
    let mut written = [0u128; 8];
    for stream in &program.streams {
        for id in stream.tasks() {
            let task = program.task(id);
            let spec = program.spec(&registry, opcodes[task.op.index()], stream.rank, task).unwrap();
            for a in &spec.accesses {
                let region = &program.regions[a.region.index()];
                let [rows, cols] = region.extent(a.rank).map(u128::from);
                let (row_end, col_end) = (
                    u128::from(a.rect.row) + u128::from(a.rect.rows),
                    u128::from(a.rect.col) + u128::from(a.rect.cols),
                );
                assert!(row_end <= rows && col_end <= cols, "{a:?} lies inside '{}'", region.name);
                let end = furthest.entry(region.name.as_str()).or_default();
                *end = (*end).max((row_end - 1) * cols + col_end);
                if region.name == "c" {
                    written[stream.rank.index()] += u128::from(a.rect.area());
                }
            }
        }
    }
    assert_eq!(furthest["a_gather"], u128::from(m) * u128::from(k), "the last element is reached");
    for r in 0..8 {
        let cols = op.cols(8, r);
        assert_eq!(written[r as usize], u128::from(m) * u128::from(cols.end - cols.start));
    }
    let memory = program.memory().unwrap();
    assert_eq!(u128::from(memory.heap), 2 * u128::from(m) * u128::from(k));
    let program = proved(program, &registry);
    let mut gpus = Simulator::builder(&registry).mode(Mode::Timing).checks(Checks::none()).build();
    gpus.run(&program, &Bindings::new()).unwrap();
    let moved: u128 = gpus.report().links.iter().map(|l| u128::from(l.bytes)).sum();
    assert_eq!(moved, 7 * 2 * u128::from(m) * u128::from(k), "each row reaches seven others");
    assert_eq!(gpus.report().tasks, program.program().tasks.len() as u64);
}

#[test]
fn regress_mkernel_2f9d10d_98304_rows() {
    // The gathered matrix has 5.6 * 10^9 elements.
    for plan in PLANS {
        plan_beyond_32_bits([98_304, 8_192, 57_344], plan);
    }
}

#[test]
fn regress_vllm_48398_524289_rows() {
    // Gathered, 2^31 elements and 2^32 bytes; and once more with twice the columns.
    for (plan, k) in [(Plan::Fused, 4096), (Plan::Unfused, 4096), (Plan::Fused, 8192)] {
        plan_beyond_32_bits([524_289, 4096, k], plan);
    }
}

/// The largest world of mapped GPUs that is sold as one.
#[test]
fn a_rack_of_72_ranks_is_proved() {
    let registry = worlds::local(72);
    for plan in PLANS {
        let op = AllGatherGemm::new(72 * 130, 72 * 256, 1024, DType::Bf16).plan_kind(plan);
        let program = op.plan(&registry).unwrap();
        assert!(
            program.tasks.len() >= 2 * 72 * (71 + 72),
            "2 row blocks of each rank to 71 others, and 72 ranks' tiles"
        );
        proved(program, &registry);
    }
}

#[test]
fn a_tile_is_as_large_as_the_handler_takes_it_and_smaller_where_lanes_would_have_none() {
    // Rows, columns of each of two ranks, lanes; rows and columns of a tile.
    for (m, n, lanes, want) in [
        (520, 644, 5, [128, 256]),   // 6 row blocks, 3 column tiles: 18 for 5 lanes
        (520, 512, 132, [64, 64]),   // 80 small ones, each on a lane
        (1280, 256, 10, [128, 256]), // one for each lane
        (768, 384, 10, [128, 128]), // 12 that are wide, 18 that are not: two turns either way, but shorter ones
        (8192, 8, 132, [64, 8]),    // a few columns, read by 128 lanes instead of 64
        (8192, 1024, 132, [128, 256]),
    ] {
        let op = AllGatherGemm::new(m, 2 * n, 64, DType::Bf16).lanes(lanes);
        let plans = inspected(op, &worlds::local(2));
        let most =
            |f: &dyn Fn(&Rect) -> u64| plans.of(Kind::Tile).map(|t| f(&t.target().rect)).max().unwrap();
        assert_eq!([most(&|r| r.rows), most(&|r| r.cols)], want, "{m} x {n}, {lanes} lanes");
    }
}
