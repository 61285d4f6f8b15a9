//! The builder: tasks, edges and credits are asked for; thresholds are computed.

mod words;

use crate::program::{HandlerId, StreamTasks};
use crate::{
    DeviceAbi, DynHandler, Env, Error, Lane, Limits, OpId, Post, PostAt, Program, Queue, Rank, Region,
    RegionId, Registry, Signal, SignalKind, Stream, Task, Wait, WaitAt,
};
use std::collections::HashMap;
use words::Words;

/// A handler in a program under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    id: OpId,
    opcode: u16,
}

/// A task in a program under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskRef {
    stream: u32,
    index: u32,
}

/// A label in a program under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(u32);

/// A signal in a program under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalRef(u16);

/// What a task waits for: all posts to some words, or the posts of one in-order stream up to a task's.
///
/// ```text
/// WaitFor::all(arrival, 12).count(4).each_block(8)    // word 12 before block 0, word 13 before block 8, ...
/// WaitFor::all(credit, 3).lag(1)                      // everything that the previous epoch posted to word 3
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WaitFor {
    signal: SignalRef,
    index: u64,
    count: u64,
    stride: u64,
    every: u64,
    at: WaitAt,
    lag: u8,
    upto: Option<TaskRef>,
}

impl WaitFor {
    /// All posts that word `index` of the task's own rank receives in this epoch.
    pub fn all(signal: SignalRef, index: u64) -> WaitFor {
        WaitFor { signal, index, count: 1, stride: 1, every: 1, at: WaitAt::Start, lag: 0, upto: None }
    }

    /// The posts to word `index` up to that of `producer`; all of them must come from one stream with an order.
    pub fn upto(signal: SignalRef, index: u64, producer: TaskRef) -> WaitFor {
        WaitFor { upto: Some(producer), ..WaitFor::all(signal, index) }
    }

    /// `count` words instead of one.
    pub fn count(self, count: u64) -> WaitFor {
        WaitFor { count, ..self }
    }

    /// The words are this far apart.
    pub fn stride(self, stride: u64) -> WaitFor {
        WaitFor { stride, ..self }
    }

    /// Word `j` is needed only before block `j * every`.
    pub fn each_block(self, every: u64) -> WaitFor {
        WaitFor { at: WaitAt::Block, every, ..self }
    }

    /// Needed only before the first byte is stored.
    pub fn before_store(self) -> WaitFor {
        WaitFor { at: WaitAt::Store, ..self }
    }

    /// The posts of the epoch that lies `lag` back: a credit.
    pub fn lag(self, lag: u8) -> WaitFor {
        WaitFor { lag, ..self }
    }
}

/// What a task posts, and when.
#[derive(Clone, Copy, Debug)]
pub struct PostTo {
    rank: Rank,
    signal: SignalRef,
    index: u64,
    at: PostAt,
    every: u64,
}

impl PostTo {
    /// Word `index` of `rank`, when everything that the task writes is visible.
    pub fn done(rank: Rank, signal: SignalRef, index: u64) -> PostTo {
        PostTo { rank, signal, index, at: PostAt::Done, every: 1 }
    }

    /// Word `index` of `rank`, when everything that the task reads has been read.
    pub fn loaded(rank: Rank, signal: SignalRef, index: u64) -> PostTo {
        PostTo { at: PostAt::Loaded, ..PostTo::done(rank, signal, index) }
    }

    /// Words `index`, `index + 1`, ... of `rank`, one after every `every` units of a comm task.
    pub fn each_block(rank: Rank, signal: SignalRef, index: u64, every: u64) -> PostTo {
        PostTo { at: PostAt::Block, every, ..PostTo::done(rank, signal, index) }
    }
}

struct Pending {
    task: Task,
    blocks: u32,
    wait_signals: [u16; Limits::WAITS],
    post_signals: [u16; Limits::POSTS],
}

struct PendingStream {
    rank: Rank,
    queue: Queue,
    stream: Stream,
    tasks: Vec<Pending>,
}

