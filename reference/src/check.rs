//! Comparing a result with its reference.

use crate::Format;
use std::fmt;

/// One element of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// Its place.
    pub index: usize,
    /// The result.
    pub got: f32,
    /// The reference.
    pub want: f64,
    /// How far they may lie apart. Infinite: where the reference is a number, every result is right, an infinity and a NaN
    /// as well.
    pub bound: f64,
}

/// How a result differs from its reference.
#[derive(Clone, Debug, PartialEq)]
pub enum Mismatch {
    /// There are not as many results, references and bounds.
    Lengths([usize; 3]),
    /// Some elements are wrong.
    Elements {
        /// The one that is furthest off; a wrong NaN or infinity is further off than any number.
        worst: Element,
        /// How many are wrong.
        wrong: usize,
        /// Of how many.
        of: usize,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Lengths([got, want, bounds]) => {
                write!(f, "{got} results, {want} references and {bounds} bounds")
            }
            Mismatch::Elements { worst: Element { index, got, want, bound }, wrong, of } => write!(
                f,
                "element {index} is {got}, not {want} (allowed difference {bound:e}); {wrong} of {of} are wrong"
            ),
        }
    }
}

impl std::error::Error for Mismatch {}

impl Element {
    /// How far off it is, in bounds: at most 1 is right, infinity is a wrong NaN or infinity. Never a NaN, so the largest
    /// of several is what it seems: `max` of a number and a NaN would be the number.
    pub fn error(&self, format: Format) -> f64 {
        let (got, want) = (f64::from(self.got), self.want);
        let right = |right: bool| if right { 0.0 } else { f64::INFINITY };
        // No bound. A reference that is no number has none either, but says what the result must be.
        if want.is_finite() && self.bound == f64::INFINITY {
            return 0.0;
        }
        if want.is_nan() || got.is_nan() {
            return right(want.is_nan() && got.is_nan());
        }
        if want.is_infinite() {
            return right(got == want);
        }
        // A reference beyond the format's range, give or take the bound, may have become an infinity.
        if got.is_infinite() {
            return right(got.signum() == want.signum() && want.abs() + self.bound >= format.overflow());
        }
        let difference = (got - want).abs();
        if difference <= self.bound {
            if self.bound > 0.0 { difference / self.bound } else { 0.0 }
        } else if self.bound > 0.0 && self.bound.is_finite() {
            difference / self.bound
        } else {
            // No bound, no distance: a bound of 0 is missed, or the bound is not a number.
            f64::INFINITY
        }
    }
}

/// Compares results in `format` with their references: every element within its bound, a NaN exactly where the reference
/// has one, an infinity exactly where the reference has it or leaves the range of `format`. Where the bound is infinite and
/// the reference is a number, anything is right.
///
/// Gives back the element that is furthest off, if there is one.
///
/// # Errors
/// [`Mismatch`], with the worst element.
pub fn check(format: Format, got: &[f32], want: &[f64], bounds: &[f64]) -> Result<Option<Element>, Mismatch> {
    if got.len() != want.len() || got.len() != bounds.len() {
        return Err(Mismatch::Lengths([got.len(), want.len(), bounds.len()]));
    }
    let (mut worst, mut wrong) = (None::<(f64, Element)>, 0);
    for (index, ((&got, &want), &bound)) in got.iter().zip(want).zip(bounds).enumerate() {
        let element = Element { index, got, want, bound };
        let error = element.error(format);
        wrong += usize::from(error > 1.0);
        if worst.is_none_or(|(most, _)| error > most) {
            worst = Some((error, element));
        }
    }
    match worst {
        Some((_, worst)) if wrong > 0 => Err(Mismatch::Elements { worst, wrong, of: got.len() }),
        worst => Ok(worst.map(|(_, element)| element)),
    }
}
