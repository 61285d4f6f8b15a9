//! What is refused, and how it is said: on the rank that it is about, and on the others.

use super::world::{BYTES, Process, Scene, connect, name};
use mk_core::Rank;
use mk_nvlink::Step;
use serde_json::Value;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;

/// A field of the error that a process answered.
fn says<'a>(answer: &'a Value, field: &str) -> &'a str {
    answer["error"][field].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// Each has failed, says what to do, and has left nothing.
fn all_failed(scene: &Scene, all: &mut [Process]) -> Vec<Value> {
    let answers = connect(all);
    for (p, answer) in all.iter_mut().zip(&answers) {
        assert!(!says(answer, "hint").is_empty(), "{}: {answer}", p.rank);
        p.assert_clean();
    }
    scene.assert_no_socket();
    answers
}

/// A world of three, of whose processes rank `odd`'s is different.
fn odd_one(odd: u16, change: impl Fn(&mut Scene)) -> Vec<Value> {
    let scene = Scene::of(3);
    let start = |r| {
        scene.start_as(&[r], |s| {
            if r == odd {
                change(s)
            }
        })
    };
    all_failed(&scene, &mut [0, 1, 2].map(start))
}

/// The driver of one rank fails; that rank says this, and all others say whose error it is.
fn driver_fails(driver: &str, kind: &str, words: &str) {
    for odd in [0, 1] {
        let answers = odd_one(odd, |s| s.driver = format!("devices=8; {driver}"));
        for (r, answer) in answers.iter().enumerate() {
            let message = says(answer, "message");
            let own = usize::from(odd) == r;
            assert_eq!(says(answer, "kind"), if own { kind } else { "peer" }, "{answer}");
            assert!(message.starts_with(&format!("rank {odd}: ")) && message.contains(words), "{message}");
        }
    }
}

#[test]
fn regress_vllm_42609() {
    // Asked, the driver says that all is well; the memory of another process it does not take.
    let call = "cuMemImportFromShareableHandle";
    driver_fails(&format!("fail={call}:101"), "import-refused", "CUDA_ERROR_INVALID_DEVICE");
}

#[test]
fn regress_tensorrt_llm_17034() {
    driver_fails("fail=cuMemExportToShareableHandle:800", "export-refused", "CUDA_ERROR_NOT_PERMITTED");
    driver_fails("posix=0", "export-refused", "cannot be given to other processes");
    // Taken, and then not mapped, or not reached.
    driver_fails("fail=cuMemMap:1@2", "import-refused", "cuMemMap returned 1");
    driver_fails("fail=cuMemSetAccess:101@2", "import-refused", "cuMemSetAccess returned 101");
}

