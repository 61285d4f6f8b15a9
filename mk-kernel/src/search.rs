//! Where NVRTC is looked for.
//!
//! | place | what |
//! |---|---|
//! | an option, else the variable `MK_NVRTC` | a file, or a folder that holds it, directly or as wheels and toolkits do; nothing else is looked at |
//! | where the loader looks | by its name |
//! | PyPI wheels | `nvidia/*/lib` in the `site-packages` and `dist-packages` of `VIRTUAL_ENV`, `CONDA_PREFIX`, `~/.local`, `/usr/local`, `/usr` |
//! | conda | `CONDA_PREFIX/lib` |
//! | CUDA toolkit | `lib64` in `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`, `/usr/local/cuda-*` |
//!
//! First `libnvrtc.so.13` in all of these, then `libnvrtc.so.12`.

use std::path::{Path, PathBuf};

/// The variable that names NVRTC's file or folder.
pub const NVRTC_VARIABLE: &str = "MK_NVRTC";

/// Names of the library, the preferred one first.
const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];

/// Looks up a variable of the environment.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

/// Files to try, one after the other, and places that were looked at, for people.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) looked: Vec<String>,
}

/// The files in a place that somebody named: the file itself, or a folder.
pub(crate) fn in_place(place: &Path) -> Candidates {
    let looked = vec![place.display().to_string()];
    if place.is_file() {
        return Candidates { files: vec![place.into()], looked };
    }
    let mut folders = vec![place.to_path_buf(), place.join("lib64"), place.join("lib")];
    folders.extend(inside_nvidia(&place.join("nvidia")));
    folders.extend(wheels(&place.join("lib")));
    Candidates { files: folders.iter().flat_map(|f| in_folder(f)).collect(), looked }
}

/// The files in all the usual places, below `root`, which is `/` but for tests.
pub(crate) fn usual(root: &Path, var: Variables<'_>) -> Candidates {
    let below = |path: &str| root.join(path);
    let var = |name: &str| var(name).filter(|v| v.is_absolute());
    let home = var("HOME").map(|home| home.join(".local"));
    let mut folders = Vec::new();
    let prefixes =
        [var("VIRTUAL_ENV"), var("CONDA_PREFIX"), home, Some(below("usr/local")), Some(below("usr"))];
    for prefix in prefixes.iter().flatten() {
        folders.extend(wheels(&prefix.join("lib")));
    }
    folders.extend(var("CONDA_PREFIX").map(|p| p.join("lib")));
    folders.extend(["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(var).map(|p| p.join("lib64")));
    folders.push(below("usr/local/cuda/lib64"));
    let toolkits = names(&below("usr/local")).into_iter().filter(|n| n.starts_with("cuda-"));
    folders.extend(toolkits.rev().map(|n| below("usr/local").join(n).join("lib64")));
    // The preferred version anywhere before the other one somewhere.
    let named = |name: &str| {
        let at = folders.iter().map(|f| f.join(name)).filter(|file| file.is_file());
        [PathBuf::from(name)].into_iter().chain(at).collect::<Vec<_>>()
    };
    let files = NAMES.into_iter().flat_map(named).collect();
    let looked = ["the loader's folders", "Python's site-packages", "conda", "CUDA_HOME", "/usr/local/cuda*"];
    Candidates { files, looked: looked.map(Into::into).into() }
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    NAMES.iter().map(|name| folder.join(name)).filter(|file| file.is_file()).collect()
}

/// `nvidia/*/lib` of every Python below `lib`.
fn wheels(lib: &Path) -> Vec<PathBuf> {
    let pythons = names(lib).into_iter().filter(|n| n.starts_with("python3"));
    let packages = pythons.flat_map(|p| ["site-packages", "dist-packages"].map(|d| lib.join(&p).join(d)));
    packages.flat_map(|p| inside_nvidia(&p.join("nvidia"))).collect()
}

fn inside_nvidia(nvidia: &Path) -> Vec<PathBuf> {
    names(nvidia).into_iter().rev().map(|n| nvidia.join(n).join("lib")).collect()
}

/// What is in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(root: &Path, path: &str) -> PathBuf {
        let file = root.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        file
    }

    #[test]
    fn a_named_place_is_a_file_a_folder_a_toolkit_a_wheel_folder_or_a_virtual_environment() {
        let root = tempfile::tempdir().unwrap();
        let cases = [
            ("plain/libnvrtc.so.13", "plain"),
            ("toolkit/lib64/libnvrtc.so.12", "toolkit"),
            ("target/nvidia/cu13/lib/libnvrtc.so.13", "target"),
            ("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "venv"),
        ];
        for (library, place) in cases {
            let library = file(root.path(), library);
            for place in [&library, &root.path().join(place)] {
                assert_eq!(in_place(place).files, std::slice::from_ref(&library));
            }
        }
        assert!(in_place(&root.path().join("nowhere")).files.is_empty());
    }

    #[test]
    fn the_loader_comes_first_then_wheels_then_toolkits_and_version_13_before_12() {
        let root = tempfile::tempdir().unwrap();
        let old = file(root.path(), "usr/local/cuda-12.4/lib64/libnvrtc.so.12");
        let new = file(root.path(), "usr/local/cuda-13.0/lib64/libnvrtc.so.13");
        let wheel = file(root.path(), "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        let venv = root.path().join("venv");
        let found = usual(root.path(), &|name| (name == "VIRTUAL_ENV").then(|| venv.clone()));
        let [loader_13, loader_12] = NAMES.map(PathBuf::from);
        assert_eq!(found.files, [loader_13, wheel, new, loader_12, old]);
    }
}
