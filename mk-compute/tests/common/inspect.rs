//! A plan of AllGather+GEMM, taken apart by what its handlers' specs say, and what must be true of it. It knows nothing of how
//! it was planned.

use mk_compute::{AllGatherGemm, Plan};
use mk_core::*;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Multiplies.
    Tile,
    /// Moves rows of A.
    Move,
    /// Only waits and posts.
    Sync,
}

/// One task with what its handler says of it.
pub struct Seen {
    pub rank: Rank,
    pub kind: Kind,
    /// Its handler belongs to a transport that is not NVLink.
    pub network: bool,
    pub task: Task,
    pub spec: Spec,
}

impl Seen {
    /// What a tile or a transfer reads of A.
    pub fn source(&self) -> &Access {
        &self.spec.accesses[0]
    }

    /// What a tile or a transfer writes.
    pub fn target(&self) -> &Access {
        self.spec.accesses.last().unwrap()
    }

    fn waits(&self, lag: u8) -> impl Iterator<Item = &Wait> {
        self.task.waits().filter(move |w| w.lag() == lag)
    }
}

/// One K slice of a transfer: the place of its task, and which slice.
type Slice = (usize, u32);

/// A post: the place of its task, how it is made, and which of its words it is.
type Posted = (usize, Post, u32);

/// A plan, taken apart.
pub struct Inspected {
    pub op: AllGatherGemm,
    /// The ranks that take part, in order.
    pub members: Vec<Rank>,
    pub program: Program,
    pub tasks: Vec<Seen>,
    topology: Topology,
    fused: bool,
    /// By word of each rank.
    posts: HashMap<(Rank, u32), Vec<Posted>>,
    /// Transfers by the rank whose `a_gather` they write, and readers by the rank whose `a_gather` they read.
    into: BTreeMap<Rank, Vec<usize>>,
    readers: BTreeMap<Rank, Vec<usize>>,
}

impl Inspected {
    pub fn new(op: AllGatherGemm, members: Vec<Rank>, registry: &Registry) -> Inspected {
        let fused = op.choose(registry).unwrap().settings.plan == Plan::Fused;
        let program = op.plan(registry).unwrap();
        let (tasks, posts) = (decode(&program, registry), HashMap::new());
        let (topology, into, readers) = (registry.topology().clone(), BTreeMap::new(), BTreeMap::new());
        let mut plan = Inspected { op, members, program, tasks, topology, fused, posts, into, readers };
        for i in 0..plan.tasks.len() {
            plan.index(i);
        }
        plan
    }

    fn index(&mut self, i: usize) {
        let seen = &self.tasks[i];
        for post in seen.task.posts() {
            for j in 0..post.count(seen.spec.blocks) {
                self.posts.entry((post.to(), post.word + j)).or_default().push((i, *post, j));
            }
        }
        if seen.kind == Kind::Move {
            self.into.entry(seen.target().rank).or_default().push(i);
        }
        if seen.kind != Kind::Sync
            && self.region(seen.source()) == "a_gather"
            && !seen.source().rect.is_empty()
        {
            self.readers.entry(seen.source().rank).or_default().push(i);
        }
    }

    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Seen> {
        self.tasks.iter().filter(move |t| t.kind == kind)
    }

    pub fn region(&self, a: &Access) -> &str {
        &self.program.regions[a.region.index()].name
    }

    fn extent(&self, region: &str, rank: Rank) -> [u64; 2] {
        self.program.regions.iter().find(|r| r.name == region).unwrap().extent(rank)
    }

    fn place(&self, rank: Rank) -> u32 {
        self.members.iter().position(|&r| r == rank).unwrap() as u32
    }

    /// The rows of A that a rank holds.
    fn rows(&self, rank: Rank) -> std::ops::Range<u64> {
        self.op.rows(self.members.len() as u32, self.place(rank))
    }

    fn owner(&self, row: u64) -> Rank {
        self.members.iter().copied().find(|&r| self.rows(r).contains(&row)).unwrap()
    }

    fn sizes(&self) -> [u64; 2] {
        let first = self.members[0];
        [self.extent("c", first)[0], self.extent("b", first)[0]]
    }

    /// Whether a rank multiplies rows of A at all.
    fn takes(&self, rank: Rank) -> bool {
        self.extent("c", rank)[1] > 0 && self.sizes()[1] > 0
    }

    /// Everything below.
    pub fn check(&self) {
        self.check_ranges();
        self.check_tiles();
        self.check_moves();
        self.check_arrivals();
        self.check_crossings();
        self.check_words();
        self.check_tile_waits();
        self.check_move_waits();
        self.check_credits();
        self.check_reads_of_peers();
    }

