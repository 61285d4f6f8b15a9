//! Two programs of one session that share memory: neither may run into what the other is still doing.

use super::facts::{Facts, Item};
use super::order::{Answer, Order};
use super::overlap::Overlap;
use super::races::{too_irregular, word_alias};
use super::report::{Findings, refuted, unproved};
use super::{FindingKind as Kind, Proof, Verified};
use crate::{Error, Program, Rank, Region};
use std::collections::HashMap;

/// Proves that two programs of one session, which may follow each other in any order, do not race on the regions that
/// they share by name. Programs that share nothing are proved at once.
///
/// # Errors
/// [`Error::NotProved`] with what was found; shared regions or signals that do not agree.
pub fn verify_pair(p: &Verified, q: &Verified) -> Result<Proof, Error> {
    let mut proof = Proof::default();
    if p.registry().topology() != q.registry().topology() {
        return Err(Error::build(
            format!("'{}' and '{}' are for different worlds", p.program().name, q.program().name),
            "plan both for the world of the session",
        ));
    }
    let shared = shared_regions(p.program(), q.program())?;
    let words = shared_words(p.program(), q.program())?;
    if shared.is_empty() && words.is_empty() {
        return Ok(proof);
    }
    let mut findings = Findings::default();
    let (a, b) = (p.program(), q.program());
    let name = format!("{} with {}", a.name, b.name);
    let fail = |findings: Findings| {
        let finding = findings.0.into_iter().next().expect("a failed pass leaves a finding");
        Error::NotProved { program: name.clone(), finding: Box::new(finding) }
    };
    let Some(fa) = Facts::new(a, p.registry(), p.opcodes(), None, &mut findings) else {
        return Err(fail(findings));
    };
    let Some(fb) = Facts::new(b, q.registry(), q.opcodes(), None, &mut findings) else {
        return Err(fail(findings));
    };
    if let Some(finding) = different_counts(&fa, &fb, &words) {
        findings.push(finding);
        return Err(fail(findings));
    }
    let back: HashMap<u32, u32> = words.iter().map(|(x, y)| (*y, *x)).collect();
    let flipped: Vec<(usize, usize)> = shared.iter().map(|(x, y)| (*y, *x)).collect();
    // Words of q as p counts them, for p before q; and the reverse.
    one_after_the_other(&fa, &fb, &shared, back.clone(), &mut findings, &mut proof);
    one_after_the_other(&fb, &fa, &flipped, words, &mut findings, &mut proof);
    if findings.any() { Err(fail(findings)) } else { Ok(proof) }
}

/// Places of the regions that both share.
fn shared_regions(p: &Program, q: &Program) -> Result<Vec<(usize, usize)>, Error> {
    let mut both = Vec::new();
    for (i, a) in p.regions.iter().enumerate().filter(|(_, r)| r.shared) {
        let Some((j, b)) = q.regions.iter().enumerate().find(|(_, r)| r.shared && r.name == a.name) else {
            continue;
        };
        if !a.agrees(b) {
            return Err(Error::build(
                format!(
                    "'{}' and '{}' share region '{}' but describe it differently",
                    p.name, q.name, a.name
                ),
                "give it the same kind, use, type and shape in both, or another name in one",
            ));
        }
        both.push((i, j));
    }
    Ok(both)
}

/// The first program's shared words, as the second numbers them.
fn shared_words(p: &Program, q: &Program) -> Result<HashMap<u32, u32>, Error> {
    let mut map = HashMap::new();
    for a in p.shared_signals() {
        let Some(b) = q.shared_signals().find(|b| b.name == a.name) else { continue };
        if !a.agrees(b) {
            return Err(Error::build(
                format!(
                    "'{}' and '{}' share signal '{}' but describe it differently",
                    p.name, q.name, a.name
                ),
                "give it the same kind and number of words in both, or another name in one",
            ));
        }
        map.extend((0..a.words).map(|i| (a.first + i, b.first + i)));
    }
    Ok(map)
}

