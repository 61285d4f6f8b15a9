//! First pass: every record makes sense on its own, and what the others need is collected.

use super::frame::check_frame;
use super::reach::Reach;
use super::report::{Findings, refuted};
use super::{Finding, FindingKind as Kind};
use crate::{
    Access, Caps, Carrier, Env, Hardware, Io, Mode, Phase, Post, PostAt, Program, Queue, Rank, Rect, Region,
    RegionKind, Registry, SignalKind, Spec, Stream, Task, TaskId, Wait, WaitAt, Walk,
};

/// One access, or one block of it where its task posts by block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) rect: Rect,
    pub(super) walk: Walk,
    pub(super) task: TaskId,
    /// The block, where the access is cut into its blocks.
    pub(super) block: Option<u32>,
    pub(super) mode: Mode,
    pub(super) at: Phase,
}

/// Which stream writes a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    Nobody,
    /// One lane's stream, at one class of posts (loaded, or block and done).
    Stream(u32, bool),
    /// Several streams, or a ticket queue, of one rank.
    Rank(u16),
    Several,
}

/// A program and everything that was read off it.
pub(super) struct Facts<'a> {
    pub(super) program: &'a Program,
    pub(super) words: usize,
    /// Rank and blocks of each task.
    pub(super) rank_of: Vec<Rank>,
    pub(super) blocks: Vec<u32>,
    /// Posts that each word receives in an epoch: `rank * words + word`.
    pub(super) totals: Vec<u32>,
    pub(super) writers: Vec<Writer>,
    /// Accesses by region and rank; none of regions that are only read, and by their own rank only.
    pub(super) items: Vec<Vec<Vec<Item>>>,
    pub(super) accesses: u64,
    /// Whether any wait is for a prefix.
    pub(super) prefixes: bool,
}

