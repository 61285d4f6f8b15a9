//! Elements: how they are written, drawn and recognised. Nothing here uses the conversions of the code under test.

use crate::config::Numerics;
use crate::random::Random;
use half::{bf16, f16};
use mk_core::{DType, Rect, Tensor};
use reference::Format;

/// The format of a type of real numbers; `None` for integers.
pub(crate) fn format(dtype: DType) -> Option<Format> {
    match dtype {
        DType::Bf16 => Some(Format::Bf16),
        DType::F16 => Some(Format::F16),
        DType::F32 => Some(Format::F32),
        DType::I32 => None,
    }
}

/// Element `i`; exact for every type.
pub(crate) fn decode(dtype: DType, bytes: &[u8], i: usize) -> f64 {
    let two = || [bytes[2 * i], bytes[2 * i + 1]];
    let four = || [bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]];
    match dtype {
        DType::Bf16 => bf16::from_le_bytes(two()).to_f64(),
        DType::F16 => f16::from_le_bytes(two()).to_f64(),
        DType::F32 => f32::from_le_bytes(four()).into(),
        DType::I32 => i32::from_le_bytes(four()).into(),
    }
}

/// The bytes of `x`: rounded to nearest even, a NaN in the form that GPUs give it, an integer wrapped.
pub(crate) fn encode(dtype: DType, x: f64) -> Vec<u8> {
    let x = format(dtype).map_or(x, |f| f.round(x));
    match dtype {
        DType::Bf16 => {
            (if x.is_nan() { bf16::from_bits(0x7fff) } else { bf16::from_f64(x) }).to_le_bytes().to_vec()
        }
        DType::F16 => {
            (if x.is_nan() { f16::from_bits(0x7fff) } else { f16::from_f64(x) }).to_le_bytes().to_vec()
        }
        DType::F32 => {
            (if x.is_nan() { f32::from_bits(0x7fff_ffff) } else { x as f32 }).to_le_bytes().to_vec()
        }
        DType::I32 => (x as i64 as i32).to_le_bytes().to_vec(),
    }
}

/// All elements.
pub(crate) fn values(t: &Tensor) -> Vec<f64> {
    (0..(t.rows * t.cols) as usize).map(|i| decode(t.dtype, &t.bytes, i)).collect()
}

/// A tensor of these values.
pub(crate) fn tensor(dtype: DType, [rows, cols]: [u64; 2], values: impl Iterator<Item = f64>) -> Tensor {
    let bytes: Vec<u8> = values.flat_map(|x| encode(dtype, x)).collect();
    assert_eq!(bytes.len() as u64, rows * cols * dtype.bytes(), "one value for each element");
    Tensor { dtype, rows, cols, bytes }
}

/// Numbers that are not 0: integers of at most `most`, or anything below 1. Integers of 32 bits are any.
pub(crate) fn draw(
    numerics: Numerics,
    dtype: DType,
    size: [u64; 2],
    most: u64,
    random: &mut Random,
) -> Tensor {
    let mut one = || match (dtype, numerics) {
        (DType::I32, _) => f64::from(random.next() as i32),
        (_, Numerics::Exact) => {
            let size = random.range(1, most) as f64;
            if random.one_in(2) { size } else { -size }
        }
        (_, Numerics::Rounded) => random.uniform(),
    };
    tensor(dtype, size, (0..size[0] * size[1]).map(|_| one()))
}

/// Any bits: what is only moved must arrive as it was.
pub(crate) fn any_bits(dtype: DType, [rows, cols]: [u64; 2], random: &mut Random) -> Tensor {
    let bytes = (0..rows * cols * dtype.bytes()).map(|_| random.next() as u8).collect();
    Tensor { dtype, rows, cols, bytes }
}

/// What surrounds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Around {
    /// Around what may be read: negative NaN.
    Poison,
    /// Around what may be written: positive NaN.
    Canary,
}

/// A tensor of nothing else. Each 16 bits are a NaN of both 16-bit types and the upper half of one of fp32, none in its
/// canonical form; they differ from place to place and from `salt` to `salt`, so that a row that was moved is seen.
pub(crate) fn filled(dtype: DType, [rows, cols]: [u64; 2], around: Around, salt: u64) -> Tensor {
    let sign = if around == Around::Poison { 0x8000 } else { 0 };
    let mut random = Random::new(salt);
    let half = (0..rows * cols * dtype.bytes() / 2).map(|_| sign | (0x7fc1 + 2 * random.below(31) as u16));
    let bytes = half.flat_map(u16::to_le_bytes).collect();
    Tensor { dtype, rows, cols, bytes }
}

/// A rectangle of a tensor.
pub(crate) fn part(t: &Tensor, r: Rect) -> Tensor {
    if r.is_empty() {
        return Tensor { dtype: t.dtype, rows: r.rows, cols: r.cols, bytes: Vec::new() };
    }
    t.slice(r.row, r.rows, r.col, r.cols)
}

/// Puts a rectangle into a tensor.
pub(crate) fn put(t: &mut Tensor, r: Rect, part: &Tensor) {
    if !r.is_empty() {
        t.paste(r.row, r.col, part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_surrounds_data_is_a_nan_of_every_type_and_never_the_canonical_one() {
        for around in [Around::Poison, Around::Canary] {
            for dtype in [DType::Bf16, DType::F16, DType::F32] {
                let t = filled(dtype, [8, 9], around, 3);
                let n = dtype.bytes() as usize;
                assert!(values(&t).iter().all(|x| x.is_nan()));
                assert!(t.bytes.chunks(n).all(|b| b != encode(dtype, f64::NAN)));
                assert_ne!(t, filled(dtype, [8, 9], around, 4));
            }
        }
    }

    #[test]
    fn elements_round_trip_and_integers_wrap() {
        for dtype in DType::ALL {
            for x in [-3.0, 1.0, 200.0] {
                assert_eq!(decode(dtype, &encode(dtype, x), 0), x);
            }
        }
        let wrapped = encode(DType::I32, f64::from(i32::MAX) + 1.0);
        assert_eq!(decode(DType::I32, &wrapped, 0), f64::from(i32::MIN));
    }
}
