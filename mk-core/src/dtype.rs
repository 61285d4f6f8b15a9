//! Element types.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of a region's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u16)]
pub enum DType {
    /// bfloat16.
    Bf16 = 0,
    /// IEEE half precision.
    #[serde(rename = "fp16")]
    F16 = 1,
    /// IEEE single precision.
    #[serde(rename = "fp32")]
    F32 = 2,
    /// Signed 32-bit integer.
    I32 = 3,
}

impl DType {
    /// All of them, in the order of their codes.
    pub const ALL: [DType; 4] = [DType::Bf16, DType::F16, DType::F32, DType::I32];

    /// Bytes of one element.
    #[inline]
    pub const fn bytes(self) -> u64 {
        match self {
            DType::Bf16 | DType::F16 => 2,
            DType::F32 | DType::I32 => 4,
        }
    }

    /// The type with this code, as task arguments hold it.
    pub fn from_code(code: u16) -> Option<DType> {
        DType::ALL.get(code as usize).copied()
    }

    /// Reads element `i` of `bytes` as f32 (an `i32` is rounded).
    ///
    /// # Panics
    /// If `bytes` is too short.
    #[inline]
    pub fn load(self, bytes: &[u8], i: usize) -> f32 {
        match self {
            DType::Bf16 => bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
            DType::F16 => f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
            DType::F32 => f32::from_le_bytes(word(bytes, i)),
            DType::I32 => i32::from_le_bytes(word(bytes, i)) as f32,
        }
    }

    /// The bits of a NaN as it is stored: what a GPU's conversions and arithmetic give. 0 for integers.
    pub const fn nan_bits(self) -> u32 {
        match self {
            DType::Bf16 | DType::F16 => 0x7fff,
            DType::F32 => 0x7fff_ffff,
            DType::I32 => 0,
        }
    }

    /// Stores `x` as element `i`, rounded to nearest even; a NaN is stored in one form, [`DType::nan_bits`].
    ///
    /// # Panics
    /// If `bytes` is too short.
    #[inline]
    pub fn store(self, bytes: &mut [u8], i: usize, x: f32) {
        match self {
            DType::Bf16 => {
                let v = if x.is_nan() { bf16::from_bits(self.nan_bits() as u16) } else { bf16::from_f32(x) };
                bytes[2 * i..2 * i + 2].copy_from_slice(&v.to_le_bytes());
            }
            DType::F16 => {
                let v = if x.is_nan() { f16::from_bits(self.nan_bits() as u16) } else { f16::from_f32(x) };
                bytes[2 * i..2 * i + 2].copy_from_slice(&v.to_le_bytes());
            }
            DType::F32 => {
                let v = if x.is_nan() { f32::from_bits(self.nan_bits()) } else { x };
                bytes[4 * i..4 * i + 4].copy_from_slice(&v.to_le_bytes());
            }
            DType::I32 => bytes[4 * i..4 * i + 4].copy_from_slice(&(x as i32).to_le_bytes()),
        }
    }
}

#[inline]
fn word(bytes: &[u8], i: usize) -> [u8; 4] {
    [bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Bf16 => "bf16",
            DType::F16 => "fp16",
            DType::F32 => "fp32",
            DType::I32 => "i32",
        })
    }
}

impl std::str::FromStr for DType {
    type Err = crate::Error;
    fn from_str(s: &str) -> Result<DType, crate::Error> {
        DType::ALL.into_iter().find(|d| d.to_string() == s).ok_or_else(|| crate::Error::Input {
            message: "unknown element type".into(),
            given: s.into(),
            allowed: "bf16, fp16, fp32, i32".into(),
            hint: "name one of the allowed types".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_nan_is_canonical_and_rounding_is_to_nearest_even() {
        let mut b = [0u8; 4];
        DType::Bf16.store(&mut b, 0, f32::from_bits(0xffc1_2345));
        assert_eq!(b[..2], [0xff, 0x7f]);
        // 1 + 2^-8 lies half way between two bf16 values: the even one is 1.0.
        DType::Bf16.store(&mut b, 1, 1.0 + 2f32.powi(-8));
        assert_eq!(DType::Bf16.load(&b, 1), 1.0);
        DType::F16.store(&mut b, 0, 65520.0);
        assert_eq!(DType::F16.load(&b, 0), f32::INFINITY);
    }

    #[test]
    fn codes_and_names_round_trip() {
        for d in DType::ALL {
            assert_eq!(DType::from_code(d as u16), Some(d));
            assert_eq!(d.to_string().parse::<DType>().unwrap(), d);
        }
        assert_eq!(DType::from_code(4), None);
    }
}