impl<'a> Facts<'a> {
    /// Reads the program. Findings are recorded; where they leave nothing to go on with, there are no facts.
    pub(super) fn new(
        program: &'a Program,
        registry: &Registry,
        opcodes: &[u16],
        hardware: Option<&Hardware>,
        findings: &mut Findings,
    ) -> Option<Facts<'a>> {
        check_frame(program, registry, hardware, findings);
        if findings.any() {
            return None;
        }
        let (words, n) = (program.words() as usize, program.tasks.len());
        let all = words * program.ranks as usize;
        let mut facts =
            Facts {
                program,
                words,
                rank_of: Vec::with_capacity(n),
                blocks: Vec::with_capacity(n),
                totals: vec![0; all],
                writers: vec![Writer::Nobody; all],
                items: program
                    .regions
                    .iter()
                    .map(|r| {
                        if only_read_at_home(r) {
                            Vec::new()
                        } else {
                            vec![Vec::new(); program.ranks as usize]
                        }
                    })
                    .collect(),
                accesses: 0,
                prefixes: false,
            };
        let mut reach = Reach::new(registry, opcodes);
        for (index, stream) in program.streams.iter().enumerate() {
            for id in stream.tasks() {
                if let Err(finding) = facts.add(id, index as u32, &mut reach) {
                    findings.push(finding);
                    // Keep the tables in step; nothing is concluded from a program with findings.
                    facts.rank_of.resize(id.index() + 1, stream.rank);
                    facts.blocks.resize(id.index() + 1, 1);
                }
                if findings.full() {
                    return None;
                }
            }
        }
        if !findings.any() {
            facts.check_thresholds(findings);
        }
        (!findings.any()).then_some(facts)
    }

    /// Index of a word in the tables.
    #[inline]
    pub(super) fn at(&self, rank: Rank, word: u32) -> usize {
        rank.index() * self.words + word as usize
    }

    fn add(&mut self, id: TaskId, stream: u32, reach: &mut Reach<'_>) -> Result<(), Finding> {
        let p = self.program;
        let (task, s) = (p.task(id), &p.streams[stream as usize]);
        let Some(&opcode) = reach.opcodes.get(task.op.index()) else {
            return Err(self.bad(
                Kind::Malformed,
                id,
                format!("has handler {} of {}", task.op.0, p.handlers.len()),
            ));
        };
        if task.flags != 0 {
            return Err(self.bad(
                Kind::Malformed,
                id,
                format!("has flags {:#x}, which mean nothing", task.flags),
            ));
        }
        let handler = &reach.registry.handlers()[opcode as usize];
        if handler.stream() != s.stream {
            let text = format!("is {:?} work in a {:?} stream", handler.stream(), s.stream);
            return Err(self.bad(Kind::Malformed, id, text));
        }
        let env = Env { regions: &p.regions, rank: s.rank, ranks: p.ranks };
        let spec =
            handler.spec(&task.args, &env).map_err(|e| self.bad(Kind::Arguments, id, e.to_string()))?;
        self.rank_of.push(s.rank);
        self.blocks.push(spec.blocks);
        self.check_accesses(id, opcode, &spec, reach)?;
        for w in task.waits() {
            self.check_wait(id, w, spec.blocks)?;
            if w.at() == WaitAt::Store && s.stream == Stream::Comm {
                return Err(self.bad(
                    Kind::Malformed,
                    id,
                    "waits before it stores, which only compute tasks do".into(),
                ));
            }
        }
        let [first, second] = &task.posts;
        if first.used() && second.used() && first.meets(second, spec.blocks) {
            let text = format!("posts to {} twice", p.word_name(second.to(), second.word.max(first.word)));
            return Err(self.bad(Kind::Threshold, id, text));
        }
        for post in task.posts() {
            self.check_post(id, opcode, post, &spec, reach)?;
            self.count_post(id, post, stream, spec.blocks)?;
        }
        self.collect(id, task, &spec);
        Ok(())
    }

    fn check_accesses(
        &self,
        id: TaskId,
        opcode: u16,
        spec: &Spec,
        reach: &mut Reach<'_>,
    ) -> Result<(), Finding> {
        let p = self.program;
        let (rank, stream) = (self.rank_of[id.index()], reach.registry.handlers()[opcode as usize].stream());
        for (i, a) in spec.accesses.iter().enumerate() {
            if let Some(text) = odd_access(a, stream, spec.blocks) {
                return Err(self.bad(Kind::Malformed, id, text));
            }
            let region = p.regions.get(a.region.index());
            let Some(region) = region.filter(|_| (a.rank.0 as u32) < p.ranks) else {
                return Err(self.bad(Kind::Malformed, id, format!("touches {} on {}", a.region, a.rank)));
            };
            if !a.rect.fits(region.extent(a.rank)) {
                let [rows, cols] = region.extent(a.rank);
                let text = format!(
                    "touches {} of '{}', which has {rows} rows and {cols} columns on {}",
                    a.rect, region.name, a.rank
                );
                return Err(self.bad(Kind::OutOfRange, id, text));
            }
            if a.mode.writes() && region.io == Io::Input {
                return Err(self.bad(
                    Kind::Unreachable,
                    id,
                    format!("writes to the input '{}'", region.name),
                ));
            }
            if a.rank != rank {
                if region.kind == RegionKind::Bound {
                    let text = format!(
                        "reaches for '{}' on {}, but a bound region is its own rank's only",
                        region.name, a.rank
                    );
                    return Err(self.bad(Kind::Unreachable, id, text));
                }
                let need = match a.mode {
                    Mode::Read => Caps::GET,
                    Mode::Write => Caps::PUT,
                    Mode::Update => Caps::REDUCE,
                };
                if !reach.memory(opcode, rank, a.rank).contains(need) {
                    let text =
                        format!("needs {need} from {rank} to {}, which nothing registered gives it", a.rank);
                    return Err(self.bad(Kind::Unreachable, id, text));
                }
            }
            for b in &spec.accesses[..i] {
                if self_conflict(b, a, spec.blocks) {
                    let text = format!(
                        "touches {} of '{}' twice, once to write, in no order of its own",
                        a.rect.intersect(&b.rect).unwrap_or(a.rect),
                        region.name
                    );
                    return Err(self.bad(Kind::Race, id, text));
                }
            }
        }
        Ok(())
    }

    fn check_wait(&mut self, id: TaskId, w: &Wait, blocks: u32) -> Result<(), Finding> {
        let last = w.word as u64 + (w.count as u64).saturating_sub(1) * w.stride as u64;
        let known = last < self.words as u64 && (w.count == 1 || w.stride > 0);
        if !known || w.count == 0 || w.every == 0 || w.bits & 15 > 2 {
            return Err(self.bad(Kind::Malformed, id, format!("has a wait that makes no sense: {w:?}")));
        }
        if w.at() == WaitAt::Block && (w.count as u64 - 1) * w.every as u64 >= blocks as u64 {
            let text = format!(
                "waits for {} words, one every {} blocks, but has only {blocks} blocks",
                w.count, w.every
            );
            return Err(self.bad(Kind::Malformed, id, text));
        }
        let signal = self.signal(w.word);
        if signal != self.signal(last as u32) || signal.is_none_or(|(_, clock)| clock != w.clock) {
            return Err(self.bad(
                Kind::Malformed,
                id,
                "has a wait whose words are not of one signal's epoch".into(),
            ));
        }
        if w.upto == 0 || w.upto > w.total || (w.lag() > 0 && w.upto != w.total) {
            let text = format!("waits for {} of {} posts, {} epochs back", w.upto, w.total, w.lag());
            return Err(self.bad(Kind::Threshold, id, text));
        }
        self.prefixes |= w.upto < w.total;
        Ok(())
    }

    /// The signal that owns a word, and its clock.
    fn signal(&self, word: u32) -> Option<(usize, u8)> {
        let mut clock = 0;
        for (i, s) in self.program.signals.iter().enumerate() {
            clock += u8::from(s.shared);
            if word >= s.first && word - s.first < s.words {
                return Some((i, if s.shared { clock } else { 0 }));
            }
        }
        None
    }

    fn check_post(
        &self,
        id: TaskId,
        opcode: u16,
        post: &Post,
        spec: &Spec,
        reach: &mut Reach<'_>,
    ) -> Result<(), Finding> {
        let p = self.program;
        let (rank, to) = (self.rank_of[id.index()], post.to());
        let end = post.word as u64 + post.count(spec.blocks) as u64;
        let handler = &reach.registry.handlers()[opcode as usize];
        let by_block = post.at() == PostAt::Block;
        let known =
            SignalKind::from_code(post.bits >> 2 & 3).is_some() && post.bits & 3 < 3 && post.bits < 128;
        if to.0 as u32 >= p.ranks || end > self.words as u64 || post.every == 0 || !known {
            return Err(self.bad(Kind::Malformed, id, format!("has a post that makes no sense: {post:?}")));
        }
        if by_block && handler.stream() == Stream::Compute {
            return Err(self.bad(Kind::Malformed, id, "posts by block, which only comm tasks can".into()));
        }
        let signal = self.signal(post.word).map(|(i, clock)| (&p.signals[i], clock));
        if !signal.is_some_and(|(s, clock)| {
            s.kind == post.kind() && clock == post.clock() && end <= s.first as u64 + s.words as u64
        }) {
            let text = format!("posts to {} as another signal than it is", p.word_name(to, post.word));
            return Err(self.bad(Kind::Malformed, id, text));
        }
        if post.kind() == SignalKind::Packet {
            self.check_packet(id, post, spec)?;
        }
        if to == rank {
            return Ok(());
        }
        let deliverable = match handler.carrier() {
            Carrier::Frame => reach.frame_posts(rank, to),
            Carrier::Transport => {
                let mut remote = spec.accesses.iter().map(|a| a.rank).filter(|r| *r != rank).peekable();
                let same_peer = remote.peek().is_none() || remote.any(|r| r == to);
                post.kind() != SignalKind::Add
                    && same_peer
                    && reach.memory(opcode, rank, to).contains(Caps::SIGNAL)
            }
        };
        if deliverable {
            return Ok(());
        }
        let text = format!(
            "cannot post {:?} word {} from {rank}: {}",
            post.kind(),
            p.word_name(to, post.word),
            match handler.carrier() {
                Carrier::Frame => "no registered transport offers ATOMIC_ADD for the two",
                Carrier::Transport =>
                    "its transport carries only Set and Packet signals, to the rank that its data goes to",
            }
        );
        Err(self.bad(Kind::Undeliverable, id, text))
    }

    fn check_packet(&self, id: TaskId, post: &Post, spec: &Spec) -> Result<(), Finding> {
        let into = spec.accesses.iter().find(|a| a.mode == Mode::Write && a.rank == post.to());
        let rotating = into.is_some_and(|a| self.program.regions[a.region.index()].depth >= 2);
        if rotating && post.total == 1 {
            return Ok(());
        }
        let text = "posts a packet, which needs one post a word and epoch, and a write to the same rank into a region \
                    with at least two rotating copies"
            .into();
        Err(self.bad(Kind::Threshold, id, text))
    }

    fn count_post(&mut self, id: TaskId, post: &Post, stream: u32, blocks: u32) -> Result<(), Finding> {
        let s = &self.program.streams[stream as usize];
        let me = match s.queue {
            Queue::Lane(_) => Writer::Stream(stream, post.at() == PostAt::Loaded),
            Queue::Ticket => Writer::Rank(s.rank.0),
        };
        for word in post.word..post.word + post.count(blocks) {
            let at = self.at(post.to(), word);
            let Some(total) = self.totals[at].checked_add(1) else {
                return Err(self.bad(Kind::Threshold, id, "makes one post too many to count".into()));
            };
            self.totals[at] = total;
            let writer = self.writers[at];
            self.writers[at] = match writer {
                Writer::Nobody => me,
                same if same == me => same,
                other if self.rank_of_writer(other) == Some(s.rank.0) => Writer::Rank(s.rank.0),
                _ => Writer::Several,
            };
            if post.kind() != SignalKind::Add && post.ordinal != total {
                let text = format!(
                    "writes {} to {}, where it makes post number {total} of the epoch",
                    post.ordinal,
                    self.program.word_name(post.to(), word)
                );
                return Err(self.bad(Kind::Threshold, id, text));
            }
        }
        Ok(())
    }

    /// The rank that writes a `Set` or `Packet` word; `None` for other words.
    pub(super) fn writer(&self, rank: Rank, word: u32) -> Option<u16> {
        let (signal, _) = self.program.signal_of(word)?;
        if signal.kind == SignalKind::Add {
            None
        } else {
            self.rank_of_writer(self.writers[self.at(rank, word)])
        }
    }

    fn rank_of_writer(&self, writer: Writer) -> Option<u16> {
        match writer {
            Writer::Stream(s, _) => Some(self.program.streams[s as usize].rank.0),
            Writer::Rank(r) => Some(r),
            Writer::Nobody | Writer::Several => None,
        }
    }

    fn collect(&mut self, id: TaskId, task: &Task, spec: &Spec) {
        let cut = task.posts().any(|p| p.at() == PostAt::Block);
        for a in &spec.accesses {
            let ranks = &mut self.items[a.region.index()];
            if a.rect.is_empty() {
                continue;
            }
            self.accesses += 1;
            if ranks.is_empty() {
                continue;
            }
            let items = &mut ranks[a.rank.index()];
            let item = Item { rect: a.rect, walk: a.walk, task: id, block: None, mode: a.mode, at: a.at };
            if !cut {
                items.push(item);
                continue;
            }
            for block in 0..if a.walk == Walk::Whole { 1 } else { spec.blocks } {
                let rect = a.block_rect(block);
                // A whole access of a comm task is complete only after its last block.
                let block = if a.walk == Walk::Whole { None } else { Some(block) };
                if !rect.is_empty() {
                    items.push(Item { rect, block, ..item });
                }
            }
        }
    }

    /// Second look, once all posts are counted: every threshold fits what is posted.
    fn check_thresholds(&self, findings: &mut Findings) {
        for (i, task) in self.program.tasks.iter().enumerate() {
            let id = TaskId(i as u32);
            for w in task.waits() {
                if let Err(f) = self.check_wait_total(id, w) {
                    findings.push(f);
                }
            }
            for post in task.posts() {
                if let Err(f) = self.check_post_total(id, post) {
                    findings.push(f);
                }
            }
            if findings.full() {
                return;
            }
        }
    }

    fn check_wait_total(&self, id: TaskId, w: &Wait) -> Result<(), Finding> {
        let rank = self.rank_of[id.index()];
        for word in w.words() {
            let total = self.totals[self.at(rank, word)];
            let name = || self.program.word_name(rank, word);
            if total == 0 {
                let text = format!("waits for {}, to which nobody posts", name());
                return Err(self.bad(Kind::Deadlock, id, text));
            }
            if total != w.total {
                let text =
                    format!("waits for {} with {} posts an epoch, but it receives {total}", name(), w.total);
                return Err(self.bad(Kind::Threshold, id, text));
            }
            if w.upto < w.total && !matches!(self.writers[self.at(rank, word)], Writer::Stream(..)) {
                let text = format!("waits for a prefix of the posts to {}, which have no order", name());
                return Err(self.bad(Kind::Threshold, id, text));
            }
        }
        Ok(())
    }

    fn check_post_total(&self, id: TaskId, post: &Post) -> Result<(), Finding> {
        for word in post.word..post.word + post.count(self.blocks[id.index()]) {
            let at = self.at(post.to(), word);
            let name = || self.program.word_name(post.to(), word);
            if post.total != self.totals[at] {
                let text = format!(
                    "posts to {} as one of {} posts an epoch, but it receives {}",
                    name(),
                    post.total,
                    self.totals[at]
                );
                return Err(self.bad(Kind::Threshold, id, text));
            }
            if post.kind() != SignalKind::Add && !matches!(self.writers[at], Writer::Stream(..)) {
                let text = format!("posts to {}, a {:?} word with more than one writer", name(), post.kind());
                return Err(self.bad(Kind::Threshold, id, text));
            }
        }
        Ok(())
    }

    fn bad(&self, kind: Kind, id: TaskId, text: String) -> Finding {
        let name = self.program.task_name(id);
        let detail = format!("{name} {text}");
        refuted(kind, vec![name], detail)
    }
}

