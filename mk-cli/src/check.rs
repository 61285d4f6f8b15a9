//! What is said of a result: a summary, and whether it is right.

use crate::error::{Exit, Failure, internal};
use mk_core::{DType, Explanation, Tensor};
use reference::{Format, Mismatch};
use serde::Serialize;

/// A result in a few numbers.
#[derive(Debug, Serialize, PartialEq)]
pub(crate) struct Summary {
    /// BLAKE3 of its bytes, row-major, little-endian.
    pub(crate) blake3: String,
    /// The least of its finite numbers; `None` where there are none.
    pub(crate) min: Option<f32>,
    /// The greatest of them.
    pub(crate) max: Option<f32>,
    /// Their mean.
    pub(crate) mean: Option<f64>,
    /// Elements that are not a number.
    pub(crate) nans: u64,
    /// Elements that are an infinity, of either sign.
    pub(crate) infinities: u64,
}

impl Summary {
    pub(crate) fn of(tensor: &Tensor) -> Summary {
        let values = tensor.to_f32();
        let numbers = || values.iter().copied().filter(|x| x.is_finite());
        let nans = values.iter().filter(|x| x.is_nan()).count();
        let count = numbers().count();
        let mean = numbers().map(f64::from).sum::<f64>() / count as f64;
        Summary {
            blake3: blake3::hash(&tensor.bytes).to_hex().to_string(),
            min: numbers().reduce(f32::min),
            max: numbers().reduce(f32::max),
            mean: (count > 0).then_some(mean),
            nans: nans as u64,
            infinities: (values.len() - nans - count) as u64,
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let number = |x: Option<f64>| x.map_or("none".into(), |x| format!("{x:.6}"));
        let infinities = match self.infinities {
            0 => String::new(),
            1 => ", 1 infinity".into(),
            n => format!(", {n} infinities"),
        };
        format!(
            "blake3 {}, min {}, max {}, mean {}, {} NaN{infinities}",
            self.blake3,
            number(self.min.map(f64::from)),
            number(self.max.map(f64::from)),
            number(self.mean),
            self.nans
        )
    }
}

/// The element of a right result that is furthest from the reference.
#[derive(Debug, Serialize)]
pub(crate) struct Worst {
    /// Its row.
    pub(crate) row: u64,
    /// Its column.
    pub(crate) col: u64,
    /// How far off it is, as a part of what is allowed.
    pub(crate) of_bound: f64,
}

/// A type as the reference knows it; `None` for integers.
pub(crate) fn format_of(dtype: DType) -> Option<Format> {
    match dtype {
        DType::Bf16 => Some(Format::Bf16),
        DType::F16 => Some(Format::F16),
        DType::F32 => Some(Format::F32),
        DType::I32 => None,
    }
}

/// Compares `c` with the product in f64 of `a` and `b`.
///
/// The bound is one unit in the last place of C's type plus K * 2^-24 * sum |a||b|: one rounding at the end, f32 sums
/// before it. `None` where C has no element.
pub(crate) fn product(a: &Tensor, b: &Tensor, c: &Tensor) -> Result<Option<Worst>, Failure> {
    let Some(format) = format_of(c.dtype) else {
        return Err(Failure::new(Exit::Internal, internal("C has an integer type".into())));
    };
    let [m, k, n] = [a.rows, a.cols, b.cols].map(|x| x as usize);
    let (a, b) = (a.to_f32(), b.to_f32());
    let want = reference::matmul(&a, &b, m, k, n);
    let bounds = reference::matmul_bounds(format, &want, &reference::abs_matmul(&a, &b, m, k, n), k);
    let place = |index: usize| ((index / n.max(1)) as u64, (index % n.max(1)) as u64);
    match reference::check(format, &c.to_f32(), &want, &bounds) {
        Ok(worst) => Ok(worst.map(|e| {
            let (row, col) = place(e.index);
            Worst { row, col, of_bound: e.error(format) }
        })),
        Err(Mismatch::Elements { worst, wrong, of }) => {
            let (row, col) = place(worst.index);
            Err(Failure::new(
                Exit::Wrong,
                Explanation {
                    kind: "wrong-result",
                    message: format!("C is wrong: {wrong} of {of} elements differ from the f64 reference"),
                    given: format!("C[{row},{col}] = {}", worst.got),
                    allowed: format!("{} +- {:e}", worst.want, worst.bound),
                    hint: "please report it with the command line, --seed and --schedule-seed".into(),
                },
            ))
        }
        Err(e @ Mismatch::Lengths(_)) => Err(Failure::new(Exit::Internal, internal(e.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_counts_nans_and_infinities_and_leaves_them_out() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let t = Tensor::from_f32(DType::F16, 1, 6, &[1.0, -3.0, nan, inf, 8.0, -inf]);
        let s = Summary::of(&t);
        assert_eq!((s.min, s.max, s.mean), (Some(-3.0), Some(8.0), Some(2.0)));
        assert_eq!((s.nans, s.infinities), (1, 2));
        assert!(s.text().ends_with("1 NaN, 2 infinities"), "{}", s.text());
        let finite = Summary::of(&Tensor::from_f32(DType::F16, 1, 1, &[1.0]));
        assert!(finite.text().ends_with("0 NaN"), "{}", finite.text());
        let empty = Summary::of(&Tensor::zeros(DType::F16, 0, 8));
        assert_eq!((empty.min, empty.mean, empty.nans), (None, None, 0));
    }

    #[test]
    fn a_wrong_element_is_named_and_a_right_result_is_not_refused() {
        let matrix = |values: &[f32]| Tensor::from_f32(DType::Bf16, 2, 2, values);
        let (a, b) = (matrix(&[1.0, 2.0, 3.0, 4.0]), matrix(&[5.0, 6.0, 7.0, 8.0]));
        let right = product(&a, &b, &matrix(&[19.0, 22.0, 43.0, 50.0])).unwrap().unwrap();
        assert_eq!(right.of_bound, 0.0);
        let failure = product(&a, &b, &matrix(&[19.0, 22.0, 44.0, 50.0])).unwrap_err();
        assert_eq!((failure.exit, failure.says.given.as_str()), (Exit::Wrong, "C[1,0] = 44"));
    }
}
