//! The host's socket, and its file.

use super::line::{self, Line};
use super::place::Place;
use crate::deadline::Deadline;
use crate::error::Error;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Guests that may wait to be let in.
const BACKLOG: i32 = 128;

/// Between two tries to lock the folder, which is locked for a moment only.
const PAUSE: Duration = Duration::from_millis(1);

/// A listening socket. Its file goes with it.
#[derive(Debug)]
pub(crate) struct Seat {
    socket: OwnedFd,
    file: PathBuf,
}

impl Seat {
    /// Sits down. A socket of a process that has ended is put away; one of a process that lives is not.
    pub(crate) fn take(place: &Place, deadline: &Deadline) -> Result<Seat, Error> {
        let system = |e| Error::system(format!("a socket at {}", place.socket.display()), e);
        // Two processes that put the same old socket away would put each other's new one away, too.
        let _lock = lock(&place.folder, deadline)?;
        let socket = line::socket().map_err(system)?;
        if let Err(e) = rustix::net::bind(&socket, &place.address) {
            if e != Errno::ADDRINUSE {
                return Err(system(e));
            }
            put_away(place)?;
            rustix::net::bind(&socket, &place.address).map_err(system)?;
        }
        let seat = Seat { socket, file: place.socket.clone() };
        rustix::net::listen(&seat.socket, BACKLOG).map_err(system)?;
        Ok(seat)
    }

    /// The next guest, if one waits.
    pub(crate) fn next(&self) -> Result<Option<Line>, Error> {
        Line::accept(&self.socket).map_err(|e| Error::system("to let a process in", e))
    }
}

impl AsFd for Seat {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // If it is gone already, so much the better.
        let _ = std::fs::remove_file(&self.file);
    }
}

/// The folder, locked until this is dropped.
fn lock(folder: &Path, deadline: &Deadline) -> Result<File, Error> {
    let system = |e: std::io::Error| Error::system(format!("to lock {}", folder.display()), e);
    let file = File::open(folder).map_err(system)?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::AGAIN | Errno::INTR) if !deadline.left().is_zero() => sleep(PAUSE),
            Err(e) => return Err(system(e.into())),
        }
    }
}

/// Removes a socket at which nobody listens any more.
fn put_away(place: &Place) -> Result<(), Error> {
    let path = place.socket.display().to_string();
    let system = |e: std::io::Error| Error::system(format!("to put away {path}"), e);
    let facts = match std::fs::symlink_metadata(&place.socket) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        facts => facts.map_err(system)?,
    };
    if !facts.file_type().is_socket() {
        return Err(Error::Taken { path, found: "it is no socket" });
    }
    let probe = line::socket().map_err(|e| system(e.into()))?;
    match rustix::net::connect(&probe, &place.address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(&place.socket).map_err(system),
        Err(Errno::NOENT) => Ok(()),
        // It is full, or somebody answered.
        Ok(()) | Err(Errno::AGAIN) => Err(Error::Taken { path, found: "a process that lives waits there" }),
        Err(e) => Err(system(e.into())),
    }
}