/// Builds a [`Program`].
///
/// Regions, signals and handlers are named; tasks are added to lanes; each says what it waits for and what it
/// posts. [`finish`](ProgramBuilder::finish) counts the posts of every word and computes every threshold.
pub struct ProgramBuilder {
    registry: Registry,
    name: String,
    ranks: u32,
    lanes: Vec<u16>,
    regions: Vec<Region>,
    signals: Vec<Signal>,
    handlers: Vec<HandlerId>,
    ops: HashMap<u16, Op>,
    labels: Vec<String>,
    streams: Vec<PendingStream>,
    stream_ids: HashMap<(Rank, Queue, Stream), u32>,
    /// Prefix waits: (task, wait slot, producer).
    prefixes: Vec<(TaskRef, usize, TaskRef)>,
    /// Words of the automatic signals of edges: (kind, lag) -> signal, next word of each rank.
    edges: Vec<(SignalKind, SignalRef, Vec<u32>)>,
    /// What was wrong with a call that returns no error; `finish` does.
    wrong: Option<Error>,
}

impl ProgramBuilder {
    /// An empty program for the registry's world.
    pub fn new(name: &str, registry: &Registry) -> ProgramBuilder {
        let ranks = registry.world().size();
        ProgramBuilder {
            registry: registry.clone(),
            name: name.into(),
            ranks,
            lanes: vec![0; ranks as usize],
            regions: Vec::new(),
            signals: Vec::new(),
            handlers: Vec::new(),
            ops: HashMap::new(),
            labels: vec![String::new()],
            streams: Vec::new(),
            stream_ids: HashMap::new(),
            prefixes: Vec::new(),
            edges: Vec::new(),
            wrong: None,
        }
    }

    /// The registry that it was made with.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Adds a region.
    ///
    /// # Errors
    /// A name twice, a size beyond the limits, a shape for another number of ranks.
    pub fn region(&mut self, region: Region) -> Result<RegionId, Error> {
        if self.regions.iter().any(|r| r.name == region.name) {
            return Err(Error::build(
                format!("two regions are called '{}'", region.name),
                "give each region its own name",
            ));
        }
        if self.regions.len() as u64 >= Limits::REGIONS {
            return Err(Error::build("too many regions", format!("use at most {}", Limits::REGIONS)));
        }
        check_region(&region, self.ranks)?;
        self.regions.push(region);
        Ok(RegionId((self.regions.len() - 1) as u16))
    }

    /// Adds a group of `words` signal words on every rank.
    ///
    /// # Errors
    /// A name twice, or too many words.
    pub fn signal(&mut self, name: &str, kind: SignalKind, words: u64) -> Result<SignalRef, Error> {
        if self.signals.iter().any(|s| s.name == name) {
            return Err(Error::build(
                format!("two signals are called '{name}'"),
                "give each signal its own name",
            ));
        }
        let before: u64 = self.signals.iter().map(|s| s.words as u64).sum();
        if before.saturating_add(words) > Limits::WORDS || self.signals.len() >= u16::MAX as usize {
            return Err(Error::build(
                format!("signal '{name}' needs {words} words on top of {before}"),
                format!("use at most {} words a rank: larger tiles or chunks need fewer", Limits::WORDS),
            ));
        }
        self.signals.push(Signal { name: name.into(), kind, first: 0, words: words as u32, shared: false });
        Ok(SignalRef((self.signals.len() - 1) as u16))
    }

    /// Adds a signal that programs of one session share by name.
    ///
    /// # Errors
    /// As [`ProgramBuilder::signal`]; or too many shared signals.
    pub fn shared_signal(&mut self, name: &str, kind: SignalKind, words: u64) -> Result<SignalRef, Error> {
        if self.signals.iter().filter(|s| s.shared).count() as u64 >= Limits::SHARED_SIGNALS {
            return Err(Error::build(
                "too many shared signals",
                format!("share at most {}; one signal may have many words", Limits::SHARED_SIGNALS),
            ));
        }
        let s = self.signal(name, kind, words)?;
        self.signals[s.0 as usize].shared = true;
        Ok(s)
    }

