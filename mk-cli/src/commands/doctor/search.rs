//! Where libraries are looked for; NVRTC is not one of them, since `mk_kernel` looks for it.
//!
//! First where the loader looks (`LD_LIBRARY_PATH`, `/etc/ld.so.conf`). Then where CUDA is often put without telling the
//! loader; what is found there only is a warning, since a program has to be told:
//!
//! | place | folders |
//! |---|---|
//! | PyPI wheels | `nvidia/*/lib` in the `site-packages` and `dist-packages` of `VIRTUAL_ENV`, `CONDA_PREFIX`, `~/.local`, `/usr/local`, `/usr` |
//! | conda | `CONDA_PREFIX/lib` |
//! | CUDA toolkit | `lib64` in `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`, `/usr/local/cuda-*` |
//! | WSL | `/usr/lib/wsl/lib` |

use super::library::{Library, Outcome};
use super::machine::Machine;
use super::probe;
use std::path::{Path, PathBuf};

/// A library, as it was found.
pub(super) struct Found {
    pub(super) outcome: Outcome,
    /// The folder that the loader has to be told of.
    pub(super) folder: Option<PathBuf>,
}

/// Looks for a library: the first one that loads, else the first one that is there, else nothing.
pub(super) fn find(library: Library, machine: &Machine) -> Found {
    let names = library.names().iter();
    let known = names.clone().map(|name| (PathBuf::from(name), None));
    let elsewhere = folders(machine).into_iter().flat_map(|folder| {
        let at = |name: &&str| (machine.at(&folder).join(name), Some(folder.clone()));
        names.clone().map(at).filter(|(path, _)| path.is_file()).collect::<Vec<_>>()
    });
    let mut best = Found { outcome: Outcome::Absent, folder: None };
    for (path, folder) in known.chain(elsewhere) {
        let outcome = probe::load(library, &path);
        let loaded = matches!(outcome, Outcome::Loaded { .. });
        if loaded || best.outcome == Outcome::Absent {
            best = Found { outcome, folder };
        }
        if loaded {
            break;
        }
    }
    best
}

/// Folders that the loader need not know, in the order in which they are searched.
fn folders(machine: &Machine) -> Vec<PathBuf> {
    let var = |name: &str| machine.var(name).filter(|v| v.starts_with('/')).map(PathBuf::from);
    let home = var("HOME").map(|home| home.join(".local"));
    let prefixes =
        [var("VIRTUAL_ENV"), var("CONDA_PREFIX"), home, Some("/usr/local".into()), Some("/usr".into())];
    let mut folders = Vec::new();
    for prefix in prefixes.iter().flatten() {
        folders.extend(wheels(machine, &prefix.join("lib")));
    }
    folders.extend(var("CONDA_PREFIX").map(|p| p.join("lib")));
    folders.extend([var("CUDA_HOME"), var("CUDA_PATH")].into_iter().flatten().map(|p| p.join("lib64")));
    folders.push("/usr/local/cuda/lib64".into());
    let versions = machine.names("/usr/local").into_iter().filter(|n| n.starts_with("cuda-"));
    folders.extend(versions.rev().map(|n| Path::new("/usr/local").join(n).join("lib64")));
    folders.push("/usr/lib/wsl/lib".into());
    folders
}

/// `nvidia/*/lib` of every Python below `lib`.
fn wheels(machine: &Machine, lib: &Path) -> Vec<PathBuf> {
    let pythons = machine.names(lib).into_iter().filter(|n| n.starts_with("python3"));
    let packages =
        pythons.flat_map(|p| ["site-packages", "dist-packages"].map(|d| lib.join(&p).join(d).join("nvidia")));
    let inside = |nvidia: PathBuf| {
        machine.names(&nvidia).into_iter().map(move |n| nvidia.join(n).join("lib")).collect::<Vec<_>>()
    };
    packages.flat_map(inside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_and_toolkits_are_searched_the_newest_toolkit_first() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| std::fs::create_dir_all(root.path().join(path)).unwrap();
        make("usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib");
        make("usr/local/cuda-12.4/lib64");
        make("usr/local/cuda-13.0/lib64");
        let folders = folders(&Machine::under(root.path()));
        let expected = [
            "/usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib",
            "/usr/local/cuda/lib64",
            "/usr/local/cuda-13.0/lib64",
            "/usr/local/cuda-12.4/lib64",
            "/usr/lib/wsl/lib",
        ];
        let existing: Vec<_> =
            folders.iter().filter(|f| expected.iter().any(|e| f.as_path() == Path::new(e))).collect();
        assert_eq!(existing, expected.map(Path::new).iter().collect::<Vec<_>>());
    }
}
