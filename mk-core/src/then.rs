//! Programs one after the other, as one program.

use crate::builder::check_region;
use crate::{
    Access, DynHandler, Error, Io, Limits, OpId, Post, PostAt, Program, Queue, Rank, RegionId, RegionKind,
    Registry, SignalKind, Spec, Stream, StreamTasks, Task, TaskId, Wait, WaitAt,
};
use std::collections::{BTreeMap, HashMap};

/// The words that tell the second program's tasks that what they read has been written.
const DONE: &str = "then.done";

impl Program {
    /// One program that does what this one does, and then what `next` does, on the tensors that `wires` name: pairs of an
    /// output of this program and an input of `next`, which become one scratch region.
    ///
    /// Tasks of `next` that read such a region wait until their rank's part of it has been written. All others start as soon as
    /// their lane is free: ranks and lanes are not held up by one another, and nothing is launched in between.
    ///
    /// Other regions keep their names, so no two may be called the same: see [`Program::prefixed`].
    ///
    /// ```
    /// # use mk_core::*;
    /// # let registry = Registry::builder().build(&World::local(2)?)?;
    /// # let program = || ProgramBuilder::new("p", &registry).finish();
    /// # let (up, down) = (program()?, program()?);
    /// let both = up.then(&down.prefixed("down."), &[], &registry)?;
    /// assert_eq!(both.name, "p, then p");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Names that are there twice or not at all, regions of different shape or type, shared signals, a task that has no wait or
    /// post left, lanes and ticket queues in one place. What cannot be ordered like this is found by the verifier.
    pub fn then(
        &self,
        next: &Program,
        wires: &[(&str, &str)],
        registry: &Registry,
    ) -> Result<Program, Error> {
        self.well_formed(registry)?;
        next.well_formed(registry)?;
        if let Some(shared) = self.shared_signals().chain(next.shared_signals()).next() {
            return Err(Error::build(
                format!("signal '{}' is shared between programs", shared.name),
                "join programs first, and share signals between the joined ones",
            ));
        }
        let mut joint = Joint::new(self, next, registry)?;
        joint.regions(wires)?;
        joint.names()?;
        joint.tasks()?;
        joint.wire()?;
        joint.assemble()
    }

    /// The same program with another name for each of its regions and signals: `prefix` and the old one.
    #[must_use]
    pub fn prefixed(mut self, prefix: &str) -> Program {
        self.regions.iter_mut().for_each(|r| r.name.insert_str(0, prefix));
        self.signals.iter_mut().for_each(|s| s.name.insert_str(0, prefix));
        self
    }
}

/// One task with what it touches.
struct Part {
    rank: Rank,
    task: Task,
    accesses: Vec<Access>,
    /// Whether it is of the second program.
    second: bool,
}

/// Two programs that become one.
struct Joint<'a> {
    first: &'a Program,
    next: &'a Program,
    registry: &'a Registry,
    /// The joint program, without tasks until the end.
    program: Program,
    /// Regions and handlers of `next` in it.
    region_of: Vec<RegionId>,
    op_of: Vec<OpId>,
    /// Regions that the first program writes and the second reads.
    wired: Vec<RegionId>,
    streams: BTreeMap<(Rank, Queue, Stream), Vec<Part>>,
}

impl<'a> Joint<'a> {
    fn new(first: &'a Program, next: &'a Program, registry: &'a Registry) -> Result<Joint<'a>, Error> {
        let mut program = Program {
            name: format!("{}, then {}", first.name, next.name),
            ranks: first.ranks,
            lanes: first.lanes.clone(),
            regions: first.regions.clone(),
            signals: first.signals.clone(),
            handlers: first.handlers.clone(),
            labels: first.labels.clone(),
            streams: Vec::new(),
            tasks: Vec::new(),
        };
        for (have, need) in program.lanes.iter_mut().zip(&next.lanes) {
            *have = (*have).max(*need);
        }
        let (region_of, op_of, wired) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Joint { first, next, registry, program, region_of, op_of, wired, streams: BTreeMap::new() })
    }

    /// Regions of both; those that are wired once, as scratch memory.
    fn regions(&mut self, wires: &[(&str, &str)]) -> Result<(), Error> {
        for (i, (from, to)) in wires.iter().enumerate() {
            self.check_wire(from, to)?;
            if wires[..i].iter().any(|(_, other)| other == to) {
                return Err(Error::input(
                    "an input is wired twice",
                    format!("'{from}' to '{to}'"),
                    "one output for each input; one output may go to several inputs",
                    "leave one of the wires out",
                ));
            }
        }
        for region in &self.next.regions {
            let wire = wires.iter().find(|(_, to)| *to == region.name);
            let place = |name: &str| self.program.regions.iter().position(|r| r.name == name);
            let id = match wire {
                Some((from, _)) => place(from),
                None if place(&region.name).is_some() => {
                    return Err(Error::build(
                        format!("both programs have a region '{}'", region.name),
                        "wire an output to it, or give the second program's regions other names with Program::prefixed",
                    ));
                }
                None => None,
            };
            let id = RegionId(id.unwrap_or(self.program.regions.len()) as u16);
            match wire {
                Some(_) => {
                    let joint = &mut self.program.regions[id.index()];
                    (joint.kind, joint.io) = (RegionKind::Heap, Io::Scratch);
                    self.wired.push(id);
                }
                None => self.program.regions.push(region.clone()),
            }
            self.region_of.push(id);
        }
        self.program.regions.iter().try_for_each(|r| check_region(r, self.program.ranks))
    }

