//! `mk selftest`: every handler and operator, run on this machine and compared with a reference.
//!
//! The checks are those of the `conformance` crate.

mod backend;
mod bounded;
mod table;

use crate::args::{SelftestArgs, SelftestRequirement};
use crate::console::{Console, count};
use crate::error::{Exit, Failure};
use crate::gpu::FirstGpu;
use backend::{Backend, LIMIT};
use mk_core::Explanation;
use serde::Serialize;
use table::{Row, Status};

/// What the command answers.
#[derive(Serialize)]
struct Answer {
    command: &'static str,
    backends: Vec<Part>,
    checks: Vec<Row>,
}

/// What became of one backend.
#[derive(Serialize)]
struct Part {
    backend: &'static str,
    /// The GPU, where there is one.
    device: Option<String>,
    run: usize,
    skipped: usize,
    failed: usize,
    /// Why all of it was skipped.
    lacks: Option<Explanation>,
}

/// `mk selftest`.
pub(crate) fn selftest(args: &SelftestArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let mut answer = Answer { command: "selftest", backends: Vec::new(), checks: Vec::new() };
    console.text(&table::head());
    for backend in [Backend::simulator(), Backend::gpu(FirstGpu::find())] {
        let rows = rows(&backend, console);
        rows.iter().for_each(|row| console.text(&row.line()));
        answer.backends.push(Part::of(&backend, &rows));
        answer.checks.extend(rows);
    }
    for part in &answer.backends {
        console.say(part.backend, part.text());
    }
    for row in answer.checks.iter().filter(|r| r.status == Status::Failed) {
        console.say(&format!("failed on the {}", row.backend), row.reason.as_deref().unwrap_or_default());
    }
    match answer.failure(&args.require) {
        Some(failure) => Err(failure.with(&answer)),
        None => {
            console.object(&answer);
            Ok(())
        }
    }
}

/// Runs all checks of a backend, or says of all that they are skipped.
fn rows(backend: &Backend, console: &Console<'_>) -> Vec<Row> {
    let checks = backend.checks();
    let Ok(run) = &backend.run else {
        return checks.iter().map(|check| Row::skipped(check, backend.name)).collect();
    };
    let bar = console.bar(format!("checking the {}", backend.name), checks.len() as u64);
    let jobs = checks.iter().map(|&check| {
        let run = run.clone();
        Box::new(move || run(check)) as bounded::Job
    });
    let ended = bounded::all(jobs.collect(), backend.workers, LIMIT, |done| bar.at(done as u64));
    checks.iter().zip(ended).map(|(check, ended)| Row::of(check, backend.name, ended)).collect()
}

impl Part {
    fn of(backend: &Backend, rows: &[Row]) -> Part {
        let of = |status| rows.iter().filter(|r| r.status == status).count();
        Part {
            backend: backend.name,
            device: backend.device.clone(),
            run: of(Status::Run),
            skipped: of(Status::Skipped),
            failed: of(Status::Failed),
            lacks: backend.run.as_ref().err().cloned(),
        }
    }

    /// For people.
    fn text(&self) -> String {
        let Part { run, skipped, failed, device, lacks, .. } = self;
        let device = device.as_ref().map_or_else(String::new, |device| format!("{device}: "));
        let why = lacks.as_ref().map_or_else(String::new, |e| format!(": {} ({})", e.message, e.hint));
        format!("{device}{run} right, {skipped} skipped, {failed} failed{why}")
    }
}

impl Answer {
    /// A check that failed is worse than one that was not run.
    fn failure(&self, required: &[SelftestRequirement]) -> Option<Failure> {
        let failed: Vec<&Row> = self.checks.iter().filter(|r| r.status == Status::Failed).collect();
        if let Some(first) = failed.first() {
            let says = Explanation {
                kind: "selftest",
                message: format!("{} failed", count(failed.len() as u64, "check")),
                given: first.reason.clone().unwrap_or_default(),
                allowed: "none that fails".into(),
                hint: "this machine gives wrong results, or mk does: please report it with this output"
                    .into(),
            };
            return Some(Failure::new(Exit::Wrong, says));
        }
        let lacks = self.backends.iter().find(|p| p.backend == backend::GPU)?.lacks.as_ref()?;
        required.contains(&SelftestRequirement::Gpu).then(|| {
            let message = format!("the part for GPUs was skipped: {}", lacks.message);
            Failure::new(Exit::Missing, Explanation { message, ..lacks.clone() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bounded::Ended;
    use conformance::{Check, Config};

    fn lacks() -> Explanation {
        let [message, given, allowed, hint] = ["no driver", "", "", "install it"].map(String::from);
        Explanation { kind: "missing", message, given, allowed, hint }
    }

    /// An answer in which the simulator's only check ended so, and there is no GPU.
    fn answer(ended: Ended) -> Answer {
        let check = Check::all(Config::exact()).next().expect("there are checks");
        let simulator = Backend::simulator();
        let gpu = Backend::gpu(Err(Failure::new(Exit::Missing, lacks())));
        let rows = [Row::of(check, simulator.name, ended), Row::skipped(check, gpu.name)];
        let backends = vec![Part::of(&simulator, &rows[..1]), Part::of(&gpu, &rows[1..])];
        Answer { command: "selftest", backends, checks: rows.into() }
    }

    #[test]
    fn what_was_skipped_fails_only_where_it_is_required() {
        let right = answer(Ended::Right(0.5));
        assert!(right.failure(&[]).is_none());
        let failure = right.failure(&[SelftestRequirement::Gpu]).expect("it is required");
        assert_eq!((failure.exit, failure.says.hint.as_str()), (Exit::Missing, "install it"));
        assert_eq!(failure.says.message, "the part for GPUs was skipped: no driver");
    }

    #[test]
    fn a_check_that_failed_counts_more_than_one_that_was_skipped() {
        let wrong = answer(Ended::Wrong(0.5, "add, seed 3: 1 of 8 elements are wrong".into()));
        let failure = wrong.failure(&[SelftestRequirement::Gpu]).expect("a check failed");
        assert_eq!((failure.exit, failure.says.message.as_str()), (Exit::Wrong, "1 check failed"));
        assert_eq!(failure.says.given, "add: add, seed 3: 1 of 8 elements are wrong");
    }

    #[test]
    fn people_see_a_row_a_check_and_a_line_a_backend() {
        let answer = answer(Ended::Right(0.5));
        let rows: String = answer.checks.iter().map(Row::line).collect();
        assert_eq!(
            table::head() + &rows,
            "check                                  backend    result   seconds\n\
             add                                    simulator  run          0.5\n\
             add                                    GPU        skipped        -\n"
        );
        assert_eq!(answer.backends[0].text(), "1 right, 0 skipped, 0 failed");
        assert_eq!(answer.backends[1].text(), "0 right, 1 skipped, 0 failed: no driver (install it)");
    }
}
