//! Every reader of this crate, on random bytes, on mutations of valid files and on the committed corpus.

#![allow(clippy::unwrap_used)]

use mk_core::fuzz;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 5] = [
    ("program_file", fuzz::program_file),
    ("topology_toml", fuzz::topology_toml),
    ("hardware_toml", fuzz::hardware_toml),
    ("launcher", fuzz::launcher),
    ("device_args", fuzz::device_args),
];

fn corpus(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_corpus_is_read() {
    for (name, target) in TARGETS {
        let files = corpus(name);
        assert!(files.len() >= 2, "the corpus of {name} has {} files", files.len());
        files.iter().for_each(|f| target(&std::fs::read(f).unwrap()));
    }
}

#[test]
fn each_corpus_holds_a_file_that_is_accepted() {
    let text = |target: &str| std::fs::read_to_string(&corpus(target)[0]).unwrap();
    assert!(mk_core::Program::read(text("program_file").as_bytes(), &fuzz::registry(1)).is_ok());
    assert!(mk_core::Topology::from_toml(&text("topology_toml")).is_ok());
    assert!(mk_core::Hardware::from_toml(&text("hardware_toml")).is_ok());
    let vars = text("launcher");
    let get = |n: &str| vars.lines().find_map(|l| l.strip_prefix(n)?.strip_prefix('=').map(String::from));
    assert!(mk_core::World::from_vars(get).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        TARGETS.iter().for_each(|(_, target)| target(&bytes));
    }

    #[test]
    fn a_valid_file_with_changes(
        which: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..6),
    ) {
        for (name, target) in TARGETS {
            let files = corpus(name);
            let mut bytes = std::fs::read(which.get(&files)).unwrap();
            for (at, byte, how) in &changes {
                mutate(&mut bytes, at, *byte, *how);
            }
            target(&bytes);
            // A program without its header: `fuzz::program_file` gives it one that fits.
            if let Some(end) = bytes.iter().position(|&b| b == b'\n') {
                target(&bytes[end + 1..]);
            }
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, at: &prop::sample::Index, byte: u8, how: u8) {
    if bytes.is_empty() {
        return bytes.push(byte);
    }
    let at = at.index(bytes.len());
    match how {
        0 => bytes[at] = byte,
        1 => bytes.insert(at, byte),
        2 => bytes.truncate(at),
        // A digit more: numbers that are suddenly large.
        _ => bytes.insert(at, b'9'),
    }
}
