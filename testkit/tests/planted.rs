//! Every planted fault is refuted, with the right kind and the right tasks.

use mk_core::{Error, Hardware, verify::FindingKind};
use std::collections::BTreeMap;
use testkit::planted;

#[test]
fn every_planted_fault_is_refuted_with_its_kind_and_tasks() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut bad = Vec::new();
    for p in planted::all().unwrap() {
        *counts.entry(format!("{:?}", p.kind)).or_default() += 1;
        let name = &p.case.name;
        match p.case.program.verify(&p.case.registry, &Hardware::h200()) {
            Ok(_) => bad.push(format!("{name}: proved, but it is a {:?}", p.kind)),
            Err(Error::NotProved { finding, .. }) => {
                let named = p.tasks.iter().all(|t| finding.tasks.iter().any(|f| f.starts_with(t.as_str())));
                if finding.kind != p.kind || !named {
                    bad.push(format!("{name}: {:?} {:?}, but found {finding:?}", p.kind, p.tasks));
                }
            }
            Err(e) => bad.push(format!("{name}: {e}")),
        }
    }
    println!("{counts:#?}");
    assert!(bad.is_empty(), "{} faults:\n{}", bad.len(), bad.join("\n"));
    for kind in [
        FindingKind::Race,
        FindingKind::OutsideRun,
        FindingKind::Deadlock,
        FindingKind::OutOfRange,
        FindingKind::WrittenTwice,
        FindingKind::Unwritten,
        FindingKind::Stale,
        FindingKind::Threshold,
        FindingKind::EpochAlias,
        FindingKind::Undeliverable,
        FindingKind::Unreachable,
        FindingKind::Lanes,
        FindingKind::Malformed,
    ] {
        let n = counts.get(&format!("{kind:?}")).copied().unwrap_or(0);
        assert!(n >= planted::ENOUGH, "only {n} programs of {kind:?}");
    }
}
