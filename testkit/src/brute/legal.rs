//! What can be told without running: legal arguments, bounds, reach, and outputs that nobody writes.

use super::{Example, cells::Cells};
use mk_core::{
    Caps, Carrier, DynHandler, Env, Io, PostAt, Program, Queue, Rank, Region, RegionId, RegionKind, Registry,
    Shape, SignalKind, Spec, Stream, StreamTasks, TaskId,
};

/// A task with what it touches.
pub(super) struct Footprint {
    pub(super) rank: Rank,
    pub(super) comm: bool,
    pub(super) spec: Spec,
}

fn wrong(program: &Program, id: TaskId, detail: String) -> Example {
    Example { tasks: vec![program.task_name(id)], detail }
}

/// What is wrong with the tables of a program, so that nothing else can be looked at.
fn frame(p: &Program) -> Option<&'static str> {
    let next = p.streams.iter().try_fold(0u64, |at, s| (s.first as u64 == at).then_some(at + s.len as u64));
    let lane_of = |s: &StreamTasks| match s.queue {
        Queue::Lane(lane) => lane.0,
        Queue::Ticket => 0,
    };
    let lanes = |s: &StreamTasks| p.lanes.get(s.rank.index()).is_some_and(|&n| lane_of(s) < n);
    let shaped = |r: &Region| match &r.shape {
        Shape::Uniform(_) => true,
        Shape::PerRank(v) => v.len() == p.ranks as usize,
    };
    if next != Some(p.tasks.len() as u64) {
        return Some("the streams do not hold the tasks");
    }
    if p.streams.iter().any(|s| s.rank.0 as u32 >= p.ranks || !lanes(s)) {
        return Some("a stream without rank or lane");
    }
    if !p.regions.iter().all(|r| r.depth > 0 && shaped(r) && r.bytes().is_ok()) {
        return Some("a region without a shape");
    }
    None
}

/// The footprint of every task, or what is illegal.
pub(super) fn check(program: &Program, registry: &Registry) -> Result<Vec<Footprint>, Example> {
    let nowhere = |detail| Example { tasks: vec![], detail };
    if let Some(detail) = frame(program) {
        return Err(nowhere(detail.to_string()));
    }
    let opcodes = program.opcodes(registry).map_err(|e| nowhere(e.to_string()))?;
    let mut tasks = Vec::with_capacity(program.tasks.len());
    for s in &program.streams {
        for id in s.tasks() {
            let Some(task) = program.tasks.get(id.index()) else {
                return Err(nowhere(format!("{id} is missing")));
            };
            let Some(&opcode) = opcodes.get(task.op.index()) else {
                return Err(wrong(program, id, "unknown handler".into()));
            };
            let handler = &*registry.handlers()[opcode as usize];
            let env = Env { regions: &program.regions, rank: s.rank, ranks: program.ranks };
            let spec = handler.spec(&task.args, &env).map_err(|e| wrong(program, id, e.to_string()))?;
            let at = Place { program, registry, id, rank: s.rank, opcode, handler };
            at.accesses(&spec)?;
            at.signals(&spec)?;
            tasks.push(Footprint { rank: s.rank, comm: handler.stream() == Stream::Comm, spec });
        }
    }
    Ok(tasks)
}

struct Place<'a> {
    program: &'a Program,
    registry: &'a Registry,
    id: TaskId,
    rank: Rank,
    opcode: u16,
    handler: &'a dyn DynHandler,
}

impl Place<'_> {
    fn wrong<T>(&self, detail: String) -> Result<T, Example> {
        Err(wrong(self.program, self.id, detail))
    }

    fn accesses(&self, spec: &Spec) -> Result<(), Example> {
        for a in &spec.accesses {
            let region = &self.program.regions[a.region.index()];
            if !a.rect.fits(region.extent(a.rank)) {
                return self.wrong(format!("{} is outside '{}' of {}", a.rect, region.name, a.rank));
            }
            if region.io == Io::Input && a.mode.writes() && !a.rect.is_empty() {
                return self.wrong(format!("input '{}' is written", region.name));
            }
            if a.rank == self.rank {
                continue;
            }
            // A transport's handler reaches where its transport does; any other, where memory is mapped.
            let served = if self.registry.is_transports(self.opcode) {
                self.registry.route_of(self.opcode, self.rank, a.rank).is_some()
            } else {
                self.registry.route(self.rank, a.rank, Caps::ATOMIC_ADD).is_ok()
            };
            if region.kind == RegionKind::Bound || !served {
                return self.wrong(format!("'{}' of {} is out of reach", region.name, a.rank));
            }
        }
        Ok(())
    }

    fn signals(&self, spec: &Spec) -> Result<(), Example> {
        let task = self.program.task(self.id);
        let words = self.program.words();
        for w in task.waits() {
            if w.words().any(|x| x as u64 >= words) {
                return self.wrong("a wait for a word that does not exist".into());
            }
        }
        for p in task.posts() {
            let end = p.word as u64 + p.count(spec.blocks) as u64;
            if end > words || p.rank as u32 >= self.program.ranks {
                return self.wrong("a post to a word that does not exist".into());
            }
            if p.at() == PostAt::Block && self.handler.stream() == Stream::Compute {
                return self.wrong("a compute task posts by block".into());
            }
            if p.to() != self.rank && !self.delivers(p.to(), p.kind()) {
                return self.wrong(format!("a post to {} cannot be delivered", p.to()));
            }
        }
        Ok(())
    }

    fn delivers(&self, to: Rank, kind: SignalKind) -> bool {
        match self.handler.carrier() {
            Carrier::Frame => self.registry.route(self.rank, to, Caps::ATOMIC_ADD).is_ok(),
            Carrier::Transport => {
                let route = self.registry.route_of(self.opcode, self.rank, to);
                kind != SignalKind::Add && route.is_some_and(|r| r.caps().contains(Caps::SIGNAL))
            }
        }
    }
}

/// An output cell that no task writes.
pub(super) fn unwritten(program: &Program, tasks: &[Footprint], cells: &Cells) -> Option<Example> {
    let mut written = vec![false; cells.len()];
    for a in tasks.iter().flat_map(|t| &t.spec.accesses).filter(|a| a.mode.writes() && !a.rect.is_empty()) {
        for c in cells.of(a.region, a.rank, &a.rect, 0) {
            written[c as usize] = true;
        }
    }
    for (i, region) in program.regions.iter().enumerate().filter(|(_, r)| r.io == Io::Output) {
        for rank in 0..program.ranks as u16 {
            let whole = region.whole(Rank(rank));
            for c in cells.of(RegionId(i as u16), Rank(rank), &whole, 0) {
                if !whole.is_empty() && !written[c as usize] {
                    let detail = format!("nobody writes {}", cells.name(program, c));
                    return Some(Example { tasks: vec![], detail });
                }
            }
        }
    }
    None
}