    fn check_ranges(&self) {
        for (t, a) in self.tasks.iter().flat_map(|t| t.spec.accesses.iter().map(move |a| (t, a))) {
            let region = &self.program.regions[a.region.index()];
            assert!(a.rect.fits(region.extent(a.rank)), "{a:?} lies inside '{}'", region.name);
            assert!(
                self.members.contains(&t.rank) && self.members.contains(&a.rank),
                "only members take part"
            );
        }
    }

    /// Every element of C is written by exactly one tile, which reads the rows and columns that belong to it.
    fn check_tiles(&self) {
        let mut written: BTreeMap<Rank, Vec<Rect>> = BTreeMap::new();
        for t in self.of(Kind::Tile) {
            let [a, b, c] = [&t.spec.accesses[0], &t.spec.accesses[1], &t.spec.accesses[2]];
            assert_eq!((self.region(b), self.region(c)), ("b", "c"));
            assert_eq!((a.rect.rows, b.rect.cols, b.rect.col), (c.rect.rows, c.rect.cols, c.rect.col));
            if self.fused {
                let rows = self.rows(self.owner(c.rect.row));
                assert!(c.rect.row_end() <= rows.end, "a fused tile crosses the border of a shard");
            }
            let own = self.rows(t.rank);
            if own.contains(&c.rect.row) {
                assert_eq!((self.region(a), a.rect.row), ("a", c.rect.row - own.start));
                assert!(c.rect.row_end() <= own.end, "own rows are where they were bound");
            } else if !a.rect.is_empty() {
                assert_eq!((self.region(a), a.rect.row), ("a_gather", c.rect.row));
                assert!(c.rect.row_end() <= own.start || c.rect.row >= own.end, "own rows do not arrive");
            }
            written.entry(t.rank).or_default().push(c.rect);
        }
        for &r in &self.members {
            let [rows, cols] = self.extent("c", r);
            assert_covers(written.remove(&r).unwrap_or_default(), Rect::new(0, 0, rows, cols));
        }
    }

    /// Every row is moved from where it is to its own place: pushed by its rank, pulled from it, sent by it, or forwarded by a
    /// relay. Only sends leave the NVLink group.
    fn check_moves(&self) {
        for t in self.of(Kind::Move) {
            let (src, dst) = (t.source(), t.target());
            assert_eq!(self.region(dst), "a_gather");
            assert_ne!(src.rank, dst.rank, "nothing is sent to oneself");
            let mapped = self.topology.mapped(src.rank, dst.rank);
            assert_eq!(mapped, !t.network, "a network is used exactly between NVLink groups");
            let owner = self.owner(dst.rect.row);
            assert!(dst.rect.row_end() <= self.rows(owner).end, "a transfer is of one rank's rows");
            let start = match self.region(src) {
                "a" => self.rows(src.rank).start,
                _ => {
                    assert!(
                        mapped && t.rank == src.rank,
                        "what was received is only forwarded to neighbours"
                    );
                    assert!(!self.topology.mapped(owner, src.rank), "a neighbour's rows are not forwarded");
                    0
                }
            };
            assert_eq!((src.rect.row + start, src.rect.col), (dst.rect.row, dst.rect.col));
        }
    }

    /// Every row of A reaches every other rank that has columns, once; and relays without columns, at most once.
    fn check_arrivals(&self) {
        let [m, k] = self.sizes();
        for &r in &self.members {
            let moves = self.into.get(&r).map_or(&[][..], |m| m);
            let mut rects: Vec<Rect> = moves.iter().map(|&i| self.tasks[i].target().rect).collect();
            if self.takes(r) {
                let own = self.rows(r);
                rects.push(Rect::new(own.start, 0, own.end - own.start, k));
                rects.retain(|r| !r.is_empty());
                assert_covers(rects, Rect::new(0, 0, m, k));
            } else {
                assert!(moves.iter().all(|&i| self.tasks[i].network), "rank {r} needs no rows itself");
            }
        }
    }

    /// Each row crosses once into each other NVLink group that has columns, and into no other.
    fn check_crossings(&self) {
        let [_, k] = self.sizes();
        let group = |r: Rank| self.topology.group_of(r);
        let groups: BTreeSet<u32> = self.members.iter().map(|&r| group(r)).collect();
        let mut expected = 0;
        for &g in &groups {
            let into = self.of(Kind::Move).filter(|t| t.network && group(t.target().rank) == g);
            let mut rects: Vec<Rect> = into.map(|t| t.target().rect).collect();
            if !self.members.iter().any(|&r| group(r) == g && self.takes(r)) {
                assert!(rects.is_empty(), "NVLink group {g} needs no rows");
                continue;
            }
            for &r in &self.members {
                let rows = self.rows(r);
                let own = Rect::new(rows.start, 0, rows.end - rows.start, k);
                if group(r) == g && !own.is_empty() {
                    rects.push(own);
                } else if group(r) != g {
                    expected += own.area() * 2;
                }
            }
            assert_covers(rects, Rect::new(0, 0, self.sizes()[0], k));
        }
        assert_eq!(self.network_bytes(), expected, "bytes between NVLink groups");
    }

