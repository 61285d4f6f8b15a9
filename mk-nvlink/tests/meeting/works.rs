//! What works.

use super::world::{Process, Scene, connect};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Every process writes into its own place of every rank's memory, and finds what the others wrote.
fn all_reach_all(scene: &Scene, all: &mut [Process], ranks: u16) {
    for p in all.iter_mut() {
        for rank in 0..ranks {
            assert_eq!(p.ask(&format!("read {rank} 100")), "", "new memory is all 0");
            p.ask(&format!("write {rank} {} from-{}", p.rank.0, p.rank.0));
        }
    }
    let writers: Vec<u16> = all.iter().map(|p| p.rank.0).collect();
    for p in all.iter_mut() {
        for (rank, writer) in (0..ranks).flat_map(|r| writers.iter().map(move |w| (r, w))) {
            assert_eq!(p.ask(&format!("read {rank} {writer}")), format!("from-{writer}"));
        }
        assert_eq!(p.ask("lost"), Value::Null);
        assert_eq!(p.ask(&format!("address {ranks}")), false);
    }
    scene.assert_no_socket();
    // They leave one after the other: nobody is lost, and memory of those that have left stays.
    for i in 0..all.len() {
        all[i].ask("drop");
        all[i].assert_clean();
        if let Some(last) = all.last_mut().filter(|_| i + 1 < writers.len()) {
            assert_eq!(last.ask("lost"), Value::Null);
            assert_eq!(last.ask("read 0 0"), "from-0");
        }
    }
}

fn world(ranks: &[&[u16]]) {
    let size = ranks.iter().map(|r| r.len()).sum::<usize>();
    let scene = Scene::of(size as u64);
    let mut all = scene.met(ranks);
    all_reach_all(&scene, &mut all, size as u16);
}

#[test]
fn worlds_of_one_two_and_three_processes_meet() {
    world(&[&[0]]);
    world(&[&[0], &[1]]);
    world(&[&[0], &[1], &[2]]);
}

#[test]
fn a_world_of_five_processes_meets() {
    world(&[&[0], &[1], &[2], &[3], &[4]]);
}

#[test]
fn processes_of_several_ranks_meet() {
    world(&[&[1, 0], &[2], &[5, 3, 4]]);
}

#[test]
fn one_process_with_all_ranks_needs_no_folder() {
    let mut scene = Scene::of(3);
    scene.role.folder = None;
    let mut all = scene.met(&[&[0, 1, 2]]);
    all_reach_all(&scene, &mut all, 3);
    // Several ranks on one GPU.
    let mut one = scene.start_as(&[0, 1, 2], |s| s.role.own.iter_mut().for_each(|(_, gpu)| *gpu = 0));
    assert_eq!(one.meet()["error"], Value::Null);
    all_reach_all(&scene, &mut [one], 3);
}

#[test]
fn ranks_of_another_island_have_no_address() {
    let mut scene = Scene::of(4);
    scene.role.topology = "[[node]]\nranks = 4\nnics = 1\nnvlink = [[0, 2], [1, 3]]\n".into();
    let mut all = scene.met(&[&[0], &[1], &[2], &[3]]);
    for p in &mut all {
        let reached: Vec<Value> = (0..4).map(|r| p.ask(&format!("address {r}"))).collect();
        let want: Vec<Value> = (0..4).map(|r| json!(r % 2 == p.rank.0 % 2)).collect();
        assert_eq!(reached, want, "{}", p.rank);
    }
    // All of it in one process.
    scene.role.folder = None;
    let mut one = scene.met(&[&[0, 1, 2, 3]]).remove(0);
    (0..4).for_each(|r| assert_eq!(one.ask(&format!("address {r}")), true));
}

#[test]
fn two_meetings_with_different_keys_in_one_folder_do_not_meet() {
    let scene = Scene::of(2);
    let mut other = Scene::of(2);
    (other.role.key, other.role.folder) = (2, Some(scene.folder()));
    let mut all = [scene.start(&[1]), other.start(&[0]), other.start(&[1]), scene.start(&[0])];
    connect(&mut all).iter().for_each(|a| assert_eq!(a["error"], Value::Null, "{a}"));
    let [a1, b0, b1, a0] = &mut all;
    a0.ask("write 1 0 a");
    b0.ask("write 1 0 b");
    assert_eq!((a1.ask("read 1 0"), b1.ask("read 1 0")), (json!("a"), json!("b")));
    scene.assert_no_socket();
}

fn cycles(ranks: &[&[u16]]) {
    let scene = Scene::of(ranks.len() as u64);
    let mut all: Vec<Process> = ranks.iter().map(|r| scene.start(r)).collect();
    all.iter_mut().for_each(|p| p.tell("cycles 50"));
    for p in &mut all {
        assert_eq!(p.answer(), Value::Null);
        p.assert_clean();
    }
    scene.assert_no_socket();
}

#[test]
fn regress_uccl_988() {
    // Met, left and met again, in the same processes, with the same key.
    cycles(&[&[0], &[1]]);
}

#[test]
fn regress_nixl_1868() {
    cycles(&[&[0], &[1], &[2]]);
}

/// When `lost` of a process names this rank; it is asked for a second.
fn loses(p: &mut Process, rank: u16) -> bool {
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        match p.ask("lost") {
            Value::Null => std::thread::sleep(Duration::from_millis(5)),
            lost => return lost == rank,
        }
    }
    false
}

#[test]
fn a_process_that_is_killed_later_is_lost_to_all_others() {
    let scene = Scene::of(4);
    for killed in [0, 1, 2] {
        let mut all = scene.met(&[&[0], &[1], &[2, 3]]);
        all[killed].kill();
        for (_, p) in all.iter_mut().enumerate().filter(|(i, _)| *i != killed) {
            assert!(loses(p, killed as u16), "{} after {killed}", p.rank);
            // Its memory can still be read, and all of it is let go.
            assert_eq!(p.ask(&format!("read {killed} 0")), "");
            p.ask("drop");
            p.assert_clean();
        }
    }
}

#[test]
fn a_process_that_panics_is_lost_and_one_that_leaves_is_not() {
    let scene = Scene::of(3);
    let mut all = scene.met(&[&[0], &[1], &[2]]);
    all[1].ask("drop");
    assert_eq!(all[0].ask("lost"), Value::Null);
    assert_eq!(all[2].ask("panic"), true);
    assert!(loses(&mut all[0], 2));
    all[2].assert_clean();
}
