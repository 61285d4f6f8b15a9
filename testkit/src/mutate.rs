//! One change to a finished program.
//!
//! A mutant is an edit of the records, nothing else. Where it changes how many posts a word receives there are two of
//! it: one with records that no longer fit each other, and one in which [`retotal`] made all totals, thresholds and
//! ordinals fit again, so that only reasoning about order can tell what is wrong with it.

use mk_core::{
    Env, Lane, Limits, Post, PostAt, Program, Queue, Registry, SignalKind, StreamTasks, Task, TaskId, Wait,
    WaitAt,
};
use std::collections::HashMap;

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A wait is left out.
    DropWait,
    /// A post is left out.
    DropPost,
    /// A wait is for more posts than it should be.
    RaiseThreshold,
    /// A wait is for fewer posts than it should be.
    LowerThreshold,
    /// A wait is for another word.
    RetargetWait,
    /// A post goes to another word.
    RetargetPost,
    /// A post goes to another rank.
    RetargetRank,
    /// A credit becomes an arrival: lag 0.
    LagToZero,
    /// A wait is satisfied one epoch too early: lag + 1.
    LagUp,
    /// A wait guards less: before the store instead of the load, fewer words, wider strides.
    WaitLater,
    /// A post covers less: when loaded instead of when done.
    PostEarlier,
    /// Two neighbours in a stream change places.
    Swap,
    /// A task moves to another lane.
    Move,
    /// A task is there twice.
    Duplicate,
    /// A task is not there.
    Remove,
    /// A rectangle is shifted by one row or column.
    Shift,
    /// A rectangle loses a row or column.
    Shrink,
    /// A rectangle gains a row or column.
    Widen,
    /// A region has another number of rotating copies.
    Depth,
    /// Two words become one.
    Merge,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 20] = [
        Kind::DropWait,
        Kind::DropPost,
        Kind::RaiseThreshold,
        Kind::LowerThreshold,
        Kind::RetargetWait,
        Kind::RetargetPost,
        Kind::RetargetRank,
        Kind::LagToZero,
        Kind::LagUp,
        Kind::WaitLater,
        Kind::PostEarlier,
        Kind::Swap,
        Kind::Move,
        Kind::Duplicate,
        Kind::Remove,
        Kind::Shift,
        Kind::Shrink,
        Kind::Widen,
        Kind::Depth,
        Kind::Merge,
    ];
}

/// A program with one change.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What is changed.
    pub kind: Kind,
    /// Whether totals, thresholds and ordinals were made to fit again.
    pub retotalled: bool,
    /// The task (or region, or word) that was changed, by name.
    pub place: String,
    /// What was changed, in words.
    pub what: String,
    /// The program.
    pub program: Program,
}

/// All mutants of one kind. Each differs from `program`.
pub fn all(program: &Program, registry: &Registry, kind: Kind) -> Vec<Mutant> {
    let mut m = Maker { program, registry, kind, mutants: Vec::new() };
    match kind {
        Kind::DropWait => m.waits(|_| vec![("dropped".into(), Wait::default())]),
        Kind::DropPost => m.posts(|_| vec![("dropped".into(), Post::default())]),
        Kind::RaiseThreshold => m.waits(raised),
        Kind::LowerThreshold => m.waits(lowered),
        Kind::RetargetWait => m.retarget_waits(),
        Kind::RetargetPost => m.retarget_posts(),
        Kind::RetargetRank => m.retarget_ranks(),
        Kind::LagToZero => m.waits(|w| if w.lag() > 0 { vec![with_lag(w, 0)] } else { vec![] }),
        Kind::LagUp => {
            m.waits(|w| if w.lag() < Limits::LAG { vec![with_lag(w, w.lag() + 1)] } else { vec![] })
        }
        Kind::WaitLater => m.waits(later),
        Kind::PostEarlier => m.posts(earlier),
        Kind::Swap => m.swap(),
        Kind::Move => m.relocate(),
        Kind::Duplicate => m.duplicate(),
        Kind::Remove => m.remove(),
        Kind::Shift => m.args(|key| key.ends_with("row") || key.ends_with("col"), &[1, -1]),
        Kind::Shrink => m.args(|key| key == "rows" || key == "cols", &[-1]),
        Kind::Widen => m.args(|key| key == "rows" || key == "cols", &[1]),
        Kind::Depth => m.depth(),
        Kind::Merge => m.merge(),
    }
    m.mutants
}

