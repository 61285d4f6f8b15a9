//! What AllGather + GEMM plans: every tile once, every row block pushed once, no wait too few and none too many.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use mk_compute::{AllGatherGemm, Gemm, Plan, handlers};
use mk_core::*;
use mk_nvlink::NvLink;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};

fn registry(world: u64) -> Registry {
    Registry::builder()
        .transport(NvLink::new())
        .handlers(handlers())
        .build(&World::local(world).unwrap())
        .unwrap()
}

/// One task with what its handler says of it.
struct Decoded {
    rank: Rank,
    task: Task,
    spec: Spec,
}

/// A post with the task that makes it: which kind of task, and its place among those.
type Posted = (&'static str, usize, Post);

struct Plans {
    op: AllGatherGemm,
    world: u32,
    program: Program,
    tiles: Vec<Decoded>,
    pushes: Vec<Decoded>,
    joins: Vec<Decoded>,
    /// For each word of each rank: the tasks that post to it, by place among tiles or pushes, and how.
    posts: HashMap<(Rank, u32), Vec<Posted>>,
}

impl Plans {
    fn new(op: AllGatherGemm, registry: &Registry) -> Plans {
        let program = op.plan(registry).unwrap();
        let opcodes = program.opcodes(registry).unwrap();
        let mut plans = Plans {
            world: registry.world().size(),
            op,
            tiles: vec![],
            pushes: vec![],
            joins: vec![],
            posts: HashMap::new(),
            program,
        };
        for stream in &plans.program.streams {
            for id in stream.tasks() {
                let task = *plans.program.task(id);
                let name = plans.program.handlers[task.op.index()].name.as_str();
                let spec =
                    plans.program.spec(registry, opcodes[task.op.index()], stream.rank, &task).unwrap();
                let (kind, list) = match name {
                    "gemm" => ("tile", &mut plans.tiles),
                    "nvlink.wait" => ("join", &mut plans.joins),
                    "nvlink.put_signal" => ("push", &mut plans.pushes),
                    other => panic!("a task of {other}"),
                };
                for post in task.posts() {
                    for j in 0..post.count(spec.blocks) {
                        let word = plans.posts.entry((post.to(), post.word + j)).or_default();
                        word.push((kind, list.len(), *post));
                    }
                }
                list.push(Decoded { rank: stream.rank, task, spec });
            }
        }
        plans
    }

    fn region(&self, a: &Access) -> &str {
        &self.program.regions[a.region.index()].name
    }

    fn check(&self) {
        self.check_ranges();
        self.check_tiles();
        self.check_pushes();
        match self.program.name.contains("unfused") {
            true => self.check_unfused_waits(),
            false => self.check_fused_waits(),
        }
        self.check_credits();
    }

    fn check_ranges(&self) {
        for d in self.tiles.iter().chain(&self.pushes) {
            for a in &d.spec.accesses {
                let region = &self.program.regions[a.region.index()];
                assert!(a.rect.fits(region.extent(a.rank)), "{a:?} lies inside '{}'", region.name);
            }
        }
    }

    /// Every element of C is written by exactly one tile, which reads the rows and columns that belong to it.
    fn check_tiles(&self) {
        let mut written: BTreeMap<Rank, Vec<Rect>> = BTreeMap::new();
        for t in &self.tiles {
            let [a, b, c] = [&t.spec.accesses[0], &t.spec.accesses[1], &t.spec.accesses[2]];
            assert_eq!((self.region(b), self.region(c)), ("b", "c"));
            assert_eq!((a.rect.rows, b.rect.cols, b.rect.col), (c.rect.rows, c.rect.cols, c.rect.col));
            let source = self.owner(c.rect.row);
            let rows = self.op.rows(self.world, source);
            assert!(c.rect.row_end() <= rows.end, "a tile crosses the border of a shard");
            if source == u32::from(t.rank.0) {
                assert_eq!((self.region(a), a.rect.row), ("a", c.rect.row - rows.start));
            } else if !a.rect.is_empty() {
                assert_eq!((self.region(a), a.rect.row), ("a_gather", c.rect.row));
            }
            written.entry(t.rank).or_default().push(c.rect);
        }
        for r in 0..self.world {
            let extent = self.program.regions[2].extent(Rank(r as u16));
            assert_covers(
                written.remove(&Rank(r as u16)).unwrap_or_default(),
                Rect::new(0, 0, extent[0], extent[1]),
            );
        }
    }

    fn owner(&self, row: u64) -> u32 {
        (0..self.world).find(|&r| self.op.rows(self.world, r).contains(&row)).unwrap()
    }

    /// Every row of A reaches every other rank that has columns, once, at its own place.
    fn check_pushes(&self) {
        let mut arrived: BTreeMap<Rank, Vec<Rect>> = BTreeMap::new();
        for p in &self.pushes {
            let [src, dst] = [&p.spec.accesses[0], &p.spec.accesses[1]];
            assert_eq!((self.region(src), self.region(dst), src.rank), ("a", "a_gather", p.rank));
            assert_ne!(dst.rank, p.rank, "nothing is sent to oneself");
            let start = self.op.rows(self.world, p.rank.0.into()).start;
            assert_eq!((src.rect.row + start, src.rect.col), (dst.rect.row, dst.rect.col));
            arrived.entry(dst.rank).or_default().push(dst.rect);
        }
        let [m, k] = [self.program.regions[2].extent(Rank(0))[0], self.program.regions[1].extent(Rank(0))[0]];
        for r in 0..self.world {
            let (mut rects, own) =
                (arrived.remove(&Rank(r as u16)).unwrap_or_default(), self.op.rows(self.world, r));
            let takes = !self.op.cols(self.world, r).is_empty() && k > 0;
            if !takes {
                assert!(rects.is_empty(), "rank {r} needs no rows");
                continue;
            }
            rects.push(Rect::new(own.start, 0, own.end - own.start, k));
            rects.retain(|r| !r.is_empty());
            assert_covers(rects, Rect::new(0, 0, m, k));
        }
    }

    /// Before each block, a tile has waited for exactly those slices that the block and those before it read.
    fn check_fused_waits(&self) {
        assert!(self.joins.is_empty());
        for t in &self.tiles {
            let a = &t.spec.accesses[0];
            let waits: Vec<&Wait> = t.task.waits().collect();
            if self.region(a) == "a" {
                assert!(waits.is_empty(), "a tile of own rows waits for nothing");
                continue;
            }
            let [wait] = waits[..] else { panic!("{} waits", waits.len()) };
            assert_eq!((wait.lag(), wait.total, wait.upto), (0, 1, 1));
            for block in 0..t.spec.blocks {
                let words: HashSet<u32> = wait.words().take(wait.met_before_block(block) as usize).collect();
                assert_eq!(words, self.slices_up_to(t, block), "before block {block}");
            }
        }
    }

    /// The words that say that what blocks `0..=block` of a tile read of `a_gather` has arrived.
    fn slices_up_to(&self, tile: &Decoded, block: u32) -> HashSet<u32> {
        let a = &tile.spec.accesses[0];
        let read = a.block_rect(block);
        let mut words = HashSet::new();
        for push in self.pushes.iter().filter(|p| p.spec.accesses[1].rank == tile.rank) {
            let dst = &push.spec.accesses[1];
            let [post] = push.task.posts().collect::<Vec<_>>()[..] else {
                panic!("a push posts once a slice")
            };
            assert_eq!((post.to(), post.at(), post.every), (tile.rank, PostAt::Block, 1));
            for unit in 0..push.spec.blocks {
                let r = dst.block_rect(unit);
                if r.row < read.row_end() && read.row < r.row_end() && r.col < read.col_end() {
                    words.insert(post.word + unit);
                }
            }
        }
        words
    }

    /// Every tile of a rank that takes rows starts after all joins, and these after all rows for that rank have arrived.
    fn check_unfused_waits(&self) {
        for t in &self.tiles {
            let to_me = |i: &usize| self.pushes[*i].spec.accesses[1].rank == t.rank;
            let sent: HashSet<usize> = (0..self.pushes.len()).filter(to_me).collect();
            let waits: Vec<&Wait> = t.task.waits().collect();
            if sent.is_empty() {
                assert!(waits.is_empty());
                continue;
            }
            let [wait] = waits[..] else { panic!("{} waits", waits.len()) };
            let joins = self.awaited("join", t.rank, wait);
            assert!(joins.iter().all(|&i| self.joins[i].rank == t.rank));
            let joined: Vec<usize> = joins
                .iter()
                .flat_map(|&i| self.joins[i].task.waits().flat_map(|w| self.awaited("push", t.rank, w)))
                .collect();
            assert_eq!(joined.len(), sent.len());
            assert_eq!(joined.into_iter().collect::<HashSet<_>>(), sent);
        }
    }

    /// The tasks whose `Done` posts, all of this epoch, a wait for one word of `rank` waits for at its start.
    fn awaited(&self, from: &str, rank: Rank, wait: &Wait) -> Vec<usize> {
        let posted = &self.posts[&(rank, wait.word)];
        assert_eq!((wait.at(), wait.count, wait.lag()), (WaitAt::Start, 1, 0));
        assert_eq!((wait.total as usize, wait.upto as usize), (posted.len(), posted.len()));
        assert!(posted.iter().all(|(kind, _, post)| *kind == from && post.at() == PostAt::Done));
        posted.iter().map(|&(_, i, _)| i).collect()
    }

    /// A push waits for what, in the epoch before, every tile posted that read the rows which it overwrites.
    fn check_credits(&self) {
        for p in &self.pushes {
            let dst = &p.spec.accesses[1];
            let [wait] = p.task.waits().collect::<Vec<_>>()[..] else {
                panic!("a push waits for its credit")
            };
            assert_eq!((wait.at(), wait.lag(), wait.count, wait.total), (WaitAt::Start, 1, 1, wait.upto));
            let readers: HashSet<usize> = (0..self.tiles.len())
                .filter(|&i| {
                    let (t, a) = (&self.tiles[i], &self.tiles[i].spec.accesses[0]);
                    t.rank == dst.rank
                        && self.region(a) == "a_gather"
                        && a.rect.intersect(&dst.rect).is_some()
                })
                .collect();
            let posted = &self.posts[&(p.rank, wait.word)];
            assert!(posted.iter().all(|(kind, _, post)| *kind == "tile" && post.at() == PostAt::Loaded));
            assert_eq!(posted.iter().map(|&(_, i, _)| i).collect::<HashSet<_>>(), readers);
            assert_eq!((posted.len(), wait.total as usize), (readers.len(), readers.len()));
        }
        let credits = self.tiles.iter().flat_map(|t| t.task.posts()).count();
        let remote = self.tiles.iter().filter(|t| self.region(&t.spec.accesses[0]) == "a_gather").count();
        assert_eq!(credits, remote, "tiles post nothing but credits");
    }
}

/// Asserts that `rects` lie inside `whole`, do not overlap, and leave nothing out.
fn assert_covers(mut rects: Vec<Rect>, whole: Rect) {
    assert!(
        rects
            .iter()
            .all(|r| !r.is_empty() && r.row_end() <= whole.row_end() && r.col_end() <= whole.col_end())
    );
    assert_eq!(rects.iter().map(Rect::area).sum::<u64>(), whole.area(), "as many elements as there are");
    rects.sort_by_key(|r| (r.row, r.col));
    // Of rectangles in a grid only neighbours in this order, or of equal rows, can overlap; others start lower.
    for (i, r) in rects.iter().enumerate() {
        for o in rects[i + 1..].iter().take_while(|o| o.row < r.row_end()) {
            assert_eq!(r.intersect(o), None, "{r} and {o} overlap");
        }
    }
}

fn proved(program: Program, registry: &Registry) -> Verified {
    program.verify(registry, &Hardware::h200()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_shape_and_world_is_tiled_once_and_proved() {
    for world in [1, 2, 3, 5, 6, 8] {
        let registry = registry(world);
        for m in [0, 1, 127, 128, 129, 257, 520] {
            for (n, k) in [(0, 64), (8, 8), (264, 0), (264, 192), (576, 320), (2200, 1024)] {
                for plan in [Plan::Fused, Plan::Unfused] {
                    let op = AllGatherGemm::new(m, n, k, DType::Bf16).plan_kind(plan).lanes(5);
                    let plans = Plans::new(op, &registry);
                    plans.check();
                    proved(plans.program, &registry);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_legal_operator_is_tiled_once_and_proved(
        world in 1u64..10, m in 0u64..700, n in 0u64..90, k in 0u64..90, lanes in 1u16..140, slices in 1u16..12, fused: bool,
    ) {
        let plan = if fused { Plan::Fused } else { Plan::Unfused };
        let op = AllGatherGemm::new(m, 8 * n, 8 * k, DType::F16).plan_kind(plan).lanes(lanes.min(132)).slices(slices);
        let registry = registry(world);
        let plans = Plans::new(op, &registry);
        plans.check();
        proved(plans.program, &registry);
    }
}

#[test]
fn a_rank_multiplies_its_own_rows_first_and_then_those_that_arrive_first() {
    let registry = registry(4);
    let program = AllGatherGemm::new(1024, 1024, 256, DType::Bf16).lanes(1).plan(&registry).unwrap();
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

#[test]
fn tasks_are_dealt_evenly_over_the_lanes_that_are_needed() {
    let registry = registry(3);
    let op = AllGatherGemm::new(1000, 1000, 64, DType::Bf16);
    for (op, most) in [
        (op.clone().lanes(7), 7),
        (op.clone(), 132),
        (op.hardware(Hardware { sms: 20, ..Hardware::h200() }), 20),
    ] {
        let program = op.plan(&registry).unwrap();
        for rank in 0..3 {
            let lens = |stream| -> Vec<u32> {
                program
                    .streams
                    .iter()
                    .filter(|s| (s.rank, s.stream) == (Rank(rank), stream))
                    .map(|s| s.len)
                    .collect()
            };
            for (stream, lanes) in
                [(Stream::Compute, lens(Stream::Compute)), (Stream::Comm, lens(Stream::Comm))]
            {
                let (min, max) = (lanes.iter().min().unwrap(), lanes.iter().max().unwrap());
                assert!(max - min <= 1, "{stream:?} {lanes:?}");
            }
            // 9 row blocks and 2 column tiles: 18 tiles.
            assert_eq!(program.lanes[rank as usize], most.min(18));
        }
    }
}

#[test]
fn pushes_keep_to_the_lanes_that_they_are_given() {
    let registry = registry(3);
    for plan in [Plan::Fused, Plan::Unfused] {
        let op = AllGatherGemm::new(1000, 1000, 64, DType::Bf16).plan_kind(plan).lanes(7).comm_lanes(2);
        let plans = Plans::new(op, &registry);
        plans.check();
        let lanes = |stream| {
            let of = plans.program.streams.iter().filter(|s| s.rank == Rank(0) && s.stream == stream);
            of.map(|s| s.queue).collect::<Vec<_>>()
        };
        assert_eq!(lanes(Stream::Comm), [0, 1].map(|l| Queue::Lane(Lane(l))));
        assert_eq!(lanes(Stream::Compute).len(), 7);
        proved(plans.program, &registry);
    }
}

#[test]
fn a_plan_is_a_pure_function_of_what_was_asked() {
    let op = AllGatherGemm::new(520, 576, 320, DType::Bf16).lanes(3);
    assert_eq!(op.plan(&registry(3)).unwrap(), op.plan(&registry(3)).unwrap());
    assert_ne!(op.plan(&registry(3)).unwrap(), op.clone().lanes(4).plan(&registry(3)).unwrap());
}

#[test]
fn one_rank_needs_neither_transport_nor_gather() {
    let registry = Registry::builder().handlers(handlers()).build(&World::local(1).unwrap()).unwrap();
    let program = AllGatherGemm::new(300, 300 / 8 * 8, 64, DType::F16).plan(&registry).unwrap();
    assert_eq!(program.regions.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(program.signals.is_empty());
    proved(program, &registry);
}

#[test]
fn ranks_that_are_not_mapped_are_named() {
    let world = World::of(Topology::uniform(2, 4, 1).unwrap());
    let op = AllGatherGemm::new(1024, 1024, 64, DType::Bf16);
    let with =
        |builder: RegistryBuilder| op.plan(&builder.handlers(handlers()).build(&world).unwrap()).unwrap_err();
    let network = with(Registry::builder().transport(NvLink::new()).transport(mk_rdma::Rdma::ordered()));
    let Error::MissingCapability { need, from, to, found } = network else { panic!("{network}") };
    assert_eq!(need, "PUT | SIGNAL | ATOMIC_ADD");
    assert_ne!(from.0 / 2, to.0 / 2, "the two are on different nodes");
    assert!(found.contains("nvlink: nothing, rdma: PUT"), "{found}");
    let none = with(Registry::builder());
    assert!(none.to_string().contains("found: no transport"), "{none}");
}

#[test]
fn a_registry_without_gemm_is_refused_by_name() {
    let registry = Registry::builder().transport(NvLink::new()).build(&World::local(2).unwrap()).unwrap();
    let error = AllGatherGemm::new(8, 8, 8, DType::Bf16).plan(&registry).unwrap_err();
    assert!(error.to_string().contains("unknown handler: given gemm"), "{error}");
}

#[test]
fn illegal_sizes_are_refused_with_the_next_legal_one() {
    let refused = |op: AllGatherGemm| match op.plan(&registry(2)).unwrap_err() {
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
    assert_eq!(refused(new(8, 8, 8).lanes(5).comm_lanes(0)).0, "0 lanes that push, 4 slices");
    assert!(refused(new(8, 8, 8).lanes(133)).1.contains("1 to 132, one an SM that h200 has"));
    let shared = Hardware { reserved_sms: 4, ..Hardware::h200() };
    assert!(refused(new(8, 8, 8).hardware(shared).lanes(129)).1.contains("1 to 128"));
    assert_eq!(refused(new(8, 8, 8).slices(0)).0, "132 lanes that push, 0 slices");
    // 2^33 rows and 2^33 columns: 2^51 tiles, refused before one of them is planned.
    assert!(refused(new(1 << 33, 1 << 33, 8)).0.contains("2251799813685248 tiles"));
}

#[test]
fn a_region_beyond_the_address_space_is_refused() {
    let error = AllGatherGemm::new(1 << 40, 8, 1 << 20, DType::Bf16).plan(&registry(2)).unwrap_err();
    assert!(error.to_string().contains("too large") || error.to_string().contains("too many"), "{error}");
}

/// Plans without the memory, and checks the largest place of every kind against products in 128 bits.
fn plan_beyond_32_bits([m, n, k]: [u64; 3], plan: Plan) {
    let registry = registry(8);
    let op = AllGatherGemm::new(m, n, k, DType::Bf16).plan_kind(plan);
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
    assert!(furthest["a_gather"] > 1 << 32);
    for r in 0..8 {
        let cols = op.cols(8, r);
        assert_eq!(written[r as usize], u128::from(m) * u128::from(cols.end - cols.start));
    }
    let memory = program.memory().unwrap();
    assert_eq!(u128::from(memory.heap), 2 * u128::from(m) * u128::from(k));
    proved(program, &registry);
}

#[test]
fn regress_mkernel_2f9d10d_98304_rows() {
    for plan in [Plan::Fused, Plan::Unfused] {
        plan_beyond_32_bits([98_304, 28_672, 57_344], plan);
    }
}

#[test]
fn regress_vllm_48398_524289_rows() {
    // K = 8192 takes the gathered matrix beyond 2^32 elements; at 4096 columns C is beyond 2^31, and 2^32 bytes.
    for plan in [Plan::Fused, Plan::Unfused] {
        plan_beyond_32_bits([524_289, 4096, 8192], plan);
    }
}

/// The largest world of mapped GPUs that is sold as one.
#[test]
fn a_rack_of_72_ranks_is_proved() {
    let registry = registry(72);
    for plan in [Plan::Fused, Plan::Unfused] {
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
fn a_gemm_tile_is_as_large_as_the_handler_takes_it() {
    let plans = Plans::new(AllGatherGemm::new(520, 1032, 64, DType::Bf16), &registry(2));
    let most =
        |f: &dyn Fn(&Rect) -> u64| plans.tiles.iter().map(|t| f(&t.spec.accesses[2].rect)).max().unwrap();
    assert_eq!([most(&|r| r.rows), most(&|r| r.cols)], [Gemm::ROWS, Gemm::COLS]);
}