    fn check_wire(&self, from: &str, to: &str) -> Result<(), Error> {
        let find = |p: &'a Program, name: &str| p.regions.iter().find(|r| r.name == name);
        let names = |p: &Program, io: Io| {
            let of_kind = p.regions.iter().filter(|r| r.io == io).map(|r| r.name.as_str());
            of_kind.collect::<Vec<_>>().join(", ")
        };
        let (Some(a), Some(b)) = (
            find(self.first, from).filter(|r| r.io == Io::Output),
            find(self.next, to).filter(|r| r.io == Io::Input),
        ) else {
            return Err(Error::input(
                "no such output and input",
                format!("'{from}' to '{to}'"),
                format!("outputs {}; inputs {}", names(self.first, Io::Output), names(self.next, Io::Input)),
                "wire an output of the first program to an input of the second",
            ));
        };
        let alike = (0..self.first.ranks).all(|r| a.extent(Rank(r as u16)) == b.extent(Rank(r as u16)));
        if !alike || a.dtype != b.dtype || a.depth != b.depth || a.shared || b.shared {
            return Err(Error::input(
                format!("'{from}' and '{to}' are not alike"),
                format!("{} {:?}, {} {:?}", a.dtype, a.shape, b.dtype, b.shape),
                "one type, one shape on every rank, not shared",
                "cast, or plan both programs for the same shards",
            ));
        }
        Ok(())
    }

    /// Handlers, labels and signals of both.
    fn names(&mut self) -> Result<(), Error> {
        for handler in &self.next.handlers {
            let known = self.program.handlers.iter().position(|h| h == handler);
            self.op_of.push(OpId(known.unwrap_or(self.program.handlers.len()) as u16));
            if known.is_none() {
                self.program.handlers.push(handler.clone());
            }
        }
        self.program.labels.extend(self.next.labels.iter().cloned());
        let before = self.first.words() as u32;
        for signal in &self.next.signals {
            let mut signal = signal.clone();
            signal.first += before;
            while self.program.signals.iter().any(|s| s.name == signal.name) {
                signal.name.push('\'');
            }
            self.program.signals.push(signal);
        }
        Ok(())
    }

    /// Tasks of both, stream by stream.
    fn tasks(&mut self) -> Result<(), Error> {
        for (second, from) in [(false, self.first), (true, self.next)] {
            let opcodes = from.opcodes(self.registry)?;
            for stream in &from.streams {
                let key = (stream.rank, stream.queue, stream.stream);
                for id in stream.tasks() {
                    let part = self.part(from, id, stream.rank, opcodes[from.task(id).op.index()], second)?;
                    self.streams.entry(key).or_default().push(part);
                }
            }
        }
        let mixed = |k: &&(Rank, Queue, Stream)| {
            k.1 == Queue::Ticket && self.streams.keys().any(|o| (o.0, o.2) == (k.0, k.2) && o.1 != k.1)
        };
        match self.streams.keys().find(mixed) {
            None => Ok(()),
            Some((rank, ..)) => Err(Error::build(
                format!("one program gives tasks of {rank} to lanes, the other to a ticket queue"),
                "plan both programs in one of the two ways",
            )),
        }
    }

    fn part(&self, from: &Program, id: TaskId, rank: Rank, opcode: u16, second: bool) -> Result<Part, Error> {
        let mut task = *from.task(id);
        let Spec { accesses, .. } = from.spec(self.registry, opcode, rank, &task)?;
        let mut accesses = accesses.to_vec();
        if second {
            let words = self.first.words() as u32;
            task.op = self.op_of[task.op.index()];
            task.label += self.first.labels.len() as u32;
            task.waits.iter_mut().filter(|w| w.used()).for_each(|w| w.word += words);
            task.posts.iter_mut().filter(|p| p.used()).for_each(|p| p.word += words);
            self.rename_regions(&*self.registry.handlers()[opcode as usize], &mut task.args);
            for a in &mut accesses {
                a.region = self.region_of[a.region.index()];
            }
        }
        Ok(Part { rank, task, accesses, second })
    }

    fn rename_regions(&self, handler: &dyn DynHandler, args: &mut [u8; Limits::ARG_BYTES]) {
        for field in handler.abi().1.iter().filter(|f| f.is_region) {
            let at = field.offset..field.offset + 2;
            let old = u16::from_le_bytes([args[at.start], args[at.start + 1]]);
            let new = self.region_of.get(old as usize).map_or(old, |r| r.0);
            args[at].copy_from_slice(&new.to_le_bytes());
        }
    }

