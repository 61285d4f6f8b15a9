//! Where processes meet: a socket in a folder that is nobody else's.

use crate::error::Error;
use mk_core::Rank;
use rustix::net::SocketAddrUnix;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Bits of a file's mode by which others than its owner can write it.
const OTHERS_WRITE: u32 = 0o022;

/// What a folder has to be.
const NEEDED: &str = "a folder of this user's, which nobody else can write";

/// Hexadecimal digits of a socket's name that tell one key from another: paths of sockets are short.
const DIGITS: usize = 16;

/// The socket of one meeting.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) address: SocketAddrUnix,
}

impl Place {
    /// Where those meet who have this key, at this rank's process. Makes the folder if it is not there.
    pub(crate) fn at(folder: &Path, key: &[u8; 32], host: Rank) -> Result<Place, Error> {
        make(folder)?;
        check(folder)?;
        let digest = blake3::hash(key).to_hex();
        let socket = folder.join(format!("{}-rank-{}.sock", &digest[..DIGITS], host.0));
        let address = SocketAddrUnix::new(&socket).map_err(|_| Error::Folder {
            path: socket.display().to_string(),
            found: "this is too long for the name of a socket".into(),
            needed: "paths of at most 107 bytes",
        })?;
        Ok(Place { folder: folder.into(), socket, address })
    }
}

fn refused(folder: &Path, found: impl Into<String>) -> Error {
    Error::Folder { path: folder.display().to_string(), found: found.into(), needed: NEEDED }
}

fn make(folder: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(refused(folder, e.to_string())),
        _ => Ok(()),
    }
}

/// Whoever can write the folder could sit down at the socket, and would be given this process's memory.
fn check(folder: &Path) -> Result<(), Error> {
    // Not what a link points to: it could point elsewhere a moment later.
    let facts = std::fs::symlink_metadata(folder).map_err(|e| refused(folder, e.to_string()))?;
    if !facts.is_dir() {
        return Err(refused(folder, "it is no folder"));
    }
    let (owner, own) = (facts.uid(), rustix::process::geteuid().as_raw());
    if owner != own {
        return Err(refused(folder, format!("it belongs to user {owner}, and this process to user {own}")));
    }
    let mode = facts.mode() & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        return Err(refused(folder, format!("others can write it (mode {mode:04o})")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn at(folder: &Path) -> Result<Place, String> {
        Place::at(folder, &[7; 32], Rank(3)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_folder_is_made_for_this_user_alone() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("meet");
        let place = at(&folder).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o7777, 0o700);
        let name = place.socket.file_name().unwrap().to_str().unwrap();
        assert!(name.ends_with("-rank-3.sock") && name.len() == DIGITS + 12, "{name}");
        // Others may look.
        set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        assert!(at(&folder).is_ok());
        let other = Place::at(&folder, &[8; 32], Rank(3)).unwrap();
        assert_ne!(other.socket, place.socket);
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused_and_so_is_what_is_no_folder() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("meet");
        for mode in [0o720, 0o702, 0o1777] {
            std::fs::create_dir(&folder).unwrap();
            set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            let e = at(&folder).err().unwrap();
            assert!(e.contains(&format!("others can write it (mode {mode:04o})")), "{e}");
            std::fs::remove_dir(&folder).unwrap();
        }
        std::fs::write(&folder, "").unwrap();
        assert!(at(&folder).err().unwrap().contains("it is no folder"));
        symlink(root.path(), root.path().join("link")).unwrap();
        assert!(at(&root.path().join("link")).err().unwrap().contains("it is no folder"));
        let e = at(&root.path().join("a/b")).err().unwrap();
        assert!(e.contains("No such file"), "{e}");
        let e = at(&root.path().join("x".repeat(100))).err().unwrap();
        assert!(e.contains("too long"), "{e}");
    }

    #[test]
    fn a_folder_of_somebody_else_is_refused() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can give a folder away");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(root.path(), Some(1), None).unwrap();
        let e = at(root.path()).err().unwrap();
        assert!(e.contains("it belongs to user 1, and this process to user 0"), "{e}");
    }
}
