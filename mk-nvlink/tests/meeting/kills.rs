//! A process is killed at each step of a meeting: the others say who, in time, and leave nothing.

use super::world::{Process, Scene, name};
use mk_core::Rank;
use mk_nvlink::Step;
use serde_json::Value;

/// How long a meeting may take.
const BOUND_MS: u64 = 2000;

/// What becomes of a survivor.
fn survives(p: &mut Process, killed: u16, step: Step) {
    let answer = p.answer();
    if answer["error"] == Value::Null {
        // It had reported before it was killed, so the meeting is over. That it is gone is seen afterwards.
        assert!(step >= Step::Verdict, "{step:?}");
        assert_eq!(p.ask("lost"), killed);
        p.ask("drop");
    } else {
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("rank {killed}")), "{step:?}, {}: {message}", p.rank);
        // Once all have said who they are, it is seen at once; before that, at the bound.
        let ms = answer["ms"].as_u64().unwrap();
        assert!(
            ms < if step < Step::Make { 2 * BOUND_MS } else { BOUND_MS / 2 },
            "{step:?}, {}: {ms} ms",
            p.rank
        );
    }
    p.assert_clean();
}

/// Rank `killed` of three is killed at this step. Then the world begins anew, in the same folder.
fn killed_at(killed: u16, step: Step) {
    let scene = Scene::hurried(3, BOUND_MS);
    let start = |r| scene.start_as(&[r], |s| s.role.killed_at = (r == killed).then(|| name(step)));
    let mut all = [0, 1, 2].map(start);
    all.iter_mut().for_each(|p| p.tell("connect"));
    let (mut dead, mut alive): (Vec<_>, Vec<_>) = all.into_iter().partition(|p| p.rank == Rank(killed));
    assert_eq!(dead[0].answer(), Value::Null);
    assert!(dead[0].was_killed() && dead[0].reached(step), "{step:?} was not reached: {:?}", dead[0].steps);
    alive.iter_mut().for_each(|p| survives(p, killed, step));

    let mut again = scene.start(&[killed]);
    again.tell("connect");
    alive.iter_mut().for_each(|p| p.tell("connect"));
    for p in alive.iter_mut().chain([&mut again]) {
        assert_eq!(p.answer()["error"], Value::Null, "{step:?}, {}", p.rank);
    }
    scene.assert_no_socket();
}

fn host_is_killed(at: &[Step]) {
    at.iter().for_each(|step| killed_at(0, *step));
}

fn guest_is_killed(at: &[Step]) {
    at.iter().for_each(|step| killed_at(1, *step));
}

#[test]
fn regress_deepep_370_a_host_is_killed_at_each_step_until_it_gives() {
    host_is_killed(&Step::ALL[..5]);
}

#[test]
fn regress_deepep_370_a_host_is_killed_at_each_later_step() {
    host_is_killed(&Step::ALL[5..]);
}

#[test]
fn regress_nixl_1972_a_guest_is_killed_at_each_step_until_it_gives() {
    guest_is_killed(&Step::ALL[..5]);
}

#[test]
fn regress_nixl_1972_a_guest_is_killed_at_each_later_step() {
    guest_is_killed(&Step::ALL[5..]);
}
