//! `.npy` files (NEP 1): 2-byte and 4-byte floats in C order.
//!
//! The header is a Python dictionary of three known keys, so it is read by hand: a general reader of Python expressions
//! recurses as deep as a file tells it to, and multiplies dimensions without looking.

use super::{Place, Problem, read_exactly};
use mk_core::{DType, Tensor};
use std::io::{self, Read, Write};

const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header: that of a matrix has about 120 bytes, and version 1 of the format allows this many.
const HEADER_BYTES: u64 = 65_535;
const AGAIN: &str = "save it with numpy.save(path, numpy.ascontiguousarray(x, dtype=numpy.float32))";

/// What a header says.
#[derive(Debug, Default, PartialEq)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Where a file of `length` bytes holds its matrix. Reads the header only.
pub(crate) fn find(from: &mut impl Read, length: u64) -> Result<Place, Problem> {
    let (header, start) = read_header(from, length)?;
    let header = parse_header(&header)
        .ok_or_else(|| Problem::new("has a .npy header that cannot be understood", AGAIN))?;
    let (dtype, big_endian) = match header.descr.as_str() {
        "<f2" | "=f2" => (DType::F16, false),
        "<f4" | "=f4" => (DType::F32, false),
        ">f2" => (DType::F16, true),
        ">f4" => (DType::F32, true),
        other => {
            // numpy has no bfloat16; packages that add it save it as two bytes of nothing known.
            let hint = if other.ends_with("V2") { "bfloat16? use .safetensors" } else { AGAIN };
            return Err(Problem::new(format!("holds '{other}', not f2 or f4 (floats)"), hint));
        }
    };
    let &[rows, cols] = &header.shape[..] else {
        let message = format!("has shape {:?}, not two dimensions", header.shape);
        return Err(Problem::new(message, "reshape it to [rows, columns]"));
    };
    // With one row or one column, both orders are the same.
    if header.fortran_order && rows > 1 && cols > 1 {
        return Err(Problem::new("stores column after column (Fortran order), not row after row", AGAIN));
    }
    let place = Place { dtype, rows, cols, start, big_endian };
    let (needed, has) = (place.bytes(), length - start);
    if needed != u128::from(has) {
        return Err(Problem::new(
            format!("has {has} bytes of data, but {rows} x {cols} elements are {needed} bytes"),
            "the file was cut off or extended: write it again",
        ));
    }
    Ok(place)
}

/// The text of the header, and how many bytes come before the data.
fn read_header(from: &mut impl Read, length: u64) -> Result<(Vec<u8>, u64), Problem> {
    let cut = || Problem::new("has a .npy header that is cut off", "the file was cut off: write it again");
    let mut left = length;
    let mut next = |bytes: u64| {
        left = left.checked_sub(bytes).ok_or_else(cut)?;
        Ok::<_, Problem>(read_exactly(from, bytes as usize)?)
    };
    let foreign = || Problem::new("is not a .npy file", AGAIN);
    if next(MAGIC.len() as u64).map_err(|_| foreign())? != MAGIC {
        return Err(foreign());
    }
    let width = match next(2)?[0] {
        1 => 2,
        2 | 3 => 4,
        version => {
            return Err(Problem::new(format!("has .npy version {version}, not 1 to 3"), AGAIN));
        }
    };
    // Little-endian.
    let bytes = next(width)?.iter().rev().fold(0, |sum, &byte| (sum << 8) | u64::from(byte));
    if bytes > HEADER_BYTES {
        let message =
            format!("would have a .npy header of {bytes} bytes, but at most {HEADER_BYTES} are read");
        return Err(Problem::new(message, AGAIN));
    }
    let header = next(bytes)?;
    Ok((header, length - left))
}

/// `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, keys in any order, each once.
fn parse_header(text: &[u8]) -> Option<Header> {
    let mut t = Text(std::str::from_utf8(text).ok()?);
    let (mut descr, mut order, mut shape) = (None, None, None);
    t.expect('{')?;
    while !t.skip('}') {
        let key = t.string()?;
        t.expect(':')?;
        match key {
            "descr" if descr.is_none() => descr = Some(t.string()?.to_string()),
            "fortran_order" if order.is_none() => order = Some(t.boolean()?),
            "shape" if shape.is_none() => shape = Some(t.shape()?),
            _ => return None,
        }
        if !t.skip(',') {
            t.expect('}')?;
            break;
        }
    }
    let ended = t.0.trim().is_empty();
    ended.then_some(Header { descr: descr?, fortran_order: order?, shape: shape? })
}

/// The rest of a header.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn skip(&mut self, c: char) -> bool {
        let rest = self.0.trim_start().strip_prefix(c);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, c: char) -> Option<()> {
        self.skip(c).then_some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (string, rest) = text[1..].split_once(quote)?;
        self.0 = rest;
        (!string.contains('\\')).then_some(string)
    }

    fn boolean(&mut self) -> Option<bool> {
        let text = self.0.trim_start();
        let (value, rest) = match text.strip_prefix("True") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("False")?),
        };
        self.0 = rest;
        Some(value)
    }

    fn shape(&mut self) -> Option<Vec<u64>> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.skip(')') {
            let text = self.0.trim_start();
            let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            shape.push(text[..digits].parse().ok()?);
            self.0 = &text[digits..];
            // Python 2 wrote long integers with an L.
            self.skip('L');
            if !self.skip(',') {
                self.expect(')')?;
                break;
            }
        }
        Some(shape)
    }
}