    /// A handler, by name.
    ///
    /// # Errors
    /// It is not registered.
    pub fn op(&mut self, name: &str) -> Result<Op, Error> {
        let (opcode, handler) = self.registry.handler(name)?;
        let id = OpId(self.handlers.len() as u16);
        let handlers = &mut self.handlers;
        Ok(*self.ops.entry(opcode).or_insert_with(|| {
            handlers.push(HandlerId { name: name.into(), version: handler.version() });
            Op { id, opcode }
        }))
    }

    /// A name for tasks, in messages and traces.
    pub fn label(&mut self, text: impl Into<String>) -> Label {
        self.labels.push(text.into());
        Label((self.labels.len() - 1) as u32)
    }

    /// How many lanes `rank` uses. Tasks on a lane raise it by themselves; a ticket queue needs it.
    /// [`finish`](ProgramBuilder::finish) refuses a rank outside the world.
    pub fn lanes(&mut self, rank: Rank, lanes: u16) {
        match self.lanes.get_mut(rank.index()) {
            Some(have) => *have = lanes.max(*have),
            None => self.wrong = Some(self.outside(rank)),
        }
    }

    fn outside(&self, rank: Rank) -> Error {
        Error::build(format!("{rank} is outside the world"), format!("use ranks 0..{}", self.ranks))
    }

    /// Adds a task to the end of a stream of `rank`; the handler says whether it is compute or comm.
    ///
    /// # Errors
    /// The handler rejects the arguments, or there is no such rank or lane.
    pub fn task(
        &mut self,
        rank: Rank,
        queue: Queue,
        op: Op,
        label: Label,
        args: &impl DeviceAbi,
    ) -> Result<TaskRef, Error> {
        if self.ops.get(&op.opcode) != Some(&op) || label.0 as usize >= self.labels.len() {
            return Err(foreign("handler or label"));
        }
        let handler = &self.registry.handlers()[op.opcode as usize];
        let args = args.to_bytes();
        let env = Env { regions: &self.regions, rank, ranks: self.ranks };
        let spec = handler
            .spec(&args, &env)
            .map_err(|e| Error::Args { handler: handler.name().into(), message: e.to_string() })?;
        let stream = self.stream(rank, queue, handler.stream())?;
        let task = Task {
            op: op.id,
            flags: 0,
            label: label.0,
            waits: Default::default(),
            posts: Default::default(),
            args,
        };
        let tasks = &mut self.streams[stream as usize].tasks;
        tasks.push(Pending { task, blocks: spec.blocks, wait_signals: [0; 2], post_signals: [0; 2] });
        Ok(TaskRef { stream, index: (tasks.len() - 1) as u32 })
    }

    fn stream(&mut self, rank: Rank, queue: Queue, stream: Stream) -> Result<u32, Error> {
        if let Some(&id) = self.stream_ids.get(&(rank, queue, stream)) {
            return Ok(id);
        }
        if rank.0 as u32 >= self.ranks {
            return Err(self.outside(rank));
        }
        if let Queue::Lane(lane) = queue {
            if lane.0 as u64 >= Limits::LANES {
                return Err(Error::build(
                    format!("{lane} is beyond the limit"),
                    format!("use at most {} lanes", Limits::LANES),
                ));
            }
            self.lanes(rank, lane.0 + 1);
        }
        let id = self.streams.len() as u32;
        self.streams.push(PendingStream { rank, queue, stream, tasks: Vec::new() });
        self.stream_ids.insert((rank, queue, stream), id);
        Ok(id)
    }

