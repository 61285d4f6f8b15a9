//! A program as the engine runs it: every task's spec is taken once, and what remains of it is small and flat.

use crate::checks::Item;
use crate::links::{LOCAL, Links};
use mk_core::{
    Access, Carrier, Env, Error, Hardware, Io, Mode, Phase, Post, PostAt, Program, Queue, Rank, Registry,
    SignalKind, Spec, Stream, StreamTasks, Task, TaskId, Verified, Wait, WaitAt,
};
use std::ops::Range;
use std::sync::Arc;

/// Where a program comes from.
#[derive(Clone)]
pub(crate) enum Source {
    /// It was proved.
    Proved(Verified),
    /// It was not: a test wants to see it fail.
    Unproved(Arc<Program>),
}

impl Source {
    pub(crate) fn program(&self) -> &Program {
        match self {
            Source::Proved(v) => v.program(),
            Source::Unproved(p) => p,
        }
    }
}

/// One access of a task that crosses a link, or of a comm task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg {
    pub(crate) access: Access,
    /// Bytes of an element.
    pub(crate) element: u64,
    /// From the executing rank to that of the access; [`LOCAL`] for its own.
    pub(crate) there: u32,
    /// Back.
    pub(crate) back: u32,
    /// Time that its bytes hold a port over the profile's.
    pub(crate) weight: f64,
}

impl Leg {
    /// Bytes that block `block` moves.
    #[inline]
    pub(crate) fn bytes(&self, block: u32) -> u64 {
        match self.access.walk {
            mk_core::Walk::Whole if block > 0 => 0,
            _ => self.access.block_rect(block).area() * self.element,
        }
    }
}

/// What the engine knows of a task, besides its waits and posts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskInfo {
    /// Nanoseconds.
    pub(crate) load: f32,
    pub(crate) math: f32,
    pub(crate) store: f32,
    pub(crate) blocks: u32,
    /// Place of its first post in the log of an epoch.
    pub(crate) log: u32,
    /// Its first leg.
    pub(crate) legs: u32,
    /// Link of each post.
    pub(crate) post_links: [u32; 2],
    pub(crate) opcode: u16,
    pub(crate) leg_count: u8,
    /// Bits, see below.
    pub(crate) flags: u8,
}

/// Its transport carries its posts to other ranks.
pub(crate) const CARRIED: u8 = 1;
/// One of its stores updates: the model needs what is there.
pub(crate) const UPDATES: u8 = 2;
/// One of its posts is made block by block.
pub(crate) const BY_BLOCK: u8 = 4;
/// One of its posts is a packet.
pub(crate) const PACKET: u8 = 8;
/// It writes to another rank.
pub(crate) const REMOTE_WRITE: u8 = 16;

impl TaskInfo {
    #[inline]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A unit that the program needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitPlan {
    pub(crate) stream: u32,
    pub(crate) rank: u16,
    pub(crate) lane: u16,
    pub(crate) comm: bool,
    pub(crate) ticket: bool,
}

/// Words that programs share by name: from `first` in this program, at `base` in the session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedWords {
    pub(crate) first: u32,
    pub(crate) words: u32,
    pub(crate) base: usize,
}

/// Where a program's words are in the session.
#[derive(Clone, Debug, Default)]
pub(crate) struct WordMap {
    /// Of word 0 of rank 0.
    pub(crate) base: usize,
    /// Words of each rank.
    pub(crate) words: usize,
    /// By clock - 1.
    pub(crate) shared: Vec<SharedWords>,
}

impl WordMap {
    /// A word's place in the session.
    #[inline]
    pub(crate) fn at(&self, rank: Rank, word: u32, clock: u8) -> usize {
        if clock == 0 {
            return self.base + rank.index() * self.words + word as usize;
        }
        let s = &self.shared[clock as usize - 1];
        s.base + rank.index() * s.words as usize + (word - s.first) as usize
    }
}

/// How many posts a word receives in an epoch: `Add` posts, or the highest ordinal.
pub(crate) struct Totals {
    pub(crate) counts: Vec<u32>,
    /// `Set` and `Packet`: the posts an epoch that the records speak of; empty if there are no such words.
    pub(crate) claimed: Vec<u32>,
}

