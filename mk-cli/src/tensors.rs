//! Matrices in files: one reader and one writer for all formats.

mod npy;
mod safetensors;

use crate::args::TensorPath;
use crate::error::Failure;
use mk_core::{DType, Tensor};
use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::path::Path;

pub(crate) use npy::parse as parse_npy;
pub(crate) use safetensors::parse as parse_safetensors;

/// The largest tensor file.
const FILE_BYTES: u64 = 1 << 40;

/// A matrix as a file holds it. Its type is one that a product takes, or f32, which is to be rounded.
#[derive(Debug, PartialEq)]
pub(crate) struct Loaded {
    pub(crate) tensor: Tensor,
}

impl Loaded {
    /// The type that the file asks for; `None` where it leaves the choice.
    pub(crate) fn dtype(&self) -> Option<DType> {
        (self.tensor.dtype != DType::F32).then_some(self.tensor.dtype)
    }

    /// The matrix in `dtype`; f32 is rounded to nearest even.
    pub(crate) fn into_dtype(self, dtype: DType) -> Tensor {
        let t = self.tensor;
        if t.dtype == dtype { t } else { Tensor::from_f32(dtype, t.rows, t.cols, &t.to_f32()) }
    }
}

/// The formats, by the ending of a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Safetensors,
    Npy,
}

impl Format {
    fn of(path: &Path) -> Result<Format, Failure> {
        let ending = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        match ending.as_str() {
            "safetensors" => Ok(Format::Safetensors),
            "npy" => Ok(Format::Npy),
            _ => Err(Failure::file(
                path,
                "its name does not say which format it is",
                "name it .safetensors or .npy; a tensor's name follows the ending: FILE.safetensors:NAME",
            )),
        }
    }
}

/// Reads the matrix that an option names; `expected` is its name where the file has several.
pub(crate) fn read(path: &TensorPath, expected: &str) -> Result<Loaded, Failure> {
    let file = &path.file;
    let format = Format::of(file)?;
    let bytes = read_file(file, FILE_BYTES)?;
    let tensor = match format {
        Format::Safetensors => parse_safetensors(&bytes, path.name.as_deref(), expected),
        Format::Npy if path.name.is_some() => Err(Problem::new(
            "a .npy file holds one tensor without a name",
            "leave out the name after the colon",
        )),
        Format::Npy => parse_npy(&bytes),
    };
    let tensor = tensor.map_err(|p| Failure::file(file, p.message, p.hint))?;
    Ok(Loaded { tensor })
}

/// What is wrong with a file's bytes.
#[derive(Debug)]
pub(crate) struct Problem {
    message: String,
    hint: String,
}

impl Problem {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem { message: message.into(), hint: hint.into() }
    }
}

/// All bytes of a regular file of at most `limit` bytes.
pub(crate) fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let unreadable = |e: io::Error| {
        let hint = match e.kind() {
            io::ErrorKind::NotFound if path.symlink_metadata().is_ok() => {
                "it is a link to a file that is not there"
            }
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check the rights of the file and its folder",
            _ => "check that it is a file that can be read",
        };
        Failure::file(path, format!("it cannot be read: {e}"), hint)
    };
    // Before it is opened: opening a pipe would wait for a writer.
    let meta = fs::metadata(path).map_err(unreadable)?;
    if meta.is_dir() {
        return Err(Failure::file(path, "this is a folder", "give a file"));
    }
    if !meta.is_file() {
        return Err(Failure::file(path, "this is not a regular file", "copy the data into a file first"));
    }
    if meta.len() == 0 {
        return Err(Failure::file(path, "the file is empty", "write it again"));
    }
    if meta.len() > limit {
        let message = format!("the file has {} bytes, more than the {limit} that are read", meta.len());
        return Err(Failure::file(path, message, "give the file that belongs here"));
    }
    crate::memory::check(&path.display().to_string(), meta.len().into(), "use a smaller file")?;
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    File::open(path).and_then(|f| f.take(limit).read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(bytes)
}

/// Refuses, before any work is done, a result file that could not be written.
pub(crate) fn check_out(path: &Path) -> Result<(), Failure> {
    Format::of(path)?;
    check_target(path)
}

/// Refuses a target that is a folder, or in a folder that is not there.
pub(crate) fn check_target(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::file(path, "this is a folder", "name a file in it"));
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(Failure::file(
            path,
            format!("there is no folder {}", folder.display()),
            "create it first",
        ));
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes `tensor` under the name `c`. A half-written file is never seen.
pub(crate) fn write(path: &Path, tensor: &Tensor) -> Result<(), Failure> {
    let format = Format::of(path)?;
    write_file(path, |to| match format {
        Format::Safetensors => safetensors::write(tensor, to),
        Format::Npy => npy::write(tensor, to),
    })
}

/// Writes a file under a temporary name in its folder, and gives it its name when it is whole.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let unwritable = |e: io::Error| {
        Failure::file(
            path,
            format!("it cannot be written: {e}"),
            "check the space and the rights of the folder",
        )
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".mk-").suffix(".tmp");
    // Temporary files are private by default; a result is an ordinary file, as the umask wants it.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder_of(path)).map_err(unwritable)?;
    {
        let mut buffered = io::BufWriter::with_capacity(1 << 20, &mut file);
        write(&mut buffered).and_then(|()| buffered.flush()).map_err(unwritable)?;
    }
    file.persist(path).map(drop).map_err(|e| unwritable(e.error))
}
