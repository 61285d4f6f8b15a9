//! Sessions: what runs programs. The simulator, the live executor and the GPU implement one trait.

use crate::{DType, Error, Explanation, Io, Program, Rank, RegionKind, Registry, Verified};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A host tensor: a dense, row-major matrix.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Type of its elements.
    pub dtype: DType,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// Its bytes, little-endian.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Panics
    /// If its bytes cannot be counted in 64 bits.
    pub fn zeros(dtype: DType, rows: u64, cols: u64) -> Tensor {
        let bytes = rows.checked_mul(cols).and_then(|n| n.checked_mul(dtype.bytes()));
        let bytes = bytes.expect("the size of a tensor is a 64-bit number");
        Tensor { dtype, rows, cols, bytes: vec![0; bytes as usize] }
    }

    /// A tensor of these values, each rounded to nearest even.
    ///
    /// # Panics
    /// If there are not `rows * cols` values.
    pub fn from_f32(dtype: DType, rows: u64, cols: u64, values: &[f32]) -> Tensor {
        assert_eq!(values.len() as u64, rows * cols, "one value for each element");
        let mut t = Tensor::zeros(dtype, rows, cols);
        for (i, &v) in values.iter().enumerate() {
            dtype.store(&mut t.bytes, i, v);
        }
        t
    }

    /// Its values as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        (0..(self.rows * self.cols) as usize).map(|i| self.dtype.load(&self.bytes, i)).collect()
    }

    /// A copy of `rows` rows from `row` and `cols` columns from `col`.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn slice(&self, row: u64, rows: u64, col: u64, cols: u64) -> Tensor {
        let part = crate::Rect::new(row, col, rows, cols);
        let ends = row.checked_add(rows).is_some() && col.checked_add(cols).is_some();
        assert!(
            ends && part.row_end() <= self.rows && part.col_end() <= self.cols,
            "the slice lies inside the tensor"
        );
        let (e, n) = (self.dtype.bytes() as usize, (cols * self.dtype.bytes()) as usize);
        let mut bytes = Vec::with_capacity(n * rows as usize);
        for r in row..row + rows {
            let from = (r * self.cols + col) as usize * e;
            bytes.extend_from_slice(&self.bytes[from..from + n]);
        }
        Tensor { dtype: self.dtype, rows, cols, bytes }
    }

    /// Copies `part` to the place whose first row and column are given.
    ///
    /// # Panics
    /// If it does not fit, or has another type.
    pub fn paste(&mut self, row: u64, col: u64, part: &Tensor) {
        assert!(
            self.dtype == part.dtype && row + part.rows <= self.rows && col + part.cols <= self.cols,
            "the part fits into the tensor"
        );
        let (e, n) = (self.dtype.bytes() as usize, (part.cols * self.dtype.bytes()) as usize);
        for r in 0..part.rows {
            let to = ((row + r) * self.cols + col) as usize * e;
            self.bytes[to..to + n].copy_from_slice(&part.bytes[r as usize * n..][..n]);
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} x {}, {})", self.rows, self.cols, self.dtype)
    }
}

/// The caller's tensors of one run, by rank and region name. Also what a run gives back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bindings(BTreeMap<(Rank, String), Tensor>);

impl Bindings {
    /// No tensors.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// Binds `tensor` to the region of this name on `rank`.
    pub fn set(&mut self, rank: Rank, region: &str, tensor: Tensor) {
        self.0.insert((rank, region.into()), tensor);
    }

    /// The tensor of a region on `rank`.
    pub fn get(&self, rank: Rank, region: &str) -> Option<&Tensor> {
        self.0.get(&(rank, region.to_string()))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, &str, &Tensor)> {
        self.0.iter().map(|((rank, name), t)| (*rank, name.as_str(), t))
    }

    /// Checks that every tensor that `program` needs is there, and nothing else.
    ///
    /// # Errors
    /// A tensor that is missing, has another type or size, or that the program does not take.
    pub fn check(&self, program: &Program) -> Result<(), Error> {
        self.check_on(program, (0..program.ranks).map(|r| Rank(r as u16)))
    }

    /// The same, where only these ranks are this process's.
    ///
    /// # Errors
    /// As [`Bindings::check`]; a tensor for another rank.
    pub fn check_on(&self, program: &Program, ranks: impl IntoIterator<Item = Rank>) -> Result<(), Error> {
        let ranks: BTreeSet<Rank> = ranks.into_iter().collect();
        let inputs = || program.regions.iter().filter(|r| matches!(r.io, Io::Input | Io::InOut));
        for r in inputs() {
            for &rank in &ranks {
                let [rows, cols] = r.extent(rank);
                let allowed = || format!("{rows} x {cols}, {}", r.dtype);
                let wrong = |what: &str, given: String, hint: &str| {
                    Err(Error::input(format!("{what} '{}' on {rank}", r.name), given, allowed(), hint))
                };
                match self.get(rank, &r.name) {
                    None if rows * cols == 0 || r.kind != RegionKind::Bound => {}
                    None => {
                        return wrong(
                            "no tensor is bound to",
                            "nothing".into(),
                            "bind a tensor to it on every rank",
                        );
                    }
                    Some(t) if (t.dtype, t.rows, t.cols) != (r.dtype, rows, cols) => {
                        let given = format!("{} x {}, {}", t.rows, t.cols, t.dtype);
                        return wrong(
                            "the tensor does not fit",
                            given,
                            "bind a tensor of this type and size",
                        );
                    }
                    Some(t) if t.bytes.len() as u64 != rows * cols * r.dtype.bytes() => {
                        let given = format!("{} bytes", t.bytes.len());
                        return wrong(
                            "the tensor is damaged:",
                            given,
                            "make tensors with Tensor::zeros or from_f32",
                        );
                    }
                    Some(_) => {}
                }
            }
        }
        let stray =
            self.iter().find(|(rank, name, _)| !ranks.contains(rank) || !inputs().any(|r| r.name == *name));
        match stray {
            None => Ok(()),
            Some((rank, name, _)) => Err(Error::input(
                format!("program '{}' takes no such tensor", program.name),
                format!("'{name}' on {rank}"),
                format!(
                    "{}: {}",
                    names(&ranks),
                    inputs().map(|r| r.name.as_str()).collect::<Vec<_>>().join(", ")
                ),
                "bind only what the program reads",
            )),
        }
    }
}

