//! Files that are written: where a result may go, and how it gets there whole or not at all.

use crate::error::Failure;
use mk_core::Error;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Links that are followed, as many as Linux follows.
const LINKS: usize = 40;

/// An option and the file that it names.
pub(crate) type Named<'a> = (&'static str, Option<&'a Path>);

/// Refuses, before any work is done, targets that cannot be written, or that are an input or another target.
pub(crate) fn check_all(targets: &[Named<'_>], inputs: &[Named<'_>]) -> Result<(), Failure> {
    let given = |&(option, path): &Named<'_>| path.map(|p| (option, p.to_path_buf()));
    let mut taken: Vec<(&str, PathBuf)> =
        inputs.iter().filter_map(given).filter_map(|(o, p)| Some((o, p.canonicalize().ok()?))).collect();
    for &(option, path) in targets {
        let Some(path) = path else { continue };
        let target = check(path)?;
        if let Some((other, _)) = taken.iter().find(|(_, p)| *p == target) {
            return Err(Error::input(
                format!("{option} and {other} are the same file"),
                path.display(),
                "a file of its own for each result",
                format!("give {option} another name"),
            )
            .into());
        }
        taken.push((option, target));
    }
    Ok(())
}

/// The file that is written for `path`: where its links lead. Refuses what is there and is no regular file (renaming a
/// file to its name would destroy a device or a pipe), and what is in a folder that is not there.
pub(crate) fn check(path: &Path) -> Result<PathBuf, Failure> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            return Err(Failure::file(path, "is a folder", "name a file in it"));
        }
        Ok(meta) if !meta.is_file() => {
            let message = "is not a regular file, but a device, a pipe or a socket";
            return Err(Failure::file(path, message, "name a file, and copy it there"));
        }
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(unwritable(path, &e)),
    }
    let end = follow(path)
        .ok_or_else(|| Failure::file(path, "leads through too many links", "name the file itself"))?;
    let folder = folder_of(&end);
    match (folder.canonicalize(), end.file_name()) {
        (Ok(folder), Some(name)) if folder.is_dir() => Ok(folder.join(name)),
        _ => Err(Failure::file(
            path,
            format!("cannot be written: there is no folder {}", folder.display()),
            "create it first",
        )),
    }
}

/// What a path's last link points at, be it there or not. `None`: links that never end.
fn follow(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(to) = path.read_link() else { return Some(path) };
        path = folder_of(&path).join(to);
    }
    None
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn unwritable(path: &Path, e: &io::Error) -> Failure {
    let hint = "check the space and the rights of the folder";
    Failure::file(path, format!("cannot be written: {e}"), hint)
}

/// Writes a file under a temporary name in its folder, and gives it its name when it is whole.
pub(crate) fn write(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let unwritable = |e: io::Error| unwritable(path, &e);
    let target = check(path)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".mk-").suffix(".tmp");
    // Temporary files are private by default; a result is an ordinary file, as the umask wants it.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder_of(&target)).map_err(unwritable)?;
    {
        let mut buffered = io::BufWriter::with_capacity(1 << 20, &mut file);
        write(&mut buffered).and_then(|()| buffered.flush()).map_err(unwritable)?;
    }
    // Writing took a while: somebody may have put something else there.
    let target = check(&target)?;
    file.persist(target).map(drop).map_err(|e| unwritable(e.error))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt as _, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_regular_file_is_replaced() {
        let d = tempfile::tempdir().unwrap();
        let (socket, link) = (d.path().join("socket"), d.path().join("link"));
        let _listener = UnixListener::bind(&socket).unwrap();
        symlink(&socket, &link).unwrap();
        for path in [&socket, &link] {
            let says = check(path).unwrap_err().says;
            assert!(says.message.contains("not a regular file"), "{says:?}");
        }
        assert!(check(d.path()).unwrap_err().says.message.contains("folder"));
    }

    #[test]
    fn what_appears_while_a_file_is_written_is_not_destroyed() {
        let d = tempfile::tempdir().unwrap();
        let path = d.path().join("late");
        let mut listener = None;
        let result = write(&path, |to| {
            listener = Some(UnixListener::bind(&path)?);
            to.write_all(b"x")
        });
        assert!(result.unwrap_err().says.message.contains("not a regular file"));
        assert!(path.symlink_metadata().unwrap().file_type().is_socket());
        assert_eq!(fs::read_dir(d.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn links_lead_to_the_file_that_is_written_and_may_not_run_in_a_circle() {
        let d = tempfile::tempdir().unwrap();
        let at = |name: &str| d.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        symlink("folder/new", at("one")).unwrap();
        symlink(at("one"), at("two")).unwrap();
        symlink("circle", at("circle")).unwrap();
        assert_eq!(check(&at("two")).unwrap(), at("folder").canonicalize().unwrap().join("new"));
        assert!(check(&at("circle")).is_err());
    }
}