    /// Refuses tasks of another builder, as far as they can be told apart.
    fn own_tasks(&self, tasks: &[TaskRef]) -> Result<(), Error> {
        let known = |t: &TaskRef| {
            self.streams.get(t.stream as usize).is_some_and(|s| (t.index as usize) < s.tasks.len())
        };
        if tasks.iter().all(known) { Ok(()) } else { Err(foreign("task")) }
    }

    fn own_signal(&self, signal: SignalRef) -> Result<(), Error> {
        if (signal.0 as usize) < self.signals.len() { Ok(()) } else { Err(foreign("signal")) }
    }

    fn pending(&mut self, t: TaskRef) -> &mut Pending {
        &mut self.streams[t.stream as usize].tasks[t.index as usize]
    }

    /// Makes a task wait.
    ///
    /// # Errors
    /// No wait slot is left, or the words do not exist.
    pub fn wait(&mut self, task: TaskRef, wait: WaitFor) -> Result<(), Error> {
        self.own_tasks(&[task])?;
        self.own_tasks(wait.upto.as_slice())?;
        self.own_signal(wait.signal)?;
        let signal = &self.signals[wait.signal.0 as usize];
        let last = wait.count.max(1) - 1;
        let end = last.checked_mul(wait.stride).and_then(|d| d.checked_add(wait.index));
        let small = |x: u64| (1..=Limits::SPAN).contains(&x);
        if !small(wait.count) || !small(wait.every) || wait.stride > Limits::SPAN || wait.lag > Limits::LAG {
            return Err(Error::build(
                format!("a wait for '{}' is out of range: {wait:?}", signal.name),
                format!("count, stride and every must be 1..={}, lag at most {}", Limits::SPAN, Limits::LAG),
            ));
        }
        if end.is_none_or(|e| e >= signal.words as u64) && !self.is_edge(wait.signal) {
            return Err(Error::build(
                format!("a wait for '{}' reaches word {end:?}, but there are {}", signal.name, signal.words),
                "declare the signal with more words",
            ));
        }
        if wait.at == WaitAt::Store && self.streams[task.stream as usize].stream == Stream::Comm {
            return Err(Error::build(
                format!(
                    "a comm task waits for '{}' before it stores",
                    self.signals[wait.signal.0 as usize].name
                ),
                "only compute tasks store; let it wait at the start or by block",
            ));
        }
        let pending = self.pending(task);
        let Some(slot) = pending.task.waits.iter().position(|w| !w.used()) else {
            return Err(Error::build(
                format!("a task has more than {} waits", Limits::WAITS),
                "join some of them in a wait task that posts one word",
            ));
        };
        pending.wait_signals[slot] = wait.signal.0;
        pending.task.waits[slot] = Wait {
            word: wait.index as u32,
            total: 1,
            upto: 1,
            count: wait.count as u16,
            stride: wait.stride as u16,
            every: wait.every as u16,
            clock: 0,
            bits: Wait::pack(wait.at, wait.lag),
        };
        if let Some(producer) = wait.upto {
            self.prefixes.push((task, slot, producer));
        }
        Ok(())
    }

