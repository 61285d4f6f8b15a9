//! Programs: tasks in order, per rank and lane, with the regions and signals that they use. Plain data.

use crate::{Env, Error, Lane, Rank, Region, Registry, Signal, Spec, Stream, Task, TaskId};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// A handler as a program names it. Opcodes are given at load and never stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
}

/// Who takes tasks from a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Queue {
    /// One lane, in order.
    Lane(Lane),
    /// All lanes of the rank, each claiming the next task by ticket.
    Ticket,
}

/// The tasks of one stream, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamTasks {
    /// Whose.
    pub rank: Rank,
    /// Who takes them.
    pub queue: Queue,
    /// Compute or comm.
    pub stream: Stream,
    /// Its first task, in [`Program::tasks`].
    pub first: u32,
    /// How many they are.
    pub len: u32,
}

impl StreamTasks {
    /// Its tasks.
    #[inline]
    pub fn tasks(&self) -> impl DoubleEndedIterator<Item = TaskId> + use<> {
        (self.first..self.first + self.len).map(TaskId)
    }
}

/// What all ranks do in one epoch.
///
/// It is a pure function of what all ranks agreed on, so that they can compare its hash before they run.
/// Make one with a [`ProgramBuilder`](crate::ProgramBuilder), and prove it with [`Program::verify`].
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Its name, for people.
    pub name: String,
    /// Ranks in the world that it was made for.
    pub ranks: u32,
    /// Lanes of each rank.
    pub lanes: Vec<u16>,
    /// The memory that it uses.
    pub regions: Vec<Region>,
    /// The signal words that it uses.
    pub signals: Vec<Signal>,
    /// The handlers that it uses.
    pub handlers: Vec<HandlerId>,
    /// What its tasks are called.
    pub labels: Vec<String>,
    /// Its streams; together they hold all tasks, in order.
    pub streams: Vec<StreamTasks>,
    /// Its tasks.
    pub tasks: Vec<Task>,
}

impl Program {
    /// Signal words of one rank.
    pub fn words(&self) -> u64 {
        self.signals.iter().map(|s| s.first as u64 + s.words as u64).max().unwrap_or(0)
    }

    /// The task.
    ///
    /// # Panics
    /// If there is no such task.
    #[inline]
    pub fn task(&self, id: TaskId) -> &Task {
        &self.tasks[id.index()]
    }

    /// The stream that holds a task.
    ///
    /// # Panics
    /// If there is no such task.
    pub fn stream_of(&self, id: TaskId) -> &StreamTasks {
        let after = self.streams.partition_point(|s| s.first <= id.0);
        // Empty streams may share a first task with their successor: take the last one that holds the task.
        self.streams[..after]
            .iter()
            .rev()
            .find(|s| id.0 < s.first + s.len)
            .expect("every task is in a stream")
    }

    /// The signal that owns a word, and the word's place in it.
    pub fn signal_of(&self, word: u32) -> Option<(&Signal, u32)> {
        let s = self.signals.iter().find(|s| word >= s.first && word - s.first < s.words)?;
        Some((s, word - s.first))
    }

    /// A word, for people: `arrival[3] of rank 1`.
    pub fn word_name(&self, rank: Rank, word: u32) -> String {
        match self.signal_of(word) {
            Some((s, i)) => format!("{}[{i}] of {rank}", s.name),
            None => format!("word {word} of {rank}"),
        }
    }

    /// Signals that programs of one session share, in order; a clock of `n` is the epoch of number `n - 1`.
    pub fn shared_signals(&self) -> impl Iterator<Item = &Signal> {
        self.signals.iter().filter(|s| s.shared)
    }

    /// A task, for people: `tile 7 (rank 0, lane 3, compute 2: gemm)`.
    pub fn task_name(&self, id: TaskId) -> String {
        let (task, stream) = (self.task(id), self.stream_of(id));
        let mut name = String::new();
        let label = self.labels.get(task.label as usize).map_or("", String::as_str);
        if !label.is_empty() {
            let _ = write!(name, "{label} ");
        }
        let lane = match stream.queue {
            Queue::Lane(l) => l.to_string(),
            Queue::Ticket => "ticket".into(),
        };
        let kind = match stream.stream {
            Stream::Compute => "compute",
            Stream::Comm => "comm",
        };
        let handler = self.handlers.get(task.op.index()).map_or("unknown handler", |h| h.name.as_str());
        let _ = write!(name, "({}, {lane}, {kind} {}: {handler})", stream.rank, id.0 - stream.first);
        name
    }

    /// The opcode of each of [`Program::handlers`] in `registry`.
    ///
    /// # Errors
    /// A handler that is not registered, or that has another version.
    pub fn opcodes(&self, registry: &Registry) -> Result<Vec<u16>, Error> {
        let opcode = |h: &HandlerId| {
            let (opcode, handler) = registry.handler(&h.name)?;
            if handler.version() != h.version {
                return Err(Error::input(
                    format!("handler '{}' has another version", h.name),
                    format!("{}@{}", h.name, h.version),
                    format!("{}@{}", h.name, handler.version()),
                    "plan the program again with this build",
                ));
            }
            Ok(opcode)
        };
        self.handlers.iter().map(opcode).collect()
    }

    /// What a task touches and how much work it is, by the handler with this `opcode`.
    ///
    /// # Errors
    /// The handler does not accept the arguments.
    #[inline]
    pub fn spec(&self, registry: &Registry, opcode: u16, rank: Rank, task: &Task) -> Result<Spec, Error> {
        let handler = &registry.handlers()[opcode as usize];
        let env = Env { regions: &self.regions, rank, ranks: self.ranks };
        handler
            .spec(&task.args, &env)
            .map_err(|e| Error::Args { handler: handler.name().into(), message: e.to_string() })
    }

    /// Bytes that each rank needs, by kind of memory, before anything is allocated.
    ///
    /// # Errors
    /// A region that is too large.
    pub fn memory(&self) -> Result<Memory, Error> {
        let mut memory = Memory { signals: self.words() * 8, ..Memory::default() };
        for r in &self.regions {
            let bytes = r.bytes()?.saturating_mul(r.depth as u64);
            let sum = match r.kind {
                crate::RegionKind::Heap => &mut memory.heap,
                crate::RegionKind::Bound => &mut memory.bound,
                crate::RegionKind::Staging => &mut memory.staging,
            };
            *sum = sum.saturating_add(bytes);
        }
        memory.tasks = self.tasks.len() as u64 * 128 / self.ranks.max(1) as u64;
        Ok(memory)
    }
}

/// What one rank needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Symmetric heap.
    pub heap: u64,
    /// The caller's tensors.
    pub bound: u64,
    /// Transports' buffers.
    pub staging: u64,
    /// Signal words.
    pub signals: u64,
    /// Task records (average over the ranks).
    pub tasks: u64,
}
