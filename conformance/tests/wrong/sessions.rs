//! Sessions that spoil what a simulator gives back, or what it is given.

use mk_core::*;
use mk_sim::Simulator;

/// What is wrong with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// A bit of what comes back is wrong.
    FlipsABit,
    /// The lowest bit of one element is wrong, in every second session.
    ChangesBitsByChance,
    /// A row does not come back: it is as it was given, or nothing.
    LosesARow,
    /// A row is written over the next one, too.
    RepeatsARow,
    /// The first row of every input is never looked at.
    SkipsARow,
    /// A tensor does not come back.
    LosesATensor,
    /// A tensor comes back that nobody asked for.
    GivesTooMuch,
    /// What comes back has one row less.
    GivesLess,
    /// What comes back is of the run before.
    GivesTheLastRun,
    /// NaN becomes 0.
    HidesNan,
    /// A NaN spoils the element after it, too.
    SpreadsNan,
    /// Tensors that do not fit are no error.
    AcceptsAnyTensor,
    /// After an error, nothing works.
    NeverRecovers,
    /// Programs of another world are no error.
    AcceptsAnyProgram,
    /// What does not fit is a fault, not an input error.
    CallsInputAFault,
    /// Only the program that was loaded first is ever run.
    RunsOneProgram,
}

/// A simulator with something wrong.
pub(crate) struct Spoilt {
    sim: Simulator,
    how: How,
    seed: u64,
    last: Option<Bindings>,
    first: Option<Verified>,
    failed: bool,
}

impl Spoilt {
    pub(crate) fn new(registry: &Registry, seed: u64, how: How) -> Spoilt {
        let sim = Simulator::builder(registry).schedule_seed(seed).build();
        Spoilt { sim, how, seed, last: None, first: None, failed: false }
    }

    fn fault(&self) -> RunError {
        RunError::from(Fault {
            rank: Rank(0),
            task: String::new(),
            signal: String::new(),
            expected: 0,
            seen: 0,
            epoch: 1,
            reason: Reason::LostPost,
        })
    }

    fn given(&self, bindings: &Bindings) -> Bindings {
        let mut given = Bindings::new();
        for (rank, name, tensor) in bindings.iter() {
            let mut tensor = tensor.clone();
            if self.how == How::SkipsARow && tensor.rows > 0 {
                let row = tensor.bytes.len() / tensor.rows as usize;
                tensor.bytes[..row].fill(0);
            }
            given.set(rank, name, tensor);
        }
        given
    }

    fn spoil(&mut self, given: &Bindings, out: Bindings) -> Bindings {
        if self.how == How::GivesTheLastRun {
            return self.last.replace(out.clone()).unwrap_or(out);
        }
        let (mut spoilt, mut changed) = (Bindings::new(), false);
        for (rank, name, tensor) in out.iter() {
            let mut tensor = tensor.clone();
            if !changed && self.how == How::LosesATensor {
                changed = true;
                continue;
            }
            if !changed && !tensor.bytes.is_empty() {
                changed = self.change(&mut tensor, given.get(rank, name));
            }
            spoilt.set(rank, name, tensor);
        }
        if self.how == How::GivesTooMuch {
            spoilt.set(Rank(0), "more", Tensor::zeros(DType::F32, 1, 1));
        }
        spoilt
    }

    /// Whether it changed the tensor.
    fn change(&self, t: &mut Tensor, given: Option<&Tensor>) -> bool {
        let (row, n) = (t.bytes.len() / t.rows as usize, t.dtype.bytes() as usize);
        let before = t.clone();
        let nan = |i: usize| before.dtype != DType::I32 && before.dtype.load(&before.bytes, i).is_nan();
        match self.how {
            How::FlipsABit => t.bytes[self.seed as usize % before.bytes.len()] ^= 0x40,
            How::ChangesBitsByChance if self.seed % 2 == 1 => t.bytes[0] ^= 1,
            How::LosesARow => {
                let lost = given.map_or_else(|| vec![0; row], |g| g.bytes[..row].to_vec());
                t.bytes[..row].copy_from_slice(&lost);
            }
            How::RepeatsARow if t.rows > 1 => t.bytes.copy_within(..row, row),
            How::GivesLess => {
                t.bytes.truncate(before.bytes.len() - row);
                t.rows -= 1;
            }
            How::HidesNan => {
                (0..before.bytes.len() / n)
                    .filter(|i| nan(*i))
                    .for_each(|i| t.dtype.store(&mut t.bytes, i, 0.0));
            }
            How::SpreadsNan => {
                let last = before.bytes.len() / n - 1;
                (0..last).filter(|i| nan(*i)).for_each(|i| t.dtype.store(&mut t.bytes, i + 1, f32::NAN));
            }
            _ => {}
        }
        *t != before
    }
}

impl Session for Spoilt {
    fn registry(&self) -> &Registry {
        self.sim.registry()
    }

    fn load(&mut self, program: &Verified) -> Result<(), RunError> {
        match (self.how, self.sim.load(program)) {
            (How::AcceptsAnyProgram, _) => Ok(()),
            (How::CallsInputAFault, Err(_)) => Err(self.fault()),
            (_, result) => result,
        }
    }

    fn run(&mut self, program: &Verified, bindings: &Bindings) -> Result<Bindings, RunError> {
        if self.how == How::NeverRecovers && self.failed {
            return Err(self.fault());
        }
        let program = match self.how {
            How::RunsOneProgram => self.first.get_or_insert_with(|| program.clone()).clone(),
            _ => program.clone(),
        };
        match self.sim.run(&program, &self.given(bindings)) {
            Ok(out) => Ok(self.spoil(bindings, out)),
            Err(_) if self.how == How::AcceptsAnyTensor => Ok(Bindings::new()),
            Err(_) if self.how == How::CallsInputAFault => Err(self.fault()),
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }
}
