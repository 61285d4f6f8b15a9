//! Matrices in files: one reader and one writer for all formats.
//!
//! A reader looks at a file's header and says where in the file the matrix is; only those bytes are read then.

mod npy;
mod safetensors;

use crate::args::TensorPath;
use crate::error::Failure;
use crate::{check, input, memory, target};
use mk_core::{DType, Error, Tensor};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

pub(crate) use npy::find as find_npy;
pub(crate) use safetensors::find as find_safetensors;

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

    /// Rounds the matrix, which is called `name`, to `dtype`: to nearest even, and no number to an infinity.
    pub(crate) fn round(&mut self, name: &str, dtype: DType) -> Result<(), Failure> {
        let t = &self.tensor;
        let values = t.to_f32();
        let limit = check::format_of(dtype).map_or(f64::INFINITY, |format| format.overflow());
        let magnitudes = || values.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x.abs()));
        let lost = magnitudes().filter(|&x| x >= limit).count();
        if lost == 0 {
            self.tensor = Tensor::from_f32(dtype, t.rows, t.cols, &values);
            return Ok(());
        }
        let largest = magnitudes().fold(0.0, f64::max);
        let wider = if dtype == DType::F16 { "use --dtype bf16, or " } else { "" };
        Err(Error::input(
            format!("{name} does not fit into {dtype}: {lost} of {} elements become infinite", values.len()),
            format!("magnitudes up to {largest:e}"),
            format!("magnitudes below {limit:e}"),
            format!("{wider}scale {name}"),
        )
        .into())
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
                "has a name that does not say which format it is",
                "name it .safetensors or .npy; a tensor's name follows the ending: FILE.safetensors:NAME",
            )),
        }
    }
}

/// Where a file holds a matrix, row by row.
#[derive(Debug, PartialEq)]
pub(crate) struct Place {
    dtype: DType,
    rows: u64,
    cols: u64,
    /// Bytes before it.
    start: u64,
    /// Whether the most significant byte of an element comes first.
    big_endian: bool,
}

impl Place {
    fn bytes(&self) -> u128 {
        (u128::from(self.rows) * u128::from(self.cols)).saturating_mul(self.dtype.bytes().into())
    }

    /// Reads the matrix. Its bytes must have been found to be in the file, and to fit into memory.
    pub(crate) fn read(&self, from: &mut (impl Read + Seek)) -> io::Result<Tensor> {
        let Place { dtype, rows, cols, start, big_endian } = *self;
        let mut bytes = vec![0; self.bytes() as usize];
        from.seek(SeekFrom::Start(start))?;
        from.read_exact(&mut bytes)?;
        if big_endian {
            bytes.chunks_exact_mut(dtype.bytes() as usize).for_each(<[u8]>::reverse);
        }
        Ok(Tensor { dtype, rows, cols, bytes })
    }
}

/// Reads the matrix that `--expected` names; `expected` is its name where the file has several.
pub(crate) fn read(path: &TensorPath, expected: &str) -> Result<Loaded, Failure> {
    read_file(path, expected).map_err(|e| e.of_option(&format!("--{expected}")))
}

fn read_file(path: &TensorPath, expected: &str) -> Result<Loaded, Failure> {
    let file = &path.file;
    let format = Format::of(file)?;
    let (mut from, length) = input::open(file, FILE_BYTES)?;
    if length == 0 {
        return Err(input::empty(file));
    }
    let place = match format {
        Format::Safetensors => find_safetensors(&mut from, length, path.name.as_deref(), expected),
        Format::Npy if path.name.is_some() => Err(Problem::new(
            "is a .npy file, which holds one tensor without a name",
            "leave out the name after the colon",
        )),
        Format::Npy => find_npy(&mut from, length),
    };
    let wrong = |p: Problem| Failure::file(file, p.message, p.hint);
    let place = place.map_err(wrong)?;
    memory::check(&file.display().to_string(), place.bytes(), "use a smaller matrix")?;
    let tensor = place.read(&mut from).map_err(|e| wrong(e.into()))?;
    Ok(Loaded { tensor })
}

/// What is wrong with a file. The message goes on from the file's name: `holds no tensor`.
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

impl From<io::Error> for Problem {
    fn from(e: io::Error) -> Problem {
        Problem::new(format!("cannot be read: {e}"), "check that nobody is writing it, and its disk")
    }
}

/// The first `bytes` bytes that `from` has left.
fn read_exactly(from: &mut impl Read, bytes: usize) -> io::Result<Vec<u8>> {
    let mut read = vec![0; bytes];
    from.read_exact(&mut read)?;
    Ok(read)
}

/// Refuses a name that does not say in which format a result is wanted.
pub(crate) fn check_name(path: &Path) -> Result<(), Failure> {
    Format::of(path).map(drop)
}

/// Writes `tensor` under the name `c`. A half-written file is never seen.
pub(crate) fn write(path: &Path, tensor: &Tensor) -> Result<(), Failure> {
    let format = Format::of(path)?;
    target::write(path, |to| match format {
        Format::Safetensors => safetensors::write(tensor, to),
        Format::Npy => npy::write(tensor, to),
    })
}
