//! What can be read of a machine: files, folders, variables. Tests give it another root.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The files that the system makes are shorter.
const TEXT_BYTES: u64 = 1 << 20;

/// The machine, or a copy of it under another root.
pub(super) struct Machine {
    root: PathBuf,
    var: fn(&str) -> Option<String>,
}

impl Machine {
    /// This one.
    pub(super) fn here() -> Machine {
        let var = |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
        Machine { root: "/".into(), var }
    }

    /// What lies under `root`, without variables.
    #[cfg(test)]
    pub(super) fn under(root: &Path) -> Machine {
        Machine { root: root.into(), var: |_| None }
    }

    /// Where an absolute path lies.
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).exists()
    }

    /// A small text file of the system's, without the white space around it; nothing if it cannot be read.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = self.at(path);
        // A pipe or a device of that name would never end.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(TEXT_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// What a folder holds, sorted; nothing if there is none.
    pub(super) fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.at(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A variable of the environment.
    pub(super) fn var(&self, name: &str) -> Option<String> {
        (self.var)(name)
    }
}
