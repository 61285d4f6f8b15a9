//! Mutants of small programs, tabulated by who catches them. A mutant that the verifier proves must be harmless, and
//! the brute-force scheduler, which knows nothing of the verifier, is the one to say so.

mod common;

use mk_core::{Error, Fault, Hardware, Registry};
use mk_sim::Checks;
use std::collections::BTreeMap;
use testkit::brute::{self, Bounds, Outcome};
use testkit::mutate::{self, Kind, Mutant};
use testkit::{kit::Case, pool};

/// Least number of mutants of each kind.
const ENOUGH: usize = 200;
/// Most of them that one test looks at.
const MOST: usize = 600;

struct Row {
    case: usize,
    mutant: Mutant,
}

/// Mutants of all programs of the pool, evenly spread if there are too many.
fn mutants(cases: &[Case], kind: Kind) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (case, c) in cases.iter().enumerate() {
        for mutant in mutate::all(&c.program, &c.registry, kind) {
            let twin = rows.iter().any(|r| r.case == case && r.mutant.program == mutant.program);
            if !twin {
                rows.push(Row { case, mutant });
            }
        }
    }
    let step = rows.len().div_ceil(MOST).max(1);
    let offset = kind as usize % step;
    rows.into_iter().skip(offset).step_by(step).collect()
}

/// Who caught a mutant.
#[derive(Default)]
struct Caught {
    mutants: usize,
    /// By how the verifier calls it, and what the brute-force scheduler says.
    verifier: BTreeMap<String, usize>,
    /// Refuted, and found by a detector of the simulator, too.
    both: usize,
    /// Proved, and harmless (or another program that is right).
    nobody: usize,
}

/// Schedules under which the simulator runs a mutant.
const SCHEDULES: u64 = 2;

/// Whether a detector of the simulator finds anything.
fn simulated(mutant: &Mutant, registry: &Registry) -> Vec<Fault> {
    let run = |seed| common::findings(&mutant.program, registry, Checks::all(), seed, 3);
    (0..SCHEDULES).map(run).find(|found| !found.is_empty()).unwrap_or_default()
}

fn check(kind: Kind) {
    let cases = pool::all().expect("legal sizes");
    let rows = mutants(&cases, kind);
    assert!(rows.len() >= ENOUGH, "{kind:?} has only {} mutants", rows.len());
    let (mut caught, mut bad) = (Caught { mutants: rows.len(), ..Caught::default() }, Vec::new());
    for Row { case, mutant } in &rows {
        let Case { name, program, registry } = &cases[*case];
        assert_ne!(mutant.program, *program, "{name}: {} does not differ", mutant.what);
        let verdict = mutant.program.clone().verify(registry, &Hardware::h200());
        let bounds = Bounds::fitting(&mutant.program);
        let truth = brute::explore(&mutant.program, registry, &bounds, Some(program)).outcome;
        let found = simulated(mutant, registry);
        let twin = if mutant.retotalled { " (retotalled)" } else { "" };
        let place = format!("{name}: {}{twin}: {}", mutant.place, mutant.what);
        match verdict {
            Ok(_) => {
                caught.nobody += 1;
                if !matches!(truth, Outcome::Harmless | Outcome::Changed(_)) {
                    bad.push(format!("{place}\n    proved, but {truth:?}"));
                }
                if let Some(fault) = found.first() {
                    bad.push(format!("{place}\n    proved, but the simulator finds: {fault}"));
                }
            }
            Err(Error::NotProved { finding, .. }) => {
                let truth = format!("{truth:?}");
                let truth = truth.split(['(', ' ']).next().unwrap_or_default();
                *caught
                    .verifier
                    .entry(format!("{:<13} | {truth}", format!("{:?}", finding.kind)))
                    .or_default() += 1;
                caught.both += usize::from(!found.is_empty());
            }
            Err(e) => panic!("{place}: {e}"),
        }
    }
    print(kind, &caught);
    assert!(bad.is_empty(), "{} survivors are not harmless:\n{}", bad.len(), bad.join("\n"));
}

fn print(kind: Kind, caught: &Caught) {
    let refuted = caught.mutants - caught.nobody;
    println!(
        "{kind:?}: {} mutants: builder 0 (they are made from what it has finished), verifier {refuted}, of these the simulator {}, \
         nobody {} (harmless)",
        caught.mutants, caught.both, caught.nobody
    );
    for (row, n) in &caught.verifier {
        println!("  {n:>5}  {row}");
    }
}

macro_rules! kinds {
    ($($name:ident: $kind:ident,)*) => {
        $(#[test] fn $name() { check(Kind::$kind); })*
        #[test]
        fn every_kind_has_its_test() {
            assert_eq!([$(Kind::$kind),*], Kind::ALL);
        }
    };
}
kinds! {
    drop_wait: DropWait,
    drop_post: DropPost,
    raise_threshold: RaiseThreshold,
    lower_threshold: LowerThreshold,
    retarget_wait: RetargetWait,
    retarget_post: RetargetPost,
    retarget_rank: RetargetRank,
    lag_to_zero: LagToZero,
    lag_up: LagUp,
    wait_later: WaitLater,
    post_earlier: PostEarlier,
    swap: Swap,
    move_task: Move,
    duplicate: Duplicate,
    remove: Remove,
    shift: Shift,
    shrink: Shrink,
    widen: Widen,
    depth: Depth,
    merge: Merge,
}