    /// Makes a task post.
    ///
    /// # Errors
    /// No post slot is left, the words do not exist, or a compute task posts by block.
    pub fn post(&mut self, task: TaskRef, post: PostTo) -> Result<(), Error> {
        self.own_tasks(&[task])?;
        self.own_signal(post.signal)?;
        if post.rank.0 as u32 >= self.ranks {
            return Err(Error::build(
                format!("a post goes to {}", post.rank),
                format!("use ranks 0..{}", self.ranks),
            ));
        }
        let (name, words, kind) = {
            let s = &self.signals[post.signal.0 as usize];
            (s.name.clone(), s.words as u64, s.kind)
        };
        if !(1..=Limits::POST_EVERY).contains(&post.every) {
            return Err(Error::build(
                format!("a post to '{name}' is made every {} blocks", post.every),
                format!("every must be 1..={}", Limits::POST_EVERY),
            ));
        }
        let is_compute = self.streams[task.stream as usize].stream == Stream::Compute;
        if is_compute && post.at == PostAt::Block {
            return Err(Error::build(
                format!("a compute task posts to '{name}' by block"),
                "only comm tasks post by block; post when loaded or done",
            ));
        }
        let is_edge = self.is_edge(post.signal);
        let pending = self.pending(task);
        let record = Post {
            word: post.index as u32,
            total: 1,
            ordinal: 0,
            rank: post.rank.0,
            every: post.every as u8,
            bits: Post::pack(post.at, kind, 0),
        };
        let end = post.index.saturating_add(record.count(pending.blocks) as u64);
        if end > words && !is_edge {
            return Err(Error::build(
                format!("a post to '{name}' reaches word {}, but there are {words}", end - 1),
                "declare the signal with more words",
            ));
        }
        let Some(slot) = pending.task.posts.iter().position(|p| !p.used()) else {
            return Err(Error::build(
                format!("a task has more than {} posts", Limits::POSTS),
                "let a wait task pass the signal on",
            ));
        };
        let blocks = pending.blocks;
        let same = |i: usize| {
            pending.post_signals[i] == post.signal.0 && pending.task.posts[i].meets(&record, blocks)
        };
        if (0..slot).any(same) {
            return Err(Error::build(
                format!("a task posts twice to one word of '{name}'"),
                "one post is enough: the later one covers what the earlier one does",
            ));
        }
        pending.post_signals[slot] = post.signal.0;
        pending.task.posts[slot] = record;
        Ok(())
    }

    /// `to` starts only after everything that `from` write is visible. The words are chosen here: one a rank that
    /// posts, so that a rank which is an epoch ahead is never mistaken for another.
    ///
    /// # Errors
    /// No wait or post slot is left.
    pub fn edge(&mut self, from: &[TaskRef], to: TaskRef) -> Result<(), Error> {
        self.connect(from, to, PostAt::Done, 0)
    }

    /// `writer` starts only after `readers` have read, in the previous epoch, what it will overwrite.
    ///
    /// # Errors
    /// No wait or post slot is left.
    pub fn credit(&mut self, readers: &[TaskRef], writer: TaskRef) -> Result<(), Error> {
        self.connect(readers, writer, PostAt::Loaded, 1)
    }