    /// Bytes that cross from one NVLink group to another, at two bytes an element.
    pub fn network_bytes(&self) -> u64 {
        self.of(Kind::Move).filter(|t| t.network).map(|t| t.target().rect.area() * 2).sum()
    }

    /// What is posted is waited for, what is waited for is posted, and every wait is for all posts of an epoch.
    fn check_words(&self) {
        let mut waited = HashSet::new();
        for t in &self.tasks {
            for w in t.task.waits() {
                assert_eq!(w.upto, w.total, "a wait is for all posts");
                for word in w.words() {
                    let posts = self.posts.get(&(t.rank, word)).map_or(0, Vec::len);
                    assert_eq!(posts, w.total as usize, "{}", self.program.word_name(t.rank, word));
                    waited.insert((t.rank, word));
                }
            }
        }
        for &(rank, word) in self.posts.keys() {
            assert!(
                waited.contains(&(rank, word)),
                "nobody waits for {}",
                self.program.word_name(rank, word)
            );
        }
    }

    /// Slices that have arrived, in this epoch, when these words of `rank` stand as high as they get.
    fn arrived(&self, rank: Rank, words: impl Iterator<Item = u32>, into: &mut BTreeSet<Slice>) {
        for word in words {
            for &(i, post, j) in &self.posts[&(rank, word)] {
                let t = &self.tasks[i];
                match (t.kind, post.at()) {
                    (Kind::Move, PostAt::Block) => {
                        assert_eq!(post.every, 1, "a word for each slice");
                        into.insert((i, j));
                    }
                    (Kind::Move, PostAt::Done) => into.extend((0..t.spec.blocks).map(|unit| (i, unit))),
                    (Kind::Sync, PostAt::Done) => {
                        t.waits(0).for_each(|w| self.arrived(t.rank, w.words(), into));
                    }
                    other => panic!("{other:?} says nothing about arrivals"),
                }
            }
        }
    }

    /// Slices that hold something of a rectangle of a rank's `a_gather`.
    fn needed(&self, rank: Rank, read: &Rect, into: &mut BTreeSet<Slice>) {
        for &i in self.into.get(&rank).into_iter().flatten() {
            let t = &self.tasks[i];
            if t.target().rect.intersect(read).is_none() {
                continue;
            }
            let holds = |unit: &u32| t.target().block_rect(*unit).intersect(read).is_some();
            into.extend((0..t.spec.blocks).filter(holds).map(|unit| (i, unit)));
        }
    }

    /// Before each block, a reader has waited for exactly those slices that it and the blocks before it read.
    fn check_slice_by_slice(&self, t: &Seen) {
        let (mut got, mut need, mut met) = (BTreeSet::new(), BTreeSet::new(), 0);
        let [wait] = t.waits(0).collect::<Vec<_>>()[..] else { panic!("one wait for what it reads") };
        for block in 0..t.spec.blocks {
            let upto = wait.met_before_block(block) as usize;
            self.arrived(t.rank, wait.words().take(upto).skip(met), &mut got);
            met = upto;
            self.needed(t.rank, &t.source().block_rect(block), &mut need);
            assert_eq!(got, need, "before block {block}");
        }
    }

    /// Fused, a tile waits slice by slice, and one of own rows not at all. Unfused, every tile of a rank that takes rows of
    /// others starts when all of them are there.
    fn check_tile_waits(&self) {
        for t in self.of(Kind::Tile) {
            assert!(t.waits(1).next().is_none(), "what a tile reads is of this epoch");
            let remote = self.region(t.source()) == "a_gather";
            if self.fused {
                match remote && !t.source().rect.is_empty() {
                    true => self.check_slice_by_slice(t),
                    false => assert_eq!(t.task.waits().count(), 0, "a tile of own rows waits for nothing"),
                }
                continue;
            }
            let (mut got, mut need) = (BTreeSet::new(), BTreeSet::new());
            for w in t.waits(0) {
                assert_eq!(w.at(), WaitAt::Start);
                self.arrived(t.rank, w.words(), &mut got);
            }
            if self.takes(t.rank) {
                let [m, k] = self.sizes();
                self.needed(t.rank, &Rect::new(0, 0, m, k), &mut need);
            }
            assert_eq!(got, need, "an unfused tile waits for all rows");
        }
    }