/// One mutant of this kind, chosen by `seed`; `None` if the program has nothing that this kind changes.
pub fn pick(program: &Program, registry: &Registry, kind: Kind, seed: u64) -> Option<Mutant> {
    let mut all = all(program, registry, kind);
    if all.is_empty() {
        return None;
    }
    // SplitMix64's finaliser spreads neighbouring seeds.
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let i = (z ^ z >> 31) as usize % all.len();
    Some(all.swap_remove(i))
}

/// Makes all totals, thresholds and ordinals fit the posts that are there.
///
/// A wait for all posts stays one for all; a prefix keeps its length where that is possible. A wait for a word that
/// nobody posts to is left out.
pub fn retotal(program: &mut Program, registry: &Registry) {
    let blocks: Vec<u32> = (0..program.tasks.len()).map(|i| blocks(program, registry, i)).collect();
    let mut totals: HashMap<(u16, u32), u32> = HashMap::new();
    for (task, &blocks) in program.tasks.iter_mut().zip(&blocks) {
        for p in task.posts.iter_mut().filter(|p| p.used()) {
            for j in 0..p.count(blocks) {
                let total = totals.entry((p.rank, p.word + j)).or_default();
                *total += 1;
                if p.kind() != SignalKind::Add {
                    p.ordinal = *total;
                }
            }
        }
    }
    for s in program.streams.clone() {
        for id in s.tasks() {
            let task = &mut program.tasks[id.index()];
            for p in task.posts.iter_mut().filter(|p| p.used()) {
                p.total = totals.get(&(p.rank, p.word)).copied().unwrap_or(1);
            }
            for w in task.waits.iter_mut().filter(|w| w.used()) {
                let total = totals.get(&(s.rank.0, w.word)).copied().unwrap_or(0);
                w.upto = if w.upto == w.total { total } else { w.upto.clamp(total.min(1), total) };
                w.total = total;
            }
        }
    }
}

fn blocks(program: &Program, registry: &Registry, index: usize) -> u32 {
    let task = &program.tasks[index];
    let rank = program.stream_of(TaskId(index as u32)).rank;
    let env = Env { regions: &program.regions, rank, ranks: program.ranks };
    let handler = program.handlers.get(task.op.index()).and_then(|h| registry.handler(&h.name).ok());
    handler.and_then(|(_, h)| h.spec(&task.args, &env).ok()).map_or(1, |s| s.blocks)
}

type Edits<T> = Vec<(String, T)>;

fn raised(w: &Wait) -> Edits<Wait> {
    let to = |upto| (format!("waits for {upto} posts instead of {}", w.upto), Wait { upto, ..*w });
    let mut edits = vec![to(w.upto + 1)];
    if w.upto < w.total {
        edits.push(to(w.total));
    }
    edits
}

fn lowered(w: &Wait) -> Edits<Wait> {
    let to = |upto| (format!("waits for {upto} posts instead of {}", w.upto), Wait { upto, ..*w });
    let mut edits = vec![to(w.upto.saturating_sub(1))];
    if w.upto > 2 {
        edits.push(to(1));
    }
    edits
}

fn with_lag(w: &Wait, lag: u8) -> (String, Wait) {
    (format!("lag {lag} instead of {}", w.lag()), Wait { bits: Wait::pack(w.at(), lag), ..*w })
}

