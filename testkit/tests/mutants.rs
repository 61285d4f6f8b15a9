//! Mutants of small programs, tabulated by who catches them. A mutant that the verifier proves must be harmless, and
//! the brute-force scheduler, which knows nothing of the verifier, is the one to say so.

use mk_core::{Error, Hardware};
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

fn check(kind: Kind) {
    let cases = pool::all().expect("legal sizes");
    let rows = mutants(&cases, kind);
    assert!(rows.len() >= ENOUGH, "{kind:?} has only {} mutants", rows.len());
    let mut table: BTreeMap<String, usize> = BTreeMap::new();
    let mut bad = Vec::new();
    for Row { case, mutant } in &rows {
        let Case { name, program, registry } = &cases[*case];
        assert_ne!(mutant.program, *program, "{name}: {} does not differ", mutant.what);
        let verdict = mutant.program.clone().verify(registry, &Hardware::h200());
        let report =
            brute::explore(&mutant.program, registry, &Bounds::fitting(&mutant.program), Some(program));
        let truth = format!("{:?}", report.outcome).split(['(', ' ']).next().unwrap_or_default().to_string();
        let who = match &verdict {
            Err(Error::NotProved { finding, .. }) => format!("{:?} {:?}", finding.verdict, finding.kind),
            Err(e) => panic!("{name}: {e}"),
            Ok(_) => {
                if !matches!(report.outcome, Outcome::Harmless | Outcome::Changed(_)) {
                    let twin = if mutant.retotalled { " (retotalled)" } else { "" };
                    bad.push(format!(
                        "{name}: {}{twin}: {}\n    {:?}",
                        mutant.place, mutant.what, report.outcome
                    ));
                }
                "proved".into()
            }
        };
        if let Ok(show) = std::env::var("SHOW")
            && format!("{who}|{truth}") == show
        {
            println!(
                "SHOW {name}: {} {} {:?}\n {:?}",
                mutant.place,
                mutant.what,
                report.outcome,
                verdict.as_ref().err()
            );
        }
        *table.entry(format!("{who:<24} | {truth}")).or_default() += 1;
    }
    println!("{kind:?}: {} mutants", rows.len());
    for (row, n) in &table {
        println!("  {n:>5}  {row}");
    }
    assert!(bad.is_empty(), "{} survivors are not harmless:\n{}", bad.len(), bad.join("\n"));
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
