//! Mutants are what they say they are.

use mk_core::{Limits, Post};
use testkit::mutate::{self, Kind};
use testkit::pool;
use testkit::random::{Params, Random};

#[test]
fn making_counts_fit_changes_nothing_where_they_fit() {
    for case in pool::all().unwrap() {
        let mut same = case.program.clone();
        mutate::retotal(&mut same, &case.registry);
        assert_eq!(same, case.program, "{}", case.name);
    }
    for seed in 0..100 {
        let random = Random::new(&Params::from_seed(seed)).unwrap();
        let mut same = random.program.clone();
        mutate::retotal(&mut same, &random.registry);
        assert_eq!(same, random.program, "seed {seed}");
    }
}

#[test]
fn making_counts_fit_mends_what_a_lost_post_breaks() {
    let case = pool::ring(2, 2).unwrap();
    let mut lost = case.program.clone();
    let post = lost.tasks.iter_mut().flat_map(|t| &mut t.posts).find(|p| p.used()).unwrap();
    let (rank, word) = (post.rank, post.word);
    *post = Post::default();
    mutate::retotal(&mut lost, &case.registry);
    for s in &lost.streams {
        for id in s.tasks() {
            let task = lost.task(id);
            let waits = task.waits().filter(|w| s.rank.0 == rank && w.words().any(|x| x == word));
            assert!(waits.count() == 0 || task.waits().all(|w| w.total > 0 && w.upto <= w.total));
        }
    }
}

#[test]
fn every_mutant_differs_and_names_its_place() {
    for case in pool::all().unwrap() {
        for kind in Kind::ALL {
            for m in mutate::all(&case.program, &case.registry, kind) {
                assert_ne!(m.program, case.program, "{}: {kind:?} {}", case.name, m.what);
                assert!(!m.place.is_empty() && !m.what.is_empty());
                assert_eq!(m.kind, kind);
            }
        }
    }
}

#[test]
fn a_seed_always_picks_the_same_mutant_and_seeds_pick_many() {
    let case = pool::all_gather(3, 1).unwrap();
    let mut seen = std::collections::HashSet::new();
    for seed in 0..100 {
        let a = mutate::pick(&case.program, &case.registry, Kind::DropWait, seed).unwrap();
        let b = mutate::pick(&case.program, &case.registry, Kind::DropWait, seed).unwrap();
        assert_eq!(a.program, b.program);
        seen.insert(format!("{} {} {}", a.place, a.what, a.retotalled));
    }
    let all = mutate::all(&case.program, &case.registry, Kind::DropWait).len();
    assert!(seen.len() * 10 >= all * 9, "{} of {all}", seen.len());
}

#[test]
fn edited_records_stay_where_they_belong() {
    let case = pool::producer_consumer(2, 3).unwrap();
    for kind in [Kind::Swap, Kind::Move, Kind::Duplicate, Kind::Remove] {
        for m in mutate::all(&case.program, &case.registry, kind) {
            let mut next = 0;
            for s in &m.program.streams {
                assert_eq!(s.first, next, "{kind:?} {}", m.what);
                next += s.len;
            }
            assert_eq!(next as usize, m.program.tasks.len(), "{kind:?} {}", m.what);
            assert!(m.program.lanes.iter().all(|&l| u64::from(l) <= Limits::LANES));
        }
    }
}
