//! What must hold of a program before anyone looks at its tasks: every id in range, nothing twice, nothing overlapping.

use crate::builder::check_region;
use crate::{Error, Limits, Program, Queue, Registry};
use std::collections::HashSet;

fn malformed(message: impl Into<String>, given: impl ToString, allowed: impl Into<String>) -> Error {
    Error::input(message, given, allowed, "make programs with a ProgramBuilder or `mk plan`")
}

fn at_most(what: &str, given: usize, limit: u64) -> Result<(), Error> {
    if given as u64 <= limit {
        return Ok(());
    }
    Err(malformed(format!("the program has too many {what}"), given, format!("at most {limit}")))
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(malformed(format!("two {what} have one name"), name, "each name once"));
        }
    }
    Ok(())
}

impl Program {
    /// Checks what the program says of itself as a whole, before anyone looks at its tasks: its world, names, sizes, signals
    /// and streams. The verifier, the simulator and program files all begin with it.
    ///
    /// # Errors
    /// What is out of range, there twice, out of order, or for another world.
    pub fn well_formed(&self, registry: &Registry) -> Result<(), Error> {
        let world = registry.world().size();
        if self.ranks != world {
            return Err(malformed(
                "it is for another world",
                format!("{} ranks", self.ranks),
                format!("{world} ranks"),
            ));
        }
        self.check_parts()?;
        self.check_streams()
    }

    /// Checks everything but streams and tasks.
    pub(crate) fn check_parts(&self) -> Result<(), Error> {
        if self.ranks == 0 || self.ranks as u64 > Limits::RANKS {
            let allowed = format!("1 to {} ranks", Limits::RANKS);
            return Err(malformed("no world of this size", format!("{} ranks", self.ranks), allowed));
        }
        if self.lanes.len() != self.ranks as usize {
            let given = format!("{} numbers of lanes", self.lanes.len());
            return Err(malformed("lanes do not fit the ranks", given, format!("{} of them", self.ranks)));
        }
        if let Some(lanes) = self.lanes.iter().find(|&&l| l as u64 > Limits::LANES) {
            return Err(malformed("a rank has too many lanes", lanes, format!("at most {}", Limits::LANES)));
        }
        at_most("regions", self.regions.len(), Limits::REGIONS)?;
        at_most("handlers", self.handlers.len(), Limits::HANDLERS)?;
        at_most("signals", self.signals.len(), u16::MAX as u64)?;
        at_most("labels", self.labels.len(), u32::MAX as u64)?;
        unique("regions", self.regions.iter().map(|r| r.name.as_str()))?;
        unique("handlers", self.handlers.iter().map(|h| h.name.as_str()))?;
        unique("signals", self.signals.iter().map(|s| s.name.as_str()))?;
        self.regions.iter().try_for_each(|r| check_region(r, self.ranks))?;
        self.check_signals()
    }

    fn check_signals(&self) -> Result<(), Error> {
        at_most("shared signals", self.shared_signals().count(), Limits::SHARED_SIGNALS)?;
        let mut ranges: Vec<(u64, u64, &str)> = self
            .signals
            .iter()
            .map(|s| (s.first as u64, s.first as u64 + s.words as u64, s.name.as_str()))
            .collect();
        ranges.sort_unstable();
        if let Some(last) = ranges.iter().find(|r| r.1 > Limits::WORDS) {
            let given = format!("'{}' ends at word {}", last.2, last.1);
            return Err(malformed("too many signal words", given, format!("at most {}", Limits::WORDS)));
        }
        let all = self.words().saturating_mul(self.ranks as u64);
        if all > Limits::ALL_WORDS {
            let given = format!("{} words on each of {} ranks", self.words(), self.ranks);
            return Err(malformed(
                "too many signal words",
                given,
                format!("at most {} in all", Limits::ALL_WORDS),
            ));
        }
        ranges.retain(|r| r.0 < r.1);
        if let Some(w) = ranges.windows(2).find(|w| w[1].0 < w[0].1) {
            let given = format!("'{}' and '{}'", w[0].2, w[1].2);
            return Err(malformed("two signals share words", given, "each word in one signal"));
        }
        Ok(())
    }

    /// Checks streams and tasks; `opcodes` are those of [`Program::handlers`].
    pub(crate) fn check_tasks(&self, registry: &Registry, opcodes: &[u16]) -> Result<(), Error> {
        self.check_streams()?;
        for s in &self.streams {
            s.tasks().try_for_each(|id| self.check_task(id, s.stream, registry, opcodes))?;
        }
        Ok(())
    }

    fn check_streams(&self) -> Result<(), Error> {
        at_most("tasks", self.tasks.len(), Limits::TASKS)?;
        let keys = self.streams.windows(2).find(|w| {
            let key = |i: usize| (w[i].rank, w[i].queue, w[i].stream);
            key(0) >= key(1)
        });
        if let Some(w) = keys {
            let given = format!("{:?} after {:?}", w[1], w[0]);
            return Err(malformed("streams are not in order", given, "each once, by rank, queue and kind"));
        }
        let mut next = 0u64;
        for s in &self.streams {
            let lanes = self.lanes.get(s.rank.index()).copied().unwrap_or(0);
            let exists = match s.queue {
                Queue::Lane(lane) => lane.0 < lanes,
                Queue::Ticket => lanes > 0,
            };
            if !exists {
                return Err(malformed(
                    "a stream of no lane",
                    format!("{s:?}"),
                    format!("{lanes} lanes there"),
                ));
            }
            if s.first as u64 != next {
                let allowed = format!("first task {next}");
                return Err(malformed("streams do not follow one another", format!("{s:?}"), allowed));
            }
            next += s.len as u64;
            if next > self.tasks.len() as u64 {
                let allowed = format!("{} tasks in all", self.tasks.len());
                return Err(malformed("a stream has more tasks than there are", format!("{s:?}"), allowed));
            }
        }
        if next != self.tasks.len() as u64 {
            let given = format!("{} tasks", self.tasks.len());
            return Err(malformed(
                "some tasks are in no stream",
                given,
                format!("{next}, as in the streams"),
            ));
        }
        Ok(())
    }

    fn check_task(
        &self,
        id: crate::TaskId,
        stream: crate::Stream,
        registry: &Registry,
        opcodes: &[u16],
    ) -> Result<(), Error> {
        let task = self.task(id);
        let Some(&opcode) = opcodes.get(task.op.index()) else {
            let allowed = format!("{} handlers", opcodes.len());
            return Err(malformed("a task has no handler", format!("{id} with {}", task.op), allowed));
        };
        if registry.handlers()[opcode as usize].stream() != stream {
            let allowed = format!("tasks of {stream:?} handlers");
            return Err(malformed("a task is in the wrong stream", self.task_name(id), allowed));
        }
        if let Some(post) = task.posts().find(|p| p.rank as u32 >= self.ranks) {
            let given = format!("{} posts to {}", self.task_name(id), post.to());
            return Err(malformed("a post leaves the world", given, format!("{} ranks", self.ranks)));
        }
        Ok(())
    }
}