/// A region that nobody writes and no peer reaches: whatever happens to it is in order.
fn only_read_at_home(r: &Region) -> bool {
    r.io == Io::Input && r.kind == RegionKind::Bound
}

/// What is wrong with an access that a spec states, whatever the program is.
fn odd_access(a: &Access, stream: Stream, blocks: u32) -> Option<String> {
    let right = match (a.at, stream) {
        (Phase::Comm, Stream::Comm) => true,
        (Phase::Load, Stream::Compute) => a.mode == Mode::Read,
        (Phase::Store, Stream::Compute) => a.mode.writes(),
        _ => false,
    };
    if !right {
        return Some(format!("states a {:?} at {:?} of a {stream:?} task", a.mode, a.at));
    }
    let (size, whole) = match a.walk {
        Walk::Whole => return None,
        Walk::Rows(n) => (n, a.rect.rows),
        Walk::Cols(n) => (n, a.rect.cols),
    };
    let walked = size > 0 && size.saturating_mul(blocks as u64) >= whole;
    (!walked).then(|| format!("walks {} in {blocks} blocks by {:?}, which is not all of it", a.rect, a.walk))
}

/// Whether two accesses of one task conflict: they overlap, one writes, and the task's own order does not tell which
/// comes first.
fn self_conflict(a: &Access, b: &Access, blocks: u32) -> bool {
    if a.region != b.region || a.rank != b.rank || !(a.mode.writes() || b.mode.writes()) {
        return false;
    }
    if a.rect.intersect(&b.rect).is_none() || a.mode.writes() && b.mode.writes() {
        return a.rect.intersect(&b.rect).is_some();
    }
    let (read, write) = if a.mode.writes() { (b, a) } else { (a, b) };
    // A whole access of a comm task belongs to every block of it.
    let one_by_one = read.at != Phase::Comm || read.walk != Walk::Whole || blocks == 1;
    let in_place = read.rect == write.rect && read.walk == write.walk && one_by_one;
    let loaded_first = read.at == Phase::Load && write.at == Phase::Store && write.walk == Walk::Whole;
    !(in_place || loaded_first)
}