    /// Lets the second program's readers of a wired region wait for the first program's writers.
    fn wire(&mut self) -> Result<(), Error> {
        let first = self.program.words() as u32;
        let wired = self.wired.clone();
        let writes = |p: &Part, rank: Rank| {
            !p.second
                && p.accesses.iter().any(|a| a.rank == rank && a.mode.writes() && wired.contains(&a.region))
        };
        // For each rank, who writes there, and in how many tasks.
        let mut writers: HashMap<Rank, BTreeMap<Rank, u32>> = HashMap::new();
        for part in self.streams.values().flatten().filter(|p| !p.second) {
            let mut ranks: Vec<Rank> = part.accesses.iter().map(|a| a.rank).collect();
            ranks.sort_unstable();
            ranks.dedup();
            for rank in ranks.into_iter().filter(|&r| writes(part, r)) {
                *writers.entry(rank).or_default().entry(part.rank).or_insert(0) += 1;
            }
        }
        let words = writers.values().map(|w| w.len() as u32).max().unwrap_or(0);
        if words == 0 {
            return Ok(());
        }
        for part in self.streams.values_mut().flatten() {
            if part.second {
                add_wait(part, &wired, writers.get(&part.rank), first)?;
            } else {
                add_posts(part, &wired, &writers, first)?;
            }
        }
        let mut name = DONE.to_string();
        while self.program.signals.iter().any(|s| s.name == name) {
            name.push('\'');
        }
        self.program.signals.push(crate::Signal { name, kind: SignalKind::Add, first, words, shared: false });
        Ok(())
    }

    fn assemble(self) -> Result<Program, Error> {
        let mut program = self.program;
        let total: u64 = self.streams.values().map(|s| s.len() as u64).sum();
        if total > Limits::TASKS {
            return Err(Error::build(format!("{total} tasks"), format!("use at most {}", Limits::TASKS)));
        }
        for ((rank, queue, stream), parts) in self.streams {
            let (first, len) = (program.tasks.len() as u32, parts.len() as u32);
            program.streams.push(StreamTasks { rank, queue, stream, first, len });
            program.tasks.extend(parts.into_iter().map(|p| p.task));
        }
        program.well_formed(self.registry)?;
        Ok(program)
    }
}

/// A post to the word of each rank where a task of the first program writes.
fn add_posts(
    part: &mut Part,
    wired: &[RegionId],
    writers: &HashMap<Rank, BTreeMap<Rank, u32>>,
    first: u32,
) -> Result<(), Error> {
    let mut ranks: Vec<Rank> = part
        .accesses
        .iter()
        .filter(|a| a.mode.writes() && wired.contains(&a.region))
        .map(|a| a.rank)
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    for to in ranks {
        let from = &writers[&to];
        let word = first + from.range(..part.rank).count() as u32;
        let slot = part.task.posts.iter_mut().find(|p| !p.used());
        let Some(slot) = slot else {
            return Err(Error::build(
                format!("a task of {} that writes what the next program reads has no post left", part.rank),
                format!("plan it with fewer posts: a task has {}", Limits::POSTS),
            ));
        };
        let bits = Post::pack(PostAt::Done, SignalKind::Add, 0);
        *slot = Post { word, total: from[&part.rank], ordinal: 0, rank: to.0, every: 1, bits };
    }
    Ok(())
}

/// A wait of a task of the second program for all that was written on its rank, if it reads it there, or starts what others read.
fn add_wait(
    part: &mut Part,
    wired: &[RegionId],
    writers: Option<&BTreeMap<Rank, u32>>,
    first: u32,
) -> Result<(), Error> {
    let Some(writers) = writers else { return Ok(()) };
    let reads = part.accesses.iter().any(|a| a.rank == part.rank && wired.contains(&a.region));
    let begins = !part.task.waits().any(|w| w.lag() == 0);
    let starts_others = begins && part.accesses.is_empty();
    if !(reads || starts_others) {
        return Ok(());
    }
    let total = writers.values().copied().next().unwrap_or(0);
    if writers.values().any(|&t| t != total) {
        return Err(Error::build(
            format!("several ranks write a different number of parts of what {} reads", part.rank),
            "let each rank write its own part of an output, or the same number of parts of others'",
        ));
    }
    let Some(slot) = part.task.waits.iter_mut().find(|w| !w.used()) else {
        // What it waits for may be ordered after the writers: the verifier tells.
        return if begins { Err(no_wait(part.rank)) } else { Ok(()) };
    };
    let bits = Wait::pack(WaitAt::Start, 0);
    *slot = Wait {
        word: first,
        total,
        upto: total,
        count: writers.len() as u16,
        stride: 1,
        every: 1,
        clock: 0,
        bits,
    };
    Ok(())
}

fn no_wait(rank: Rank) -> Error {
    Error::build(
        format!("a task of {rank} that reads what the first program writes has no wait left"),
        format!("plan it with fewer waits: a task has {}", Limits::WAITS),
    )
}
