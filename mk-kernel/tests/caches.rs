//! The cache of compiled kernels: it saves time, and never makes anything fail.

#![allow(clippy::unwrap_used)]

mod common;

use common::{compiler, source};
use mk_kernel::{Cache, Compiler, Options, Source};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

fn kernel(n: u32) -> Source {
    source("own/kernel.cuh", &format!("extern \"C\" __global__ void mk_kernel(int* p) {{ *p = {n}; }}\n"))
}

fn cached(cache: &Cache, compiler: &Compiler, source: &Source) -> bool {
    let built = cache.build(compiler, source, &Options::default()).unwrap();
    assert_eq!(built.warning, None);
    let fresh = compiler.compile(source, &Options::default()).unwrap();
    assert!(built.cubin == fresh.cubin && built.report == fresh.report, "what is kept is what is compiled");
    built.cached
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_second_time_it_is_there_unless_anything_has_changed() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("new/folder"));
    assert!(!cached(&cache, &compiler, &kernel(1)));
    assert!(cached(&cache, &compiler, &kernel(1)));
    assert!(!cached(&cache, &compiler, &kernel(2)), "another text");
    let mut renamed = kernel(1);
    renamed.headers[0].name = "own/other.cuh".into();
    renamed.entry = "#include \"own/other.cuh\"\n".into();
    assert!(!cached(&cache, &compiler, &renamed), "another name");
    for options in [
        Options { trace: true, ..Options::default() },
        Options { arch: "sm_100a".parse().unwrap(), ..Options::default() },
    ] {
        let built = cache.build(&compiler, &kernel(1), &options).unwrap();
        assert!(!built.cached, "other options");
    }
    assert!(!cached(&Cache::none(), &compiler, &kernel(1)));
}

#[test]
fn an_entry_that_is_torn_or_changed_is_made_again() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    assert!(!cached(&cache, &compiler, &kernel(1)));
    let file = entries(folder.path()).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut broken: Vec<Vec<u8>> =
        [0, 1, 31, 32, 33, whole.len() / 2, whole.len() - 1].iter().map(|&n| whole[..n].to_vec()).collect();
    for at in [0, 40, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        broken.push(bytes);
    }
    // A whole entry, but that of another kernel.
    assert!(!cached(&cache, &compiler, &kernel(2)));
    let other = entries(folder.path()).into_iter().find(|f| *f != file).unwrap();
    broken.push(fs::read(other).unwrap());
    for bytes in broken {
        fs::write(&file, &bytes).unwrap();
        assert!(!cached(&cache, &compiler, &kernel(1)), "{} bytes", bytes.len());
        assert!(cached(&cache, &compiler, &kernel(1)), "mended");
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_a_warning() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let built = Cache::at(file.join("cache")).build(&compiler, &kernel(1), &Options::default()).unwrap();
    assert_eq!(built.cubin[..4], *b"\x7fELF");
    let warning = built.warning.unwrap();
    assert!(warning.contains("file/cache cannot be used: "), "{warning}");
}

#[test]
fn many_at_once_see_whole_entries_or_none() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let expected: Vec<Vec<u8>> =
        (0..3).map(|n| compiler.compile(&kernel(n), &Options::default()).unwrap().cubin).collect();
    thread::scope(|scope| {
        for t in 0..6 {
            let (compiler, expected, folder) = (&compiler, &expected, folder.path());
            scope.spawn(move || {
                for i in 0..4 {
                    let n = (t + i) % 3;
                    let built = Cache::at(folder).build(compiler, &kernel(n), &Options::default()).unwrap();
                    assert_eq!(built.warning, None);
                    assert!(built.cubin == expected[n as usize]);
                }
            });
        }
    });
    assert_eq!(entries(folder.path()).len(), 3, "no temporary file is left");
}

#[test]
fn beyond_its_bound_the_entries_used_longest_ago_go() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    for n in 0..3 {
        assert!(!cached(&cache, &compiler, &kernel(n)));
    }
    let all: u64 = entries(folder.path()).iter().map(|f| f.metadata().unwrap().len()).sum();
    assert!(cached(&cache, &compiler, &kernel(0)), "used again: younger than 1 and 2 now");
    // Room for three: of four, the oldest goes.
    let bounded = cache.limit_bytes(all + 16);
    assert!(!cached(&bounded, &compiler, &kernel(3)));
    assert_eq!(entries(folder.path()).len(), 3);
    assert!(cached(&bounded, &compiler, &kernel(0)));
    assert!(!cached(&bounded, &compiler, &kernel(1)), "the oldest");
    // An entry that is larger than the bound stays until the next one comes.
    let tiny = bounded.limit_bytes(1);
    assert!(!cached(&tiny, &compiler, &kernel(9)));
    assert_eq!(entries(folder.path()).len(), 1);
    assert!(cached(&tiny, &compiler, &kernel(9)));
}
