//! `.safetensors` files.

use super::{Place, Problem, read_exactly};
use mk_core::{DType, Tensor};
use safetensors::tensor::{Dtype, Metadata, TensorInfo, TensorView};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{self, Read, Write};

/// The longest header, as the format has it.
const HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the header's length.
const LENGTH_BYTES: u64 = 8;

/// Where a file of `length` bytes holds the matrix called `name`; without a name the only one, or the one that is called
/// `expected`. Reads the header only.
pub(crate) fn find(
    from: &mut impl Read,
    length: u64,
    name: Option<&str>,
    expected: &str,
) -> Result<Place, Problem> {
    let (header, start) = read_header(from, length)?;
    let header = Header::of(&header)?;
    let end = start + header.0.data_len() as u64;
    if end != length {
        return Err(broken(format!("its tensors end at byte {end}, but it has {length} bytes")));
    }
    let infos = header.0.tensors();
    let tensors: BTreeMap<&str, &TensorInfo> = infos.iter().map(|(k, &v)| (k.as_str(), v)).collect();
    let (name, info) = choose(&tensors, name, expected)?;
    let dtype = match info.dtype {
        Dtype::BF16 => DType::Bf16,
        Dtype::F16 => DType::F16,
        other => {
            return Err(Problem::new(
                format!("holds tensor '{name}' as {other:?}, not BF16 or F16"),
                "convert it first, or store f32 as .npy, which is rounded to --dtype",
            ));
        }
    };
    let &[rows, cols] = &info.shape[..] else {
        return Err(Problem::new(
            format!("holds tensor '{name}' of shape {:?}, not two dimensions", info.shape),
            "reshape it to [rows, columns]",
        ));
    };
    let start = start + info.data_offsets.0 as u64;
    Ok(Place { dtype, rows: rows as u64, cols: cols as u64, start, big_endian: false })
}

fn broken(why: impl fmt::Display) -> Problem {
    Problem::new(
        format!("is not a whole .safetensors file: {why}"),
        "the file was cut off or is of another kind: write it again",
    )
}

/// The header, and how many bytes come before the data.
fn read_header(from: &mut impl Read, length: u64) -> Result<(Vec<u8>, u64), Problem> {
    let Some(rest) = length.checked_sub(LENGTH_BYTES) else {
        return Err(broken(format!("it has {length} bytes")));
    };
    let mut bytes = [0; LENGTH_BYTES as usize];
    from.read_exact(&mut bytes)?;
    let bytes = u64::from_le_bytes(bytes);
    if bytes > rest.min(HEADER_BYTES) {
        let most = rest.min(HEADER_BYTES);
        return Err(broken(format!("its header would have {bytes} bytes, but at most {most} are possible")));
    }
    Ok((read_exactly(from, bytes as usize)?, LENGTH_BYTES + bytes))
}

/// A header without a key that is given twice.
struct Header(Metadata);

impl Header {
    fn of(text: &[u8]) -> Result<Header, Problem> {
        serde_json::from_slice::<Unique>(text).map_err(broken)?;
        serde_json::from_slice(text).map(Header).map_err(broken)
    }
}

/// An object whose keys differ: of two tensors of one name, one reader takes the first and another the last.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Unique, D::Error> {
        d.deserialize_map(Unique)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
        let mut seen = HashSet::new();
        while let Some((key, IgnoredAny)) = map.next_entry::<String, _>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format!("'{key}' is given twice")));
            }
            seen.insert(key);
        }
        Ok(self)
    }
}

fn choose<'a>(
    tensors: &BTreeMap<&'a str, &'a TensorInfo>,
    name: Option<&str>,
    expected: &str,
) -> Result<(&'a str, &'a TensorInfo), Problem> {
    let shown = |show: fn(&str, &TensorInfo) -> String| {
        let some: Vec<_> = tensors.iter().take(8).map(|(name, info)| show(name, info)).collect();
        let more = tensors.len() - some.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", some.join(", "))
    };
    let names = || shown(|name, _| format!("'{name}'"));
    let get = |name: &str| tensors.get_key_value(name).map(|(name, info)| (*name, *info));
    if let Some(name) = name {
        let missing = || Problem::new(format!("has no tensor '{name}'"), format!("it has {}", names()));
        return get(name).ok_or_else(missing);
    }
    let mut matrices = tensors.iter().filter(|(_, info)| info.shape.len() == 2);
    match (matrices.next(), matrices.next()) {
        (Some((name, info)), None) => Ok((*name, *info)),
        (None, _) if tensors.is_empty() => Err(Problem::new("holds no tensor", "store a matrix in it")),
        (None, _) => {
            let shapes = shown(|name, info| format!("'{name}' of shape {:?}", info.shape));
            Err(Problem::new(
                format!("has no matrix (two dimensions), only {shapes}"),
                "reshape one of them to [rows, columns]",
            ))
        }
        _ => get(expected).ok_or_else(|| {
            Problem::new(
                format!("has several matrices, none of which is called '{expected}': {}", names()),
                "say which one: FILE.safetensors:NAME",
            )
        }),
    }
}

/// One tensor, called `c`.
pub(super) fn write(tensor: &Tensor, to: &mut dyn Write) -> io::Result<()> {
    let dtype = match tensor.dtype {
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::F32 => Dtype::F32,
        DType::I32 => Dtype::I32,
    };
    let shape = vec![tensor.rows as usize, tensor.cols as usize];
    let view = TensorView::new(dtype, shape, &tensor.bytes).map_err(io::Error::other)?;
    let bytes = safetensors::serialize([("c", view)], None).map_err(io::Error::other)?;
    to.write_all(&bytes)
}