/// Shared words must be counted alike in both, and one that is set must have one writing rank.
fn different_counts(p: &Facts<'_>, q: &Facts<'_>, words: &HashMap<u32, u32>) -> Option<super::Finding> {
    let mut sorted: Vec<_> = words.iter().collect();
    sorted.sort_unstable();
    for (&a, &b) in sorted {
        for rank in (0..p.program.ranks).map(|r| Rank(r as u16)) {
            let (x, y) = (p.totals[p.at(rank, a)], q.totals[q.at(rank, b)]);
            if p.writer(rank, a) != q.writer(rank, b) {
                let detail = format!(
                    "{} is written by another rank in '{}' than in '{}'",
                    p.program.word_name(rank, a),
                    p.program.name,
                    q.program.name
                );
                return Some(refuted(Kind::Threshold, Vec::new(), detail));
            }
            if x != y {
                let detail = format!(
                    "{} receives {x} posts an epoch from '{}' and {y} from '{}': shared words are counted together",
                    p.program.word_name(rank, a),
                    p.program.name,
                    q.program.name
                );
                return Some(refuted(Kind::Threshold, Vec::new(), detail));
            }
        }
    }
    None
}

/// Checks a run of `earlier` that is followed by a run of `later`, each rank at its own pace.
fn one_after_the_other(
    earlier: &Facts<'_>,
    later: &Facts<'_>,
    shared: &[(usize, usize)],
    map: HashMap<u32, u32>,
    findings: &mut Findings,
    proof: &mut Proof,
) {
    let mut pairs: Vec<(u32, u32)> = map.iter().map(|(l, e)| (*l, *e)).collect();
    pairs.sort_unstable();
    let mut order = Order::between(earlier, later, map);
    for (later_word, word) in pairs {
        for rank in (0..later.program.ranks).map(|r| Rank(r as u16)) {
            if earlier.totals[earlier.at(rank, word)] == 0 {
                continue;
            }
            let found = word_alias(&mut order, earlier.program, later.program, rank, word, later_word);
            found.into_iter().for_each(|f| findings.push(f));
        }
    }
    let mut left = 10_000_000 + 64 * (earlier.accesses + later.accesses);
    for &(i, j) in shared {
        let region = &later.program.regions[j];
        for (rank, (a, b)) in earlier.items[i].iter().zip(&later.items[j]).enumerate() {
            let (writes_a, writes_b) = (Overlap::new(a), Overlap::new(b));
            for item in b {
                writes_a.each(&item.rect, |w| {
                    meet(
                        &mut order,
                        (earlier, later),
                        (&a[w as usize], item),
                        region,
                        rank,
                        &mut left,
                        findings,
                        proof,
                    )
                });
            }
            for item in a.iter().filter(|i| !i.mode.writes()) {
                writes_b.each(&item.rect, |w| {
                    meet(
                        &mut order,
                        (earlier, later),
                        (item, &b[w as usize]),
                        region,
                        rank,
                        &mut left,
                        findings,
                        proof,
                    )
                });
            }
        }
    }
}

/// One overlapping pair across the two runs; whether to go on.
#[allow(clippy::too_many_arguments)]
fn meet(
    order: &mut Order<'_, '_>,
    (earlier, later): (&Facts<'_>, &Facts<'_>),
    (a, b): (&Item, &Item),
    region: &Region,
    rank: usize,
    left: &mut u64,
    findings: &mut Findings,
    proof: &mut Proof,
) -> bool {
    let names = || vec![earlier.program.task_name(a.task), later.program.task_name(b.task)];
    let Some(rest) = left.checked_sub(1) else {
        findings.push(unproved(Vec::new(), too_irregular(region)));
        return false;
    };
    *left = rest;
    let both = a.rect.intersect(&b.rect).expect("the index found an overlap");
    match order.before(a, b, &both, 1) {
        Answer::Ordered => proof.pairs += 1,
        Answer::Unknown => {
            let names = names();
            let detail =
                format!("whether {} comes before {} could not be told within the budget", names[0], names[1]);
            findings.push(unproved(names, detail));
        }
        Answer::Unordered => {
            let names = names();
            let detail = format!(
                "{} of '{}' and {} of '{}', which runs next, both touch {both} of the shared region '{}' on rank {rank}, \
                 with no signal between them",
                names[0], earlier.program.name, names[1], later.program.name, region.name
            );
            findings.push(refuted(Kind::Race, names, detail));
        }
    }
    !findings.full()
}
