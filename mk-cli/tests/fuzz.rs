//! Every reader of this crate, on random bytes, on mutations of valid files and on the committed corpus.

#![allow(clippy::unwrap_used)]

mod common;

use mk_cli::fuzz;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 4] = [
    ("npy", fuzz::npy),
    ("safetensors", fuzz::safetensors),
    ("faults_toml", fuzz::faults_toml),
    ("trace", fuzz::trace),
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        TARGETS.iter().for_each(|(_, target)| target(&bytes));
        fuzz::device_args(&bytes);
        fuzz::program_file(&bytes);
    }

    #[test]
    fn a_valid_file_with_changes(
        which: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..5),
    ) {
        for (name, target) in TARGETS {
            let files = corpus(name);
            let mut bytes = std::fs::read(which.get(&files)).unwrap();
            for (at, byte, how) in &changes {
                mutate(&mut bytes, at, *byte, *how);
            }
            target(&bytes);
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