fn later(w: &Wait) -> Edits<Wait> {
    let at = |at| Wait { bits: Wait::pack(at, w.lag()), ..*w };
    let mut edits = Vec::new();
    if w.at() != WaitAt::Store {
        edits.push(("before the store".to_string(), at(WaitAt::Store)));
    }
    if w.at() == WaitAt::Start && w.count > 1 {
        edits.push(("word by word".to_string(), at(WaitAt::Block)));
    }
    if w.at() == WaitAt::Block {
        edits.push(("every wider".to_string(), Wait { every: w.every * 2, ..*w }));
    }
    if w.count > 1 {
        edits.push(("without the last word".to_string(), Wait { count: w.count - 1, ..*w }));
        let word = w.word + u32::from(w.stride);
        edits.push(("without the first word".to_string(), Wait { count: w.count - 1, word, ..*w }));
        edits.push(("stride 0".to_string(), Wait { stride: 0, ..*w }));
    }
    edits
}

fn earlier(p: &Post) -> Edits<Post> {
    let loaded = Post { bits: Post::pack(PostAt::Loaded, p.kind(), p.clock()), ..*p };
    if p.at() == PostAt::Loaded { vec![] } else { vec![("when loaded".into(), loaded)] }
}

type Streams = Vec<(StreamTasks, Vec<Task>)>;

struct Maker<'a> {
    program: &'a Program,
    registry: &'a Registry,
    kind: Kind,
    mutants: Vec<Mutant>,
}