/// A program that is loaded.
pub(crate) struct Plan {
    pub(crate) source: Source,
    pub(crate) opcodes: Vec<u16>,
    pub(crate) tasks: Vec<TaskInfo>,
    pub(crate) legs: Vec<Leg>,
    pub(crate) units: Vec<UnitPlan>,
    /// Units and streams of each rank.
    pub(crate) rank_units: Vec<Range<usize>>,
    pub(crate) rank_tasks: Vec<u64>,
    /// Posts of an epoch.
    pub(crate) posts: usize,
    pub(crate) words: WordMap,
    pub(crate) totals: Totals,
    /// Accesses that can race or leave gaps, by region and rank.
    pub(crate) items: Vec<Vec<Vec<Item>>>,
    /// The session's region for each of the program's.
    pub(crate) regions: Vec<usize>,
    /// Its name in the session of shared signals, by clock - 1.
    pub(crate) clocks: Vec<String>,
}

impl Plan {
    pub(crate) fn program(&self) -> &Program {
        self.source.program()
    }

    /// A task's accesses that cross a link; all of them for a comm task.
    #[inline]
    pub(crate) fn legs_of(&self, info: &TaskInfo) -> &[Leg] {
        &self.legs[info.legs as usize..info.legs as usize + usize::from(info.leg_count)]
    }

    /// A task's spec, once more, for its bytes.
    pub(crate) fn spec(&self, registry: &Registry, rank: Rank, task: u32) -> Result<Spec, Error> {
        let (program, opcode) = (self.program(), self.tasks[task as usize].opcode);
        program.spec(registry, opcode, rank, program.task(TaskId(task)))
    }

    /// Whose it is. A search: for messages and checks only.
    pub(crate) fn rank_of(&self, task: u32) -> Rank {
        self.program().stream_of(TaskId(task)).rank
    }
}

/// Reads a program.
pub(crate) struct Planner<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) hardware: &'a Hardware,
    pub(crate) links: &'a mut Links,
}

