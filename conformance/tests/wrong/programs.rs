//! Sessions that run another program than the one that they are given: frames that are a little wrong.

use mk_core::*;
use mk_sim::{Checks, Simulator};

/// A simulator that changes every program before it runs it, and looks at nothing itself.
pub(crate) struct Frame {
    sim: Simulator,
    change: fn(&mut Program),
}

impl Frame {
    pub(crate) fn new(registry: &Registry, seed: u64, change: fn(&mut Program)) -> Frame {
        let sim =
            Simulator::builder(registry).schedule_seed(seed).checks(Checks::none()).run_bound_us(10_000);
        Frame { sim: sim.build(), change }
    }
}

impl Session for Frame {
    fn registry(&self) -> &Registry {
        self.sim.registry()
    }
    fn load(&mut self, _: &Verified) -> Result<(), RunError> {
        Ok(())
    }
    fn run(&mut self, program: &Verified, bindings: &Bindings) -> Result<Bindings, RunError> {
        let mut program = program.program().clone();
        (self.change)(&mut program);
        let out = self.sim.run_unproved(&program, std::slice::from_ref(bindings))?;
        Ok(out.into_iter().next().unwrap_or_default())
    }
}

/// No task waits for anything.
pub(crate) fn never_waits(program: &mut Program) {
    program.tasks.iter_mut().for_each(|t| t.waits = Default::default());
}

/// Nops post at once.
pub(crate) fn nops_never_wait(program: &mut Program) {
    let is_nop: Vec<bool> = program.handlers.iter().map(|h| h.name == "nop").collect();
    for task in program.tasks.iter_mut().filter(|t| is_nop[t.op.index()]) {
        task.waits = Default::default();
    }
}

/// Waits that guard one block each are met when the first of their words is.
pub(crate) fn waits_for_the_first_block_only(program: &mut Program) {
    for wait in program.tasks.iter_mut().flat_map(|t| &mut t.waits) {
        if wait.at() == WaitAt::Block {
            wait.count = wait.count.min(1);
        }
    }
}

/// What is needed before a task stores is not waited for.
pub(crate) fn stores_at_once(program: &mut Program) {
    for wait in program.tasks.iter_mut().flat_map(|t| &mut t.waits) {
        if wait.at() == WaitAt::Store {
            *wait = Wait::default();
        }
    }
}

/// Tasks post when they have read, not when what they wrote is visible.
pub(crate) fn posts_too_early(program: &mut Program) {
    for post in program.tasks.iter_mut().flat_map(|t| &mut t.posts) {
        if post.used() && post.at() == PostAt::Done {
            post.bits = Post::pack(PostAt::Loaded, post.kind(), post.clock());
        }
    }
}

/// Every wait for an epoch is met by the one before it.
pub(crate) fn waits_for_the_last_epoch(program: &mut Program) {
    for wait in program.tasks.iter_mut().flat_map(|t| &mut t.waits) {
        if wait.used() {
            wait.bits = Wait::pack(wait.at(), wait.lag() + 1);
        }
    }
}

/// Tasks wait for one post where they should wait for all.
pub(crate) fn waits_for_one_post(program: &mut Program) {
    for wait in program.tasks.iter_mut().flat_map(|t| &mut t.waits) {
        wait.upto = wait.upto.min(1);
    }
}
