//! What a suite asks of a session.

use crate::network::Network;
use mk_core::DType;

/// How results are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// Data are small integers, so every partial sum is exact in f32: the result has the bits of the reference, rounded
    /// once. (What no arithmetic makes exact, an exponential, is compared as in [`Numerics::Rounded`].)
    Exact,
    /// Data are any numbers: the result lies within the error that f32 accumulation and one rounding allow,
    /// 1 ulp + K * 2^-24 * sum |a| |b|.
    Rounded,
}

/// What a suite asks of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How results are compared.
    pub numerics: Numerics,
    /// Whether every rectangle that a task touches begins and ends at a multiple of 16 bytes, as do the rows of its region:
    /// what bulk copies of a GPU can move. Without it, they lie anywhere.
    pub aligned: bool,
    /// What may connect ranks.
    pub networks: &'static [Network],
}

/// What an aligned rectangle begins and ends at a multiple of.
const ALIGNED_BYTES: u64 = 16;

impl Config {
    /// Integers, bit for bit.
    pub const fn exact() -> Config {
        Config { numerics: Numerics::Exact, aligned: false, networks: &Network::ALL }
    }

    /// Any numbers, within the bounds of rounding.
    pub const fn rounded() -> Config {
        Config { numerics: Numerics::Rounded, ..Config::exact() }
    }

    /// Only rectangles that begin and end at multiples of 16 bytes.
    #[must_use]
    pub const fn aligned(self) -> Config {
        Config { aligned: true, ..self }
    }

    /// Only worlds that are connected by these.
    #[must_use]
    pub const fn networks(self, networks: &'static [Network]) -> Config {
        Config { networks, ..self }
    }

    /// Elements that the columns of a rectangle are a multiple of, if it is one in regions of all these types.
    pub(crate) fn grain(self, types: &[DType]) -> u64 {
        let narrowest = types.iter().map(|t| t.bytes()).min().unwrap_or(ALIGNED_BYTES);
        if self.aligned { ALIGNED_BYTES / narrowest } else { 1 }
    }
}