/// Ranks in words.
fn names(ranks: &BTreeSet<Rank>) -> String {
    match (ranks.first(), ranks.last()) {
        (Some(first), Some(last)) if usize::from(last.0 - first.0) + 1 == ranks.len() => {
            format!("ranks {} to {}", first.0, last.0)
        }
        _ => ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Why a run ended without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A wait was not met within its bound, which is given in microseconds.
    Timeout(u64),
    /// A rank is gone.
    PeerLost(Rank),
    /// A NIC completed a request with an error.
    Nic {
        /// The other end.
        peer: Rank,
        /// What the NIC said.
        status: String,
    },
    /// Nothing can ever happen again: each task of the chain waits for the next.
    Deadlock(Vec<String>),
    /// Two accesses without an order.
    Race {
        /// The region.
        region: String,
        /// The task that came first.
        first: String,
        /// The task that came second.
        second: String,
    },
    /// Bytes of an output that nobody wrote.
    Unwritten {
        /// The region.
        region: String,
        /// Which of them.
        bytes: String,
    },
    /// A word stands lower than the program's posts make it.
    LostPost,
    /// A word stands higher than the program's posts make it.
    SurplusPost,
    /// The kernel could not run a task; why, in words.
    Kernel(String),
}

/// Why a run ended without a result: the first fault wins, and all ranks report the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it was seen.
    pub rank: Rank,
    /// The task that saw it, by name; empty where no task did.
    pub task: String,
    /// The signal that it waited for, by name.
    pub signal: String,
    /// What the signal should have been.
    pub expected: u64,
    /// What it was.
    pub seen: u64,
    /// The epoch.
    pub epoch: u64,
    /// The reason.
    pub reason: Reason,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { rank, task, signal, expected, seen, epoch, reason } = self;
        match reason {
            Reason::Timeout(us) if signal.is_empty() => {
                write!(f, "{task} had not ended after {us} us, though it waited for nothing (epoch {epoch})")
            }
            Reason::Timeout(us) => write!(
                f,
                "{task} waited {us} us for {signal} to reach {expected}; it stands at {seen} (epoch {epoch})"
            ),
            Reason::PeerLost(peer) if signal.is_empty() => {
                write!(f, "{peer} is lost: {rank} misses it, though no task waits for it (epoch {epoch})")
            }
            Reason::PeerLost(peer) => write!(
                f,
                "{peer} is lost: {task} waited for {signal} to reach {expected}; it stands at {seen} (epoch {epoch})"
            ),
            Reason::Nic { peer, status } => {
                write!(f, "the NIC of {rank} failed a request to {peer}: {status} ({task}, epoch {epoch})")
            }
            Reason::Deadlock(chain) => write!(f, "deadlock: {}", chain.join("; ")),
            Reason::Race { region, first, second } => {
                write!(f, "race on '{region}' of {rank}: {first} and {second} have no order (epoch {epoch})")
            }
            Reason::Unwritten { region, bytes } => {
                write!(f, "output '{region}' of {rank} was not written: {bytes} (epoch {epoch})")
            }
            Reason::LostPost => {
                write!(f, "a post was lost: {signal} stands at {seen}, not {expected} (epoch {epoch})")
            }
            Reason::Kernel(why) => write!(f, "{task} could not be run: {why} (epoch {epoch})"),
            Reason::SurplusPost => {
                write!(f, "a post too many: {signal} stands at {seen}, not {expected} (epoch {epoch})")
            }
        }
    }
}

impl std::error::Error for Fault {}

/// Why a session refused or ended a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program or the tensors do not fit.
    #[error(transparent)]
    Input(#[from] Error),
    /// It started and ended in a fault.
    #[error(transparent)]
    Fault(Box<Fault>),
    /// Another run has not ended.
    #[error("another run has not ended")]
    Busy,
    /// The hardware, or its library, refused.
    #[error("{}", .0.message)]
    Hardware(Box<Explanation>),
}

impl From<Fault> for RunError {
    fn from(fault: Fault) -> RunError {
        RunError::Fault(Box::new(fault))
    }
}

/// Something that runs proved programs.
pub trait Session {
    /// The registry that it runs with.
    fn registry(&self) -> &Registry;

    /// Takes a program: allocates its memory and checks it against the programs that are already loaded.
    /// Loading it twice does nothing.
    ///
    /// # Errors
    /// It was proved for another registry, or shares memory with a loaded program in a way that is not proved.
    fn load(&mut self, program: &Verified) -> Result<(), RunError>;

    /// Runs one epoch, and returns what the caller's output regions hold. Loads the program if it is new.
    ///
    /// # Errors
    /// Tensors that do not fit, or a fault.
    fn run(&mut self, program: &Verified, bindings: &Bindings) -> Result<Bindings, RunError>;
}