impl Planner<'_> {
    /// Takes every task's spec. Words and regions have no place in the session yet.
    pub(crate) fn plan(&mut self, source: Source) -> Result<Plan, Error> {
        let opcodes = match &source {
            Source::Proved(v) => v.opcodes().to_vec(),
            Source::Unproved(p) => p.opcodes(self.registry)?,
        };
        let program = source.program();
        program.well_formed(self.registry)?;
        let (words, ranks) = (program.words() as usize, program.ranks as usize);
        let set = program.signals.iter().any(|s| s.kind != SignalKind::Add);
        let mut plan = Plan {
            opcodes,
            tasks: Vec::with_capacity(program.tasks.len()),
            legs: Vec::new(),
            units: Vec::new(),
            rank_units: vec![0..0; ranks],
            rank_tasks: vec![0; ranks],
            posts: 0,
            words: WordMap { base: 0, words, shared: Vec::new() },
            totals: Totals {
                counts: vec![0; words * ranks],
                claimed: vec![0; if set { words * ranks } else { 0 }],
            },
            items: program.regions.iter().map(|_| vec![Vec::new(); ranks]).collect(),
            regions: Vec::new(),
            clocks: program.shared_signals().map(|s| s.name.clone()).collect(),
            source: source.clone(),
        };
        let clocks = clocks(program);
        for stream in &program.streams {
            plan.rank_tasks[stream.rank.index()] += u64::from(stream.len);
            for id in stream.tasks() {
                self.add(&mut plan, program, stream, id, &clocks)?;
            }
        }
        add_units(&mut plan, program);
        Ok(plan)
    }

    fn add(
        &mut self,
        plan: &mut Plan,
        program: &Program,
        stream: &StreamTasks,
        id: TaskId,
        clocks: &[Clock],
    ) -> Result<(), Error> {
        let task = program.task(id);
        let bad = |text: String| cannot_run(program, Some(id), text);
        let opcode = *plan.opcodes.get(task.op.index()).ok_or_else(|| bad("names no handler".into()))?;
        let handler = &self.registry.handlers()[opcode as usize];
        if handler.stream() != stream.stream {
            return Err(bad(format!("is {:?} work in a {:?} stream", handler.stream(), stream.stream)));
        }
        let rank = stream.rank;
        let env = Env { regions: &program.regions, rank, ranks: program.ranks };
        let spec = handler.spec(&task.args, &env).map_err(|e| bad(e.to_string()))?;
        let cost = self.hardware.time(handler.name(), &spec, program.lanes[rank.index()].into());
        let mut info = TaskInfo {
            load: cost.load_ns as f32,
            math: cost.math_ns as f32,
            store: cost.store_ns as f32,
            blocks: spec.blocks.max(1),
            log: u32::try_from(plan.posts).map_err(|_| bad("makes one post too many".into()))?,
            legs: plan.legs.len() as u32,
            post_links: [LOCAL; 2],
            opcode,
            leg_count: 0,
            flags: if handler.carrier() == Carrier::Transport { CARRIED } else { 0 },
        };
        for access in &spec.accesses {
            self.access(plan, program, stream, id, &mut info, access).map_err(bad)?;
        }
        for w in task.waits() {
            check_wait(program, clocks, w, info.blocks, stream.stream).map_err(bad)?;
        }
        for (k, post) in task.posts.iter().enumerate().filter(|(_, p)| p.used()) {
            check_post(program, clocks, post, info.blocks, stream.stream).map_err(bad)?;
            info.post_links[k] = self.post_link(&info, rank, post).ok_or_else(|| {
                bad(format!(
                    "posts to {}, which nothing registered can reach",
                    program.word_name(post.to(), post.word)
                ))
            })?;
            count(plan, &mut info, post);
        }
        plan.tasks.push(info);
        Ok(())
    }

    fn access(
        &mut self,
        plan: &mut Plan,
        program: &Program,
        stream: &StreamTasks,
        id: TaskId,
        info: &mut TaskInfo,
        access: &Access,
    ) -> Result<(), String> {
        let region = program.regions.get(access.region.index());
        let Some(region) = region.filter(|_| u32::from(access.rank.0) < program.ranks) else {
            return Err(format!("touches {} on {}, which does not exist", access.region, access.rank));
        };
        if access.rect.is_empty() {
            // It keeps its place among the legs of a comm task's blocks: none.
            return Ok(());
        }
        if !access.rect.fits(region.extent(access.rank)) {
            let [rows, cols] = region.extent(access.rank);
            return Err(format!("touches {} of '{}', which is {rows} x {cols}", access.rect, region.name));
        }
        if region.io == Io::Input && access.mode.writes() {
            return Err(format!("writes to the input '{}'", region.name));
        }
        let comm = stream.stream == Stream::Comm;
        if comm != (access.at == Phase::Comm) {
            return Err(format!("has a {:?} access in a {:?} stream", access.at, stream.stream));
        }
        info.flags |= if access.at == Phase::Store && access.mode == Mode::Update { UPDATES } else { 0 };
        if region.io != Io::Input {
            plan.items[access.region.index()][access.rank.index()].push(Item::new(access, id.0));
        }
        let remote = access.rank != stream.rank;
        info.flags |= if remote && access.mode.writes() { REMOTE_WRITE } else { 0 };
        if !comm && !remote {
            return Ok(());
        }
        let there = self.links.of_handler(info.opcode, stream.rank, access.rank);
        let back = self.links.of_handler(info.opcode, access.rank, stream.rank);
        let (Some(there), Some(back)) = (there, back) else {
            return Err(format!(
                "touches '{}' on {}, which nothing registered reaches",
                region.name, access.rank
            ));
        };
        // What a compute task takes is weighed as a whole.
        let weight = if comm {
            self.hardware.factor(self.registry.handlers()[info.opcode as usize].name())
        } else {
            1.0
        };
        plan.legs.push(Leg { access: *access, element: region.dtype.bytes(), there, back, weight });
        info.leg_count = info.leg_count.checked_add(1).ok_or("touches more than 255 rectangles")?;
        Ok(())
    }

    fn post_link(&mut self, info: &TaskInfo, rank: Rank, post: &Post) -> Option<u32> {
        match info.has(CARRIED) {
            true => self.links.of_handler(info.opcode, rank, post.to()),
            false => self.links.atomic(rank, post.to()),
        }
    }
}

