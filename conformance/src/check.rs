//! The checks that the suite's tests are made of: each runs many cases, and says what is wrong with the first that fails.

use crate::case::{Case, Open};
use crate::config::Config;
use crate::context::{Context, Generator};
use crate::handlers::SUBJECTS;
use crate::network::Network;
use crate::operators::OPERATORS;
use mk_core::Registry;

/// Random cases of each handler and operator, at least; more by `PROPTEST_CASES`. The branches of the generators are counted
/// over so many.
const CASES: u64 = 64;

fn cases() -> u64 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES);
    asked.max(CASES)
}

/// Runs random programs of one handler, with random legal arguments, on one network.
///
/// # Errors
/// The first case that fails, with its seed; a branch of the generator that was not taken; no generator.
pub fn handler(config: Config, network: Network, handler: &str, open: Open<'_>) -> Result<(), String> {
    let subject = SUBJECTS.iter().find(|s| s.handler == handler);
    let subject = subject.ok_or_else(|| format!("handler '{handler}' has no generator"))?;
    let mut context = Context::new(config, network);
    run(&mut context, subject.generate, handler, open, |case| uses(case, handler))?;
    context.covered(&(subject.branches)(network)).map_err(|e| format!("{handler}: {e}"))
}

/// Runs an operator at random legal shapes, in worlds of one to eight ranks.
///
/// # Errors
/// As [`handler`].
pub fn operator(config: Config, operator: &str, open: Open<'_>) -> Result<(), String> {
    let operator = find(operator)?;
    let mut context = Context::new(config, Network::Mapped);
    run(&mut context, operator.generate, operator.name, open, |_| true)?;
    context.covered(&(operator.branches)(config)).map_err(|e| format!("{}: {e}", operator.name))
}

/// Runs an operator at shapes that have been silently wrong elsewhere, each in several worlds.
///
/// # Errors
/// The first that fails.
pub fn operator_shapes(config: Config, operator: &str, open: Open<'_>) -> Result<(), String> {
    let (count, shape) = find(operator)?.shapes;
    let mut context = Context::new(config, Network::Mapped);
    for i in 0..count {
        context.reseed(i as u64);
        shape(&mut context, i, &|case| case.run(open, i as u64))?;
    }
    Ok(())
}

fn find(operator: &str) -> Result<&'static crate::operators::Operator, String> {
    OPERATORS.iter().find(|o| o.name == operator).ok_or_else(|| format!("no operator '{operator}'"))
}

/// Whether a task of the program is this handler's.
fn uses(case: &Case, handler: &str) -> bool {
    let program = case.program.program();
    program.tasks.iter().any(|t| program.handlers[t.op.index()].name == handler)
}

fn run(
    context: &mut Context,
    generate: Generator,
    name: &str,
    open: Open<'_>,
    meant: impl Fn(&Case) -> bool,
) -> Result<(), String> {
    for seed in 0..cases() {
        context.reseed(seed);
        let failed = |e| format!("{name}, seed {seed}: {e}");
        let case = generate(context).map_err(failed)?;
        if !meant(&case) {
            return Err(failed(format!("{} has no task of it", case.name)));
        }
        case.run(open, seed).map_err(failed)?;
    }
    Ok(())
}

/// Whether every handler of a registry has a generator, and is among the `tested`.
///
/// # Errors
/// Names the first that has not, or is not.
pub fn covered(registry: &Registry, tested: &[&str]) -> Result<(), String> {
    for handler in registry.handlers() {
        let name = handler.name();
        if !SUBJECTS.iter().any(|s| s.handler == name) {
            return Err(format!("handler '{name}' has no generator: add one to the conformance suite"));
        }
        if !tested.contains(&name) {
            return Err(format!("handler '{name}' is registered, but the suite has no test for it"));
        }
    }
    Ok(())
}