/// f32 holds bf16 exactly, and numpy has no bf16; fp16 stays fp16.
pub(super) fn write(tensor: &Tensor, to: &mut dyn Write) -> io::Result<()> {
    let (descr, dtype) = match tensor.dtype {
        DType::F16 => ("<f2", DType::F16),
        DType::I32 => ("<i4", DType::I32),
        DType::Bf16 | DType::F32 => ("<f4", DType::F32),
    };
    let mut header = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}, {}), }}",
        tensor.rows, tensor.cols
    );
    // Data starts at a multiple of 64 bytes; the header ends in a line feed.
    let before = MAGIC.len() + 4;
    let padding = 63 - (before + header.len()) % 64;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    to.write_all(MAGIC)?;
    to.write_all(&[1, 0])?;
    to.write_all(&(header.len() as u16).to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    if dtype == tensor.dtype {
        return to.write_all(&tensor.bytes);
    }
    tensor.to_f32().iter().try_for_each(|x| to.write_all(&x.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(bytes: &[u8]) -> Result<Tensor, Problem> {
        let mut from = io::Cursor::new(bytes);
        Ok(find(&mut from, bytes.len() as u64)?.read(&mut from)?)
    }

    fn written(t: &Tensor) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(t, &mut bytes).unwrap();
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Another reader of the format sees what was written, and this one sees what another writes.
        #[test]
        fn files_are_those_of_another_implementation(rows in 0u64..9, cols in 0u64..9, x in -1e6f32..1e6) {
            let values: Vec<f32> = (0..rows * cols).map(|i| x + i as f32).collect();
            let t = Tensor::from_f32(DType::F32, rows, cols, &values);
            let bytes = written(&t);
            let other = npyz::NpyFile::new(&bytes[..]).unwrap();
            prop_assert_eq!(other.shape(), &[rows, cols]);
            prop_assert_eq!(other.into_vec::<f32>().unwrap(), values.clone());
            let mut theirs = Vec::new();
            {
                use npyz::WriterBuilder as _;
                let options = npyz::WriteOptions::new().default_dtype().shape(&[rows, cols]);
                let mut w = options.writer(&mut theirs).begin_nd().unwrap();
                w.extend(values.iter().copied()).unwrap();
                w.finish().unwrap();
            }
            prop_assert_eq!(parse(&theirs).unwrap(), t);
        }
    }

    #[test]
    fn bf16_is_written_as_f32_and_fp16_as_it_is() {
        let values = [1.5, -2.0, 0.25, f32::INFINITY];
        let bf16 = parse(&written(&Tensor::from_f32(DType::Bf16, 2, 2, &values))).unwrap();
        assert_eq!(bf16, Tensor::from_f32(DType::F32, 2, 2, &values));
        let fp16 = Tensor::from_f32(DType::F16, 2, 2, &values);
        assert_eq!(parse(&written(&fp16)).unwrap(), fp16);
        assert_eq!(written(&fp16).len() - fp16.bytes.len(), 128);
    }

    fn with_header(header: &str, data: &[u8]) -> Result<Tensor, Problem> {
        parse(&[MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes(), data].concat())
    }

    #[test]
    fn headers_that_other_programs_write_are_understood() {
        let one = Tensor::from_f32(DType::F32, 1, 1, &[1.0]);
        for header in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }\n",
            "{\"shape\":(1,1),\"descr\":\"<f4\",\"fortran_order\":False}",
            "{'descr': '<f4', 'fortran_order': True, 'shape': (1L, 1L)}   \n",
        ] {
            assert_eq!(with_header(header, &1f32.to_le_bytes()).unwrap(), one, "{header}");
        }
        let big = "{'descr': '>f4', 'fortran_order': False, 'shape': (1, 1)}";
        assert_eq!(with_header(big, &1f32.to_be_bytes()).unwrap(), one);
    }

    #[test]
    fn a_bad_file_says_what_is_wrong() {
        let header = |descr: &str, fortran: &str, shape: &str| {
            format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
        };
        for (text, words) in [
            (header("<f8", "False", "(1, 1)"), "<f8"),
            (header("<f4", "True", "(2, 2)"), "Fortran"),
            (header("<f4", "False", "(4,)"), "two dimensions"),
            (header("<f4", "False", "(1, 2)"), "has 4 bytes of data, but 1 x 2 elements are 8 bytes"),
            (header("<f4", "False", "(18446744073709551615, 18446744073709551615)"), "has 4 bytes of data"),
            (header("<f4", "False", "(18446744073709551616, 1)"), "understood"),
            (header("<f4", "False", "(-1, 1)"), "understood"),
            (header("<f4", "Maybe", "(1, 1)"), "understood"),
            (
                "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}".into(),
                "understood",
            ),
            ("{'descr': '<f4', 'shape': (1, 1)}".into(), "understood"),
            ("(".repeat(60_000), "understood"),
            (String::new(), "understood"),
        ] {
            let problem = with_header(&text, &[0; 4]).unwrap_err().message;
            assert!(problem.contains(words), "'{problem}' does not say '{words}'");
        }
        for (bytes, words) in [
            (&b"\x93NUMPY"[..], "cut off"),
            (b"\x93NUMPY\x01", "cut off"),
            (b"\x93NUMPY\x01\x00\xff\xff{", "cut off"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "4294967295 bytes"),
            (b"\x93NUMPY\x09\x00\x01\x00", "version 9"),
            (b"PK\x03\x04", "not a .npy"),
        ] {
            let problem = parse(bytes).unwrap_err().message;
            assert!(problem.contains(words), "'{problem}' does not say '{words}'");
        }
    }
}