fn cannot_run(program: &Program, id: Option<TaskId>, text: String) -> Error {
    let who = id.map_or_else(|| format!("program '{}'", program.name), |id| program.task_name(id));
    Error::input(
        format!("a program that cannot be run: {who} {text}"),
        &program.name,
        "a program that the verifier proves",
        "verify the program: the verifier says what is wrong",
    )
}

/// Words of one signal, and the clock that its waits and posts must name.
struct Clock {
    words: Range<u64>,
    clock: u8,
}

fn clocks(program: &Program) -> Vec<Clock> {
    let mut shared = 0;
    let clock = |s: &mk_core::Signal| {
        shared += u8::from(s.shared);
        let first = u64::from(s.first);
        Clock { words: first..first + u64::from(s.words), clock: if s.shared { shared } else { 0 } }
    };
    program.signals.iter().map(clock).collect()
}

fn known(clocks: &[Clock], first: u64, last: u64, clock: u8) -> bool {
    clocks.iter().any(|c| c.words.contains(&first) && c.words.contains(&last) && c.clock == clock)
}

fn check_wait(
    program: &Program,
    clocks: &[Clock],
    w: &Wait,
    blocks: u32,
    stream: Stream,
) -> Result<(), String> {
    let first = u64::from(w.word);
    let last = first + u64::from(w.count.saturating_sub(1)) * u64::from(w.stride);
    let too_many = w.at() == WaitAt::Block
        && u64::from(w.count.saturating_sub(1)) * u64::from(w.every) >= u64::from(blocks);
    if w.at() == WaitAt::Store && stream == Stream::Comm {
        return Err("is a comm task and waits before it stores".into());
    }
    if w.count == 0 || w.every == 0 || too_many || !known(clocks, first, last, w.clock) {
        let words = program.words();
        return Err(format!("waits for words that make no sense ({w:?}, {words} words, {blocks} blocks)"));
    }
    Ok(())
}

fn check_post(
    program: &Program,
    clocks: &[Clock],
    p: &Post,
    blocks: u32,
    stream: Stream,
) -> Result<(), String> {
    let (first, count) = (u64::from(p.word), u64::from(p.count(blocks)));
    let block_of_compute = p.at() == PostAt::Block && stream == Stream::Compute;
    let to = u32::from(p.to().0) < program.ranks;
    if !to || p.every == 0 || block_of_compute || !known(clocks, first, first + count - 1, p.clock()) {
        return Err(format!(
            "makes a post that makes no sense ({p:?}, {} words, {blocks} blocks)",
            program.words()
        ));
    }
    Ok(())
}

/// Adds a post to what its words receive.
fn count(plan: &mut Plan, info: &mut TaskInfo, post: &Post) {
    info.flags |= match post.at() {
        PostAt::Block => BY_BLOCK,
        _ => 0,
    };
    info.flags |= if post.kind() == SignalKind::Packet { PACKET } else { 0 };
    let first = post.to().index() * plan.words.words + post.word as usize;
    let count = post.count(info.blocks) as usize;
    plan.posts += count;
    for at in first..first + count {
        let total = &mut plan.totals.counts[at];
        if post.kind() == SignalKind::Add {
            *total = total.saturating_add(1);
        } else {
            *total = (*total).max(post.ordinal);
            plan.totals.claimed[at] = post.total;
        }
    }
}

fn add_units(plan: &mut Plan, program: &Program) {
    for (i, s) in program.streams.iter().enumerate() {
        let rank = s.rank.index();
        let unit = |lane, ticket| UnitPlan {
            stream: i as u32,
            rank: s.rank.0,
            lane,
            comm: s.stream == Stream::Comm,
            ticket,
        };
        let before = plan.units.len();
        match s.queue {
            Queue::Lane(lane) => plan.units.push(unit(lane.0, false)),
            Queue::Ticket => plan.units.extend((0..program.lanes[rank]).map(|lane| unit(lane, true))),
        }
        let range = &mut plan.rank_units[rank];
        if range.start == range.end {
            range.start = before;
        }
        range.end = plan.units.len();
    }
}

/// The waits of a task, with their places, where they are used.
#[inline]
pub(crate) fn waits(task: &Task) -> impl Iterator<Item = (usize, &Wait)> {
    task.waits.iter().enumerate().filter(|(_, w)| w.used())
}
