//! Floating-point formats, described by numbers: nothing here uses another crate's conversions.

/// A format that results are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// bfloat16: 8 bits of precision, the range of f32.
    Bf16,
    /// IEEE half precision: 11 bits of precision.
    F16,
    /// IEEE single precision: 24 bits of precision.
    F32,
}

impl Format {
    /// Bits of precision, the hidden one included.
    fn precision(self) -> i32 {
        match self {
            Format::Bf16 => 8,
            Format::F16 => 11,
            Format::F32 => 24,
        }
    }

    /// Exponents of the smallest and the largest normal number's leading bit.
    fn exponents(self) -> (i32, i32) {
        match self {
            Format::Bf16 | Format::F32 => (-126, 127),
            Format::F16 => (-14, 15),
        }
    }

    /// The distance between two neighbours of this format around `x`; infinite where `x` is not a number of it.
    ///
    /// ```
    /// use reference::Format;
    /// assert_eq!(Format::Bf16.ulp(1.0), 2f64.powi(-7));
    /// assert_eq!(Format::F16.ulp(0.0), 2f64.powi(-24));
    /// ```
    pub fn ulp(self, x: f64) -> f64 {
        if !x.is_finite() {
            return f64::INFINITY;
        }
        let (least, _) = self.exponents();
        2f64.powi(leading_exponent(x).max(least) - (self.precision() - 1))
    }

    /// What lies at or beyond this magnitude is rounded to infinity.
    ///
    /// ```
    /// use reference::Format;
    /// assert_eq!(Format::F16.overflow(), 65_520.0);
    /// ```
    pub fn overflow(self) -> f64 {
        let (_, most) = self.exponents();
        // Half an ulp above the largest number.
        2f64.powi(most) * (2.0 - 2f64.powi(-self.precision()))
    }

    /// `x` rounded to this format, to nearest, ties to even.
    ///
    /// ```
    /// use reference::Format;
    /// // 1 + 2^-8 lies half way between two bf16 numbers; the even one is 1.
    /// assert_eq!(Format::Bf16.round(1.0 + 2f64.powi(-8)), 1.0);
    /// assert_eq!(Format::F16.round(65_520.0), f64::INFINITY);
    /// ```
    pub fn round(self, x: f64) -> f64 {
        if !x.is_finite() || x == 0.0 {
            return x;
        }
        if x.abs() >= self.overflow() {
            return f64::INFINITY.copysign(x);
        }
        // Dividing and multiplying by a power of two is exact here: |x / ulp| < 2^24.
        let ulp = self.ulp(x);
        ((x / ulp).round_ties_even() * ulp).copysign(x)
    }
}

/// The exponent of the leading bit of a finite `x`; very small where `x` is 0 or subnormal in f64.
fn leading_exponent(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023
}