    fn connect(&mut self, from: &[TaskRef], to: TaskRef, at: PostAt, lag: u8) -> Result<(), Error> {
        self.own_tasks(from)?;
        self.own_tasks(&[to])?;
        let to_rank = self.streams[to.stream as usize].rank;
        // One group a (rank, carrier) that posts, in the order in which they are named.
        let mut groups: Vec<((Rank, SignalKind), Vec<TaskRef>)> = Vec::new();
        for &t in from {
            let rank = self.streams[t.stream as usize].rank;
            let kind = match self.handler_of(t).carrier() {
                crate::Carrier::Frame => SignalKind::Add,
                crate::Carrier::Transport => SignalKind::Set,
            };
            // A Set word has one writing stream.
            let alone = kind == SignalKind::Set;
            match groups.iter_mut().find(|(k, g)| *k == (rank, kind) && (!alone || g[0].stream == t.stream)) {
                Some((_, g)) => g.push(t),
                None => groups.push(((rank, kind), vec![t])),
            }
        }
        for kind in [SignalKind::Add, SignalKind::Set] {
            let mut of_kind: Vec<&(_, Vec<TaskRef>)> = groups.iter().filter(|g| g.0.1 == kind).collect();
            of_kind.sort_by_key(|g| g.1.len());
            // Groups of the same size share one strided wait.
            for same in of_kind.chunk_by(|a, b| a.1.len() == b.1.len()) {
                let (signal, word) = self.edge_words(kind, to_rank, same.len() as u32)?;
                self.wait(to, WaitFor::all(signal, word as u64).count(same.len() as u64).lag(lag))?;
                for (i, (_, tasks)) in same.iter().enumerate() {
                    for &t in tasks {
                        let (rank, index) = (to_rank, word as u64 + i as u64);
                        self.post(t, PostTo { rank, signal, index, at, every: 1 })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn handler_of(&self, t: TaskRef) -> &dyn DynHandler {
        let op = self.streams[t.stream as usize].tasks[t.index as usize].task.op;
        let opcode = self.ops.values().find(|o| o.id == op).map_or(0, |o| o.opcode);
        &*self.registry.handlers()[opcode as usize]
    }

    fn is_edge(&self, signal: SignalRef) -> bool {
        self.edges.iter().any(|(_, s, _)| *s == signal)
    }

    fn edge_words(&mut self, kind: SignalKind, rank: Rank, count: u32) -> Result<(SignalRef, u32), Error> {
        if !self.edges.iter().any(|(k, ..)| *k == kind) {
            let name = if kind == SignalKind::Add { "edges" } else { "edges.set" };
            let signal = self.signal(name, kind, 0)?;
            self.edges.push((kind, signal, vec![0; self.ranks as usize]));
        }
        let (_, signal, next) =
            self.edges.iter_mut().find(|(k, ..)| *k == kind).expect("it was added just now");
        let word = next[rank.index()];
        next[rank.index()] += count;
        let words = &mut self.signals[signal.0 as usize].words;
        *words = (*words).max(word + count);
        Ok((*signal, word))
    }

    /// Counts the posts of every word and computes every threshold.
    ///
    /// # Errors
    /// A wait for words that nobody posts to, or whose posts differ in number; a `Set` or `Packet` word with more
    /// than one writing stream; a prefix wait whose word has no order; a limit that is exceeded.
    pub fn finish(mut self) -> Result<Program, Error> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        self.place_signals()?;
        let mut words = Words::new(&self)?;
        words.count(&mut self)?;
        self.fill_waits(&words)?;
        self.assemble()
    }

    /// Gives each signal its first word and turns places in a signal into words.
    fn place_signals(&mut self) -> Result<(), Error> {
        let mut first = 0u64;
        for s in &mut self.signals {
            s.first = first as u32;
            first += s.words as u64;
        }
        if first > Limits::WORDS {
            return Err(Error::build(
                format!("the signals need {first} words"),
                format!("use at most {} words a rank", Limits::WORDS),
            ));
        }
        let mut clock = 0;
        let clocks: Vec<u8> = self
            .signals
            .iter()
            .map(|s| {
                clock += u8::from(s.shared);
                if s.shared { clock } else { 0 }
            })
            .collect();
        for p in self.streams.iter_mut().flat_map(|s| &mut s.tasks) {
            for (w, &s) in p.task.waits.iter_mut().zip(&p.wait_signals).filter(|(w, _)| w.used()) {
                w.word += self.signals[s as usize].first;
                w.clock = clocks[s as usize];
            }
            for (w, &s) in p.task.posts.iter_mut().zip(&p.post_signals).filter(|(w, _)| w.used()) {
                w.word += self.signals[s as usize].first;
                w.bits = Post::pack(w.at(), w.kind(), clocks[s as usize]);
            }
        }
        Ok(())
    }

    fn fill_waits(&mut self, words: &Words) -> Result<(), Error> {
        for s in 0..self.streams.len() {
            let rank = self.streams[s].rank;
            for i in 0..self.streams[s].tasks.len() {
                for slot in 0..Limits::WAITS {
                    let w = self.streams[s].tasks[i].task.waits[slot];
                    if !w.used() {
                        continue;
                    }
                    let total = self.common_total(words, rank, &w)?;
                    let w = &mut self.streams[s].tasks[i].task.waits[slot];
                    (w.total, w.upto) = (total, total);
                }
            }
        }
        for (task, slot, producer) in std::mem::take(&mut self.prefixes) {
            let rank = self.streams[task.stream as usize].rank;
            let word = self.pending(task).task.waits[slot].word;
            let Some(upto) = words.prefix(self, rank, word, producer) else {
                return Err(Error::build(
                    format!("a prefix wait on {} is ambiguous", self.word_name(rank, word)),
                    "its posts must come from one lane's stream (no ticket queue), the named task among them",
                ));
            };
            self.pending(task).task.waits[slot].upto = upto;
        }
        Ok(())
    }

    /// The posts that each of the wait's words receives in an epoch.
    fn common_total(&self, words: &Words, rank: Rank, w: &Wait) -> Result<u32, Error> {
        let mut common = None;
        for word in w.words() {
            let total = words.total(rank, word);
            if total == 0 {
                return Err(Error::build(
                    format!("a task waits for {}, to which nobody posts", self.word_name(rank, word)),
                    "let the task that it depends on post there",
                ));
            }
            if *common.get_or_insert(total) != total {
                return Err(Error::build(
                    format!(
                        "a strided wait is ambiguous: {} receives {total} posts, the words before it {}",
                        self.word_name(rank, word),
                        common.unwrap_or(0)
                    ),
                    "use two waits, or make the posts equal",
                ));
            }
        }
        common.ok_or_else(|| Error::build("a wait for no words", "leave it out"))
    }

    fn word_name(&self, rank: Rank, word: u32) -> String {
        match self.signals.iter().find(|s| word >= s.first && word - s.first < s.words) {
            Some(s) => format!("'{}' word {} of {rank}", s.name, word - s.first),
            None => format!("word {word} of {rank}"),
        }
    }

    fn assemble(self) -> Result<Program, Error> {
        let total: u64 = self.streams.iter().map(|s| s.tasks.len() as u64).sum();
        if total > Limits::TASKS {
            return Err(Error::build(
                format!("{total} tasks"),
                format!("use at most {}: larger tiles need fewer", Limits::TASKS),
            ));
        }
        let mut pending = self.streams;
        pending.sort_by_key(|s| (s.rank, s.queue, s.stream));
        let mut tasks = Vec::with_capacity(total as usize);
        let mut streams = Vec::with_capacity(pending.len());
        for s in pending {
            let (first, len) = (tasks.len() as u32, s.tasks.len() as u32);
            streams.push(StreamTasks { rank: s.rank, queue: s.queue, stream: s.stream, first, len });
            tasks.extend(s.tasks.into_iter().map(|p| p.task));
        }
        Ok(Program {
            name: self.name,
            ranks: self.ranks,
            lanes: self.lanes,
            regions: self.regions,
            signals: self.signals,
            handlers: self.handlers,
            labels: self.labels,
            streams,
            tasks,
        })
    }
}

fn foreign(what: &str) -> Error {
    Error::build(format!("a {what} is not of this program"), "use what this builder gave back")
}

/// Checks a region on its own: its size, its depth, its shape.
pub(crate) fn check_region(region: &Region, ranks: u32) -> Result<(), Error> {
    let [rows, cols] = region.allocated();
    if rows > Limits::EXTENT || cols > Limits::EXTENT {
        return Err(Error::build(
            format!("region '{}' is {rows} x {cols}", region.name),
            format!("rows and columns are at most {}", Limits::EXTENT),
        ));
    }
    region.bytes()?;
    if region.depth == 0 || region.depth > Limits::DEPTH {
        return Err(Error::build(
            format!("region '{}' has {} copies", region.name, region.depth),
            format!("1 to {} copies", Limits::DEPTH),
        ));
    }
    if let crate::Shape::PerRank(v) = &region.shape
        && v.len() != ranks as usize
    {
        return Err(Error::build(
            format!("region '{}' has shapes for {} ranks", region.name, v.len()),
            format!("give one shape for each of the {ranks} ranks"),
        ));
    }
    Ok(())
}

/// The lane that task `i` of many goes to when they are dealt out in turn.
pub fn deal(i: u64, lanes: u16) -> Queue {
    Queue::Lane(Lane((i % lanes.max(1) as u64) as u16))
}