impl Maker<'_> {
    fn ids(&self) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.program.tasks.len() as u32).map(TaskId)
    }

    /// Keeps a mutant, and its retotalled twin where that is another program.
    fn keep(&mut self, place: String, what: String, program: Program) {
        let mut twin = program.clone();
        retotal(&mut twin, self.registry);
        // Thresholds are what these kinds change: making them fit again would undo the change.
        let undone = matches!(self.kind, Kind::RaiseThreshold | Kind::LowerThreshold);
        let twin_differs = !undone && twin != program && twin != *self.program;
        let kind = self.kind;
        if program != *self.program {
            let (place, what) = (place.clone(), what.clone());
            self.mutants.push(Mutant { kind, retotalled: false, place, what, program });
        }
        if twin_differs {
            self.mutants.push(Mutant { kind, retotalled: true, place, what, program: twin });
        }
    }

    fn waits(&mut self, edit: impl Fn(&Wait) -> Edits<Wait>) {
        for id in self.ids() {
            for slot in 0..Limits::WAITS {
                let wait = self.program.task(id).waits[slot];
                if !wait.used() {
                    continue;
                }
                let rank = self.program.stream_of(id).rank;
                for (what, edited) in edit(&wait) {
                    let mut p = self.program.clone();
                    p.tasks[id.index()].waits[slot] = edited;
                    let what = format!("wait for {}: {what}", self.program.word_name(rank, wait.word));
                    self.keep(self.program.task_name(id), what, p);
                }
            }
        }
    }

    fn posts(&mut self, edit: impl Fn(&Post) -> Edits<Post>) {
        for id in self.ids() {
            for slot in 0..Limits::POSTS {
                let post = self.program.task(id).posts[slot];
                if !post.used() {
                    continue;
                }
                for (what, edited) in edit(&post) {
                    let mut p = self.program.clone();
                    p.tasks[id.index()].posts[slot] = edited;
                    let what = format!("post to {}: {what}", self.program.word_name(post.to(), post.word));
                    self.keep(self.program.task_name(id), what, p);
                }
            }
        }
    }

    /// The next word, the one before, and one of another signal.
    fn other_words(&self, word: u32) -> Vec<u32> {
        let words = self.program.words() as u32;
        let mut others = vec![word + 1, word.wrapping_sub(1)];
        let own = self.program.signal_of(word).map(|s| s.0.first);
        others.extend(self.program.signals.iter().map(|s| s.first).find(|&f| Some(f) != own));
        others.retain(|&w| w < words && w != word);
        others.dedup();
        others
    }

    fn retarget_waits(&mut self) {
        let program = self.program;
        let others: HashMap<u32, Vec<u32>> =
            (0..program.words() as u32).map(|w| (w, self.other_words(w))).collect();
        self.waits(|w| {
            let to = |&word: &u32| (format!("for word {word} instead"), Wait { word, ..*w });
            others.get(&w.word).into_iter().flatten().map(to).collect()
        });
    }

    fn retarget_posts(&mut self) {
        let program = self.program;
        let others: HashMap<u32, Vec<u32>> =
            (0..program.words() as u32).map(|w| (w, self.other_words(w))).collect();
        self.posts(|p| {
            let to = |&word: &u32| (format!("to word {word} instead"), Post { word, ..*p });
            others.get(&p.word).into_iter().flatten().map(to).collect()
        });
    }

    fn retarget_ranks(&mut self) {
        let ranks = self.program.ranks as u16;
        self.posts(|p| {
            let to = |rank: u16| (format!("to rank {rank} instead"), Post { rank, ..*p });
            (0..ranks.min(4)).filter(|&r| r != p.rank).map(to).collect()
        });
    }

    fn split(&self) -> Streams {
        let tasks =
            |s: &StreamTasks| self.program.tasks[s.first as usize..(s.first + s.len) as usize].to_vec();
        self.program.streams.iter().map(|s| (*s, tasks(s))).collect()
    }

    fn join(&self, mut streams: Streams) -> Program {
        let mut p = self.program.clone();
        streams.retain(|s| !s.1.is_empty());
        streams.sort_by_key(|s| (s.0.rank, s.0.queue, s.0.stream));
        (p.tasks, p.streams) = (Vec::new(), Vec::new());
        for (s, tasks) in streams {
            p.streams.push(StreamTasks { first: p.tasks.len() as u32, len: tasks.len() as u32, ..s });
            p.tasks.extend(tasks);
            if let Queue::Lane(lane) = s.queue {
                let lanes = &mut p.lanes[s.rank.index()];
                *lanes = (*lanes).max(lane.0 + 1);
            }
        }
        p
    }

    /// Calls `edit` with all streams, a stream and a task's place in it.
    fn each_task(&mut self, edit: impl Fn(&Streams, usize, usize) -> Edits<Streams>) {
        let streams = self.split();
        for s in 0..streams.len() {
            for i in 0..streams[s].1.len() {
                let name = self.program.task_name(TaskId(streams[s].0.first + i as u32));
                for (what, edited) in edit(&streams, s, i) {
                    let p = self.join(edited);
                    self.keep(name.clone(), what, p);
                }
            }
        }
    }

    fn swap(&mut self) {
        self.each_task(|streams, s, i| {
            let mut edited = streams.clone();
            if i + 1 == edited[s].1.len() {
                return vec![];
            }
            edited[s].1.swap(i, i + 1);
            vec![("swapped with the next".into(), edited)]
        });
    }

    fn relocate(&mut self) {
        self.each_task(|streams, s, i| {
            let from = streams[s].0;
            let mut edits: Edits<Streams> = Vec::new();
            for (to, target) in streams.iter().enumerate() {
                let same = target.0.rank == from.rank && target.0.stream == from.stream;
                if to == s || !same {
                    continue;
                }
                for place in [0, target.1.len()] {
                    let mut edited = streams.clone();
                    let task = edited[s].1.remove(i);
                    edited[to].1.insert(place, task);
                    edits.push((format!("moved to {:?}, place {place}", target.0.queue), edited));
                }
            }
            for place in [0, streams[s].1.len() - 1] {
                let mut edited = streams.clone();
                let task = edited[s].1.remove(i);
                edited[s].1.insert(place, task);
                edits.push((format!("moved to place {place}"), edited));
            }
            if let Queue::Lane(_) = from.queue {
                let mut edited = streams.clone();
                let task = edited[s].1.remove(i);
                edited.push((StreamTasks { queue: Queue::Lane(Lane(7)), ..from }, vec![task]));
                edits.push(("moved to lane 7".into(), edited));
            }
            edits
        });
    }

    fn duplicate(&mut self) {
        self.each_task(|streams, s, i| {
            let mut next = streams.clone();
            let task = next[s].1[i];
            next[s].1.insert(i + 1, task);
            let mut elsewhere = streams.clone();
            let quiet = Task { posts: Default::default(), ..task };
            elsewhere[s].1.push(quiet);
            let mut free = streams.clone();
            let quiet = Task { waits: Default::default(), ..quiet };
            free[s].1.push(quiet);
            vec![
                ("again after itself".into(), next),
                ("again at the end, without posts".into(), elsewhere),
                ("again at the end, without waits and posts".into(), free),
            ]
        });
    }

    fn remove(&mut self) {
        self.each_task(|streams, s, i| {
            let mut edited = streams.clone();
            edited[s].1.remove(i);
            vec![("removed".into(), edited)]
        });
    }

    fn args(&mut self, wanted: impl Fn(&str) -> bool, by: &[i64]) {
        for id in self.ids() {
            let task = self.program.task(id);
            let Ok((_, handler)) = self.registry.handler(&self.program.handlers[task.op.index()].name) else {
                continue;
            };
            let json = handler.args_to_json(&task.args);
            let Some(fields) = json.as_object() else { continue };
            for (key, value) in fields.iter().filter(|(k, _)| wanted(k)) {
                for &d in by {
                    let Some(new) = value.as_u64().and_then(|v| v.checked_add_signed(d)) else { continue };
                    let mut edited = fields.clone();
                    edited.insert(key.clone(), new.into());
                    let Ok(raw) = serde_json::value::to_raw_value(&edited) else { continue };
                    let Ok(args) = handler.args_from_json(&raw) else { continue };
                    let mut p = self.program.clone();
                    p.tasks[id.index()].args = args;
                    self.keep(self.program.task_name(id), format!("{key}: {value} becomes {new}"), p);
                }
            }
        }
    }

    fn depth(&mut self) {
        for (i, region) in self.program.regions.iter().enumerate() {
            for depth in (1..=Limits::DEPTH.min(4)).filter(|&d| d != region.depth) {
                let mut p = self.program.clone();
                p.regions[i].depth = depth;
                let what = format!("{depth} copies instead of {}", region.depth);
                self.keep(format!("'{}'", region.name), what, p);
            }
        }
    }

    fn merge(&mut self) {
        for rank in 0..self.program.ranks as u16 {
            for a in 0..self.program.words() as u32 {
                for b in self.other_words(a).into_iter().filter(|&b| b > a) {
                    if let Some(p) = self.merged(rank, a, b) {
                        let name = |w| self.program.word_name(mk_core::Rank(rank), w);
                        self.keep(name(a), format!("merged with {}", name(b)), p);
                    }
                }
            }
        }
    }

    /// Posts to and waits for word `b` of `rank` go to `a`; `None` where a strided one makes that impossible.
    fn merged(&self, rank: u16, a: u32, b: u32) -> Option<Program> {
        let mut p = self.program.clone();
        for s in &self.program.streams {
            for id in s.tasks() {
                let task = &mut p.tasks[id.index()];
                for w in task.waits.iter_mut().filter(|w| s.rank.0 == rank && w.used()) {
                    let words: Vec<u32> = w.words().collect();
                    match (words.contains(&b), words.len()) {
                        (true, 1) => w.word = a,
                        (true, 2) if words.contains(&a) => (w.word, w.count) = (a, 1),
                        (true, _) => return None,
                        (false, _) => {}
                    }
                }
                for post in task.posts.iter_mut().filter(|x| x.rank == rank && x.used()) {
                    match (post.word == b, post.at()) {
                        (_, PostAt::Block) if post.word <= b => return None,
                        (true, _) => post.word = a,
                        (false, _) => {}
                    }
                }
            }
        }
        Some(p)
    }
}
