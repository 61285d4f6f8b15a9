//! What a suite asks of a session.

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
    /// Whether regions may have rows of any length. Without it, rows are multiples of 16 bytes, as GPUs need them.
    pub odd_rows: bool,
}

impl Config {
    /// Integers, bit for bit.
    pub const fn exact() -> Config {
        Config { numerics: Numerics::Exact, odd_rows: true }
    }

    /// Any numbers, within the bounds of rounding.
    pub const fn rounded() -> Config {
        Config { numerics: Numerics::Rounded, odd_rows: true }
    }

    /// Only regions whose rows are multiples of 16 bytes.
    #[must_use]
    pub const fn whole_rows(self) -> Config {
        Config { odd_rows: false, ..self }
    }
}
