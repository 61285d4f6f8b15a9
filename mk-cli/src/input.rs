//! Files that are read.
//!
//! They are read, not mapped into memory: a mapping needs `unsafe`, and ends the process (SIGBUS) when somebody shortens
//! the file.

use crate::error::Failure;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// A regular file and its length in bytes, which is at most `limit`.
pub(crate) fn open(path: &Path, limit: u64) -> Result<(File, u64), Failure> {
    let unreadable = |e| unreadable(path, &e);
    // Before it is opened: opening a pipe would wait for a writer.
    let meta = fs::metadata(path).map_err(unreadable)?;
    if meta.is_dir() {
        return Err(Failure::file(path, "is a folder", "give a file"));
    }
    if !meta.is_file() {
        return Err(Failure::file(path, "is not a regular file", "copy the data into a file first"));
    }
    let file = File::open(path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    if bytes > limit {
        let message = format!("has {bytes} bytes, more than the {limit} that are read");
        return Err(Failure::file(path, message, "give the file that belongs here"));
    }
    Ok((file, bytes))
}

/// All bytes of a regular file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let (file, length) = open(path, limit)?;
    crate::memory::check(&path.display().to_string(), length.into(), "use a smaller file")?;
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(limit).read_to_end(&mut bytes).map_err(|e| unreadable(path, &e))?;
    Ok(bytes)
}

/// A file that must hold something, but is empty.
pub(crate) fn empty(path: &Path) -> Failure {
    Failure::file(path, "is empty", "write it again")
}

fn unreadable(path: &Path, e: &io::Error) -> Failure {
    let hint = match e.kind() {
        io::ErrorKind::NotFound if path.symlink_metadata().is_ok() => {
            "it is a link to a file that is not there"
        }
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "check the rights of the file and its folder",
        _ => "check that it is a file that can be read",
    };
    Failure::file(path, format!("cannot be read: {e}"), hint)
}
