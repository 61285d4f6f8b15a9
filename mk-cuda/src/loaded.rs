//! Libraries that this process has loaded.

use std::path::{Path, PathBuf};

/// The file that the loader took for a name, where the system tells what is mapped into this process.
pub fn loaded_file(name: &Path) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let name = name.to_str()?;
    let ours = |path: &&Path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(name));
    maps.lines().filter_map(|l| l.find('/').map(|at| Path::new(&l[at..]))).find(ours).map(Into::into)
}