#[test]
fn regress_pytorch_185216() {
    // One rank has an old driver: all learn which version it is, and which is needed.
    driver_fails("driver=12020", "missing", "the driver is for CUDA 12.2, and CUDA 13.0 is needed");
    driver_fails("fail=cuInit:803", "missing", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
}

#[test]
fn regress_nccl_tests_98() {
    // GPUs that nothing joins, in one process.
    let mut scene = Scene::of(2);
    scene.driver = "peers=0".into();
    let answers = all_failed(&scene, &mut [scene.start(&[0, 1])]);
    assert_eq!(says(&answers[0], "kind"), "peer-refused");
    assert!(says(&answers[0], "message").contains("GPU 1 (Fake H200) cannot reach the memory of GPU 0"));
}

#[test]
fn a_gpu_without_atomics_at_the_memory_of_a_peer_is_refused() {
    let words = "has no atomics at the memory of GPU";
    let mut scene = Scene::of(2);
    scene.driver = "atomics=0".into();
    let answers = all_failed(&scene, &mut [scene.start(&[0, 1])]);
    assert!(says(&answers[0], "message").contains(words), "{}", answers[0]);
    driver_fails("atomics=0", "missing", words);
}

#[test]
fn memory_that_one_rank_does_not_have_is_an_error_on_all() {
    driver_fails("memory=2097152", "out-of-memory", "out of memory");
    let answers = odd_one(1, |s| s.role.own[0].1 = 9);
    assert_eq!(says(&answers[1], "kind"), "input");
    answers.iter().for_each(|a| assert_eq!(says(a, "message"), "rank 1: there is no GPU 9"));
}

/// One rank comes for something else: all say the same.
fn mismatch(change: impl Fn(&mut Scene), message: &str) {
    for odd in [1, 2] {
        for answer in odd_one(odd, &change) {
            let want = format!("rank {odd} came with another {message}");
            assert!(says(&answer, "message").starts_with(&want), "{answer} is not {want}");
            assert!(!says(&answer, "given").is_empty() && !says(&answer, "allowed").is_empty());
        }
    }
}

#[test]
fn regress_nccl_2190() {
    // Ranks that would take different paths.
    let without = "PUT | GET | SIGNAL | ATOMIC_ADD | REDUCE | ORDERED";
    mismatch(
        |s| s.role.multicast = true,
        &format!("set of capabilities than rank 0: {without} | MULTICAST, not {without}"),
    );
}

#[test]
fn a_rank_that_comes_for_another_size_or_another_world_is_refused() {
    let bytes = |n: u64| format!("{n} bytes on each rank");
    let message = format!("size of memory than rank 0: {}, not {}", bytes(BYTES + 1), bytes(BYTES));
    mismatch(|s| s.role.bytes += 1, &message);
    let topology = mk_core::Topology::single_node(4).unwrap().to_toml();
    mismatch(|s| s.role.topology.clone_from(&topology), "topology than rank 0: 4 ranks (");
}

#[test]
fn a_rank_that_comes_twice_is_refused() {
    // The fourth never comes, so that the meeting is still open.
    let scene = Scene::hurried(4, 1500);
    let mut all = [scene.start(&[0]), scene.start(&[1]), scene.start(&[2]), scene.start(&[1, 2])];
    for answer in all_failed(&scene, &mut all) {
        let message = says(&answer, "message");
        assert!(message == "two processes came as rank 1" || message == "two processes came as rank 2");
    }
    // As the host: the second one does not get the seat. The first one has it.
    let scene = Scene::hurried(2, 1500);
    let mut first = scene.start(&[0]);
    first.tell("connect");
    while !scene.folder().join(socket(&scene)).exists() {
        std::thread::yield_now();
    }
    let mut second = scene.start(&[0]);
    let refused = second.meet();
    assert_eq!(says(&refused, "kind"), "taken");
    assert!(says(&refused, "message").ends_with("is in use: a process that lives waits there"), "{refused}");
    let mut guest = scene.start(&[1]);
    assert_eq!(guest.meet()["error"], Value::Null);
    assert_eq!(first.answer()["error"], Value::Null);
}

/// The name of rank 0's socket.
fn socket(scene: &Scene) -> String {
    let digest = blake3::hash(&[scene.role.key; 32]).to_hex();
    format!("{}-rank-0.sock", &digest[..16])
}

#[test]
fn a_rank_that_never_comes_is_named_by_all_others_at_the_bound() {
    let scene = Scene::hurried(4, 800);
    // The host, and one of its guests.
    for (missing, there) in [("rank 0", [1, 2, 3]), ("rank 2", [3, 0, 1])] {
        let mut all = there.map(|r| scene.start(&[r]));
        for answer in all_failed(&scene, &mut all) {
            assert_eq!(says(&answer, "message"), format!("{missing} did not come within 800ms"));
            assert_eq!(says(&answer, "kind"), "peer");
            let ms = answer["ms"].as_u64().unwrap();
            assert!((600..2400).contains(&ms), "{ms} ms");
        }
    }
    // Nobody waits longer than the most impatient one.
    let mut all = [scene.start_as(&[0], |s| s.role.bound_ms = 60_000), scene.start(&[1]), scene.start(&[2])];
    for answer in all_failed(&scene, &mut all) {
        assert!(says(&answer, "message").starts_with("rank 3 did not come within"), "{answer}");
        assert!(answer["ms"].as_u64().unwrap() < 4000, "{answer}");
    }
}

#[test]
fn a_rank_that_comes_and_does_nothing_is_named() {
    // By the host, and for it by its guests; only what others wait for is seen.
    let cases = [
        (0, Step::Greet, "rank 0 had 900ms to pass the others' memory on, and did not"),
        (0, Step::Take, "rank 0 had 900ms to pass the others' memory on, and did not"),
        (0, Step::Map, "rank 0 had 900ms to tell how it went, and did not"),
        (1, Step::Make, "rank 1 had 900ms to give its memory, and did not"),
        (1, Step::Map, "rank 1 had 900ms to report, and did not"),
    ];
    for (sleeper, step, message) in cases {
        let scene = Scene::hurried(3, 900);
        let start = |r| scene.start_as(&[r], |s| s.role.sleeps_at = (r == sleeper).then(|| name(step)));
        let mut all = [0, 1, 2].map(start);
        all.iter_mut().for_each(|p| p.tell("connect"));
        for p in all.iter_mut().filter(|p| p.rank != Rank(sleeper)) {
            let answer = p.answer();
            assert_eq!(says(&answer, "message"), message, "{}", p.rank);
            assert!(answer["ms"].as_u64().unwrap() < 4000, "{answer}");
            p.assert_clean();
        }
        all.iter_mut().filter(|p| p.rank == Rank(sleeper)).for_each(Process::kill);
    }
}

#[test]
fn a_folder_that_others_can_write_is_refused_before_anything_is_made() {
    let scene = Scene::hurried(2, 400);
    std::fs::create_dir(scene.folder()).unwrap();
    set_permissions(scene.folder(), Permissions::from_mode(0o777)).unwrap();
    let mut all = [scene.start(&[0]), scene.start(&[1])];
    for answer in all_failed(&scene, &mut all) {
        assert_eq!(says(&answer, "kind"), "file");
        assert!(says(&answer, "message").ends_with("others can write it (mode 0777)"), "{answer}");
        assert_eq!(says(&answer, "allowed"), "a folder of this user's, which nobody else can write");
    }
    assert!(all.iter().all(|p| p.reached(Step::Folder) && !p.reached(Step::Arrive)));
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let scene = Scene::of(2);
    let refused = |own: &[u16], change: fn(&mut Scene)| {
        let mut p = scene.start_as(own, change);
        let answer = p.meet();
        p.assert_clean();
        assert_eq!(says(&answer, "kind"), "input");
        format!("{}: {}, not {}", says(&answer, "message"), says(&answer, "given"), says(&answer, "allowed"))
    };
    let no_folder = refused(&[0], |s| s.role.folder = None);
    let want = "there is no folder in which processes could meet: no folder, and rank 1 of other processes";
    assert!(no_folder.starts_with(want), "{no_folder}");
    assert_eq!(refused(&[2], |_| {}), "there is no such rank: rank 2, not ranks 0..2");
    assert_eq!(refused(&[1, 1], |_| {}), "a process has a rank twice: rank 1, not each rank once");
}

#[test]
fn a_process_that_may_open_too_few_files_says_so() {
    for rank in [0, 1] {
        let scene = Scene::of(2);
        let step = if rank == 0 { Step::Give } else { Step::Take };
        let few = |s: &mut Scene| s.role.few_files_at = Some(name(step));
        let start = |r| {
            scene.start_as(&[r], |s| {
                if r == rank {
                    few(s)
                }
            })
        };
        let answers = all_failed(&scene, &mut [0, 1].map(start));
        for (r, answer) in answers.iter().enumerate() {
            let (own, message) = (r == usize::from(rank), says(answer, "message"));
            assert_eq!(says(answer, "kind"), if own { "system" } else { "peer" }, "{answer}");
            assert_eq!(message.starts_with(&format!("rank {rank}: ")), !own, "{message}");
            assert!(message.contains("Too many open files"), "{message}");
            assert!(says(answer, "hint").contains("ulimit -n"));
        }
    }
}