    /// A forward waits for what it forwards, slice by slice; a pull for its owner's word that the rows are there; a push and a
    /// send for nothing of this epoch.
    fn check_move_waits(&self) {
        for t in self.of(Kind::Move) {
            if self.region(t.source()) == "a_gather" {
                self.check_slice_by_slice(t);
            } else if t.source().rank == t.rank {
                assert!(t.waits(0).next().is_none(), "own rows are there");
            } else {
                let [wait] = t.waits(0).collect::<Vec<_>>()[..] else { panic!("a pull waits for its owner") };
                assert_eq!((wait.at(), wait.count), (WaitAt::Start, 1));
                for &(i, post, _) in &self.posts[&(t.rank, wait.word)] {
                    let by = &self.tasks[i];
                    assert_eq!((by.rank, by.kind, post.at()), (t.source().rank, Kind::Sync, PostAt::Done));
                    assert_eq!(by.task.waits().count(), 0, "A is there as soon as its rank runs");
                }
            }
        }
    }

    /// Readers that a wait for words of `rank` knows to have read, directly or through tasks that pass it on.
    fn credited(&self, rank: Rank, wait: &Wait, into: &mut BTreeSet<usize>) {
        for word in wait.words() {
            for &(i, post, _) in &self.posts[&(rank, word)] {
                let t = &self.tasks[i];
                match (t.kind, post.at()) {
                    (Kind::Tile | Kind::Move, PostAt::Loaded) => {
                        into.insert(i);
                    }
                    (Kind::Sync, PostAt::Done) => t.waits(0).for_each(|w| self.credited(t.rank, w, into)),
                    other => panic!("{other:?} is no credit"),
                }
            }
        }
    }

    fn readers_of(&self, rank: Rank, rect: &Rect) -> BTreeSet<usize> {
        let all = self.readers.get(&rank).into_iter().flatten().copied();
        all.filter(|&i| self.tasks[i].source().rect.intersect(rect).is_some()).collect()
    }

    /// Whoever writes into another rank's memory waits for those who read there in the epoch before: for exactly those of the
    /// rows that it overwrites; unfused for all tiles of that rank, and from another NVLink group for all of its own rows.
    fn check_credits(&self) {
        for t in self.of(Kind::Move) {
            let dst = t.target();
            if dst.rank == t.rank {
                assert!(t.waits(1).next().is_none(), "the last run of the rank itself has ended");
                continue;
            }
            let [wait] = t.waits(1).collect::<Vec<_>>()[..] else {
                panic!("a transfer waits for its credit")
            };
            assert_eq!(wait.at(), WaitAt::Start);
            let mut got = BTreeSet::new();
            self.credited(t.rank, wait, &mut got);
            let rect = match t.network {
                true => {
                    let own = self.rows(t.rank);
                    Rect::new(own.start, dst.rect.col, own.end - own.start, dst.rect.cols)
                }
                false => dst.rect,
            };
            let mut expected = self.readers_of(dst.rank, &rect);
            assert!(!expected.is_empty(), "what is written is read");
            if !self.fused {
                let all = self.readers.get(&dst.rank).into_iter().flatten().copied();
                expected.extend(all.filter(|&i| self.tasks[i].kind == Kind::Tile));
            }
            assert_eq!(got, expected, "credit for {dst:?}");
        }
    }

    /// Where neighbours pull, their rank's run ends only when they have read.
    fn check_reads_of_peers(&self) {
        for &owner in &self.members {
            let pulls: BTreeSet<usize> = (0..self.tasks.len())
                .filter(|&i| self.tasks[i].kind == Kind::Move && self.tasks[i].rank != owner)
                .filter(|&i| self.tasks[i].source().rank == owner)
                .collect();
            let mut noticed = BTreeSet::new();
            for t in self.of(Kind::Sync).filter(|t| t.rank == owner && t.task.posts().count() == 0) {
                t.waits(0).for_each(|w| self.credited(owner, w, &mut noticed));
            }
            assert_eq!(noticed, pulls, "rank {owner}");
        }
    }
}

fn decode(program: &Program, registry: &Registry) -> Vec<Seen> {
    let opcodes = program.opcodes(registry).unwrap();
    let mut tasks = Vec::new();
    for stream in &program.streams {
        for id in stream.tasks() {
            let task = *program.task(id);
            let name = program.handlers[task.op.index()].name.as_str();
            let kind = match name.split('.').next_back().unwrap() {
                "gemm" => Kind::Tile,
                "put_signal" | "get" => Kind::Move,
                "wait" | "signal" => Kind::Sync,
                other => panic!("a task of {other}"),
            };
            let network = kind != Kind::Tile && !name.starts_with("nvlink.");
            let spec = program.spec(registry, opcodes[task.op.index()], stream.rank, &task).unwrap();
            tasks.push(Seen { rank: stream.rank, kind, network, task, spec });
        }
    }
    tasks
}

/// Asserts that `rects` lie inside `whole`, do not overlap, and leave nothing out.
pub fn assert_covers(mut rects: Vec<Rect>, whole: Rect) {
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
