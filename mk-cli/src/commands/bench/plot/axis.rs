//! Logarithmic axes with marks that people expect: 1, 2 and 5 of each power of ten.

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use std::ops::Range;

/// Marks of an axis at most; where there would be more, powers of ten alone are marked.
const MARKS: usize = 12;

/// From a number above 0 to a larger one.
#[derive(Clone)]
pub(super) struct Log(pub(super) Range<f64>);

impl Log {
    /// So many marks of each power of ten as there is room for.
    fn marks(&self) -> Vec<f64> {
        let of = |mantissas: &[f64]| {
            let powers = self.0.start.log10().floor() as i32..=self.0.end.log10().ceil() as i32;
            let all = powers.flat_map(|p| mantissas.iter().map(move |m| m * 10f64.powi(p)));
            all.filter(|mark| self.0.contains(mark)).collect::<Vec<f64>>()
        };
        let fine = of(&[1.0, 2.0, 5.0]);
        if fine.len() <= MARKS { fine } else { of(&[1.0]) }
    }
}

impl Ranged for Log {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value / self.0.start).ln() / (self.0.end / self.0.start).ln();
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks()
    }

    fn range(&self) -> Range<f64> {
        self.0.clone()
    }
}

/// A number at an axis.
pub(super) fn number(value: &f64) -> String {
    let scaled = |value: f64, unit: &str| format!("{}{unit}", (value * 1e3).round() / 1e3);
    match *value {
        v if v >= 999_999.5 => scaled(v / 1e6, " M"),
        v if v >= 999.95 => scaled(v / 1e3, " k"),
        v => format!("{}", (v * 1e9).round() / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_one_two_and_five_where_there_is_room() {
        let texts = |from, to| Log(from..to).marks().iter().map(number).collect::<Vec<_>>();
        assert_eq!(texts(0.03, 3.0), ["0.05", "0.1", "0.2", "0.5", "1", "2"]);
        assert_eq!(texts(150_000.0, 2_500_000.0), ["200 k", "500 k", "1 M", "2 M"]);
        assert_eq!(texts(0.5, 2e6), ["1", "10", "100", "1 k", "10 k", "100 k", "1 M"]);
    }

    #[test]
    fn equal_factors_are_equal_distances() {
        let axis = Log(1.0..1000.0);
        assert_eq!([1.0, 10.0, 100.0, 1000.0].map(|v| axis.map(&v, (20, 320))), [20, 120, 220, 320]);
        // Upwards, pixels count down.
        assert_eq!([1.0, 10.0].map(|v| axis.map(&v, (300, 0))), [300, 200]);
    }
}
