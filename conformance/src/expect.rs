//! What a region must hold after a run.

use crate::value::{decode, encode, format, part, put};
use mk_core::{DType, Rect, Tensor};
use reference::{Element, Format};

/// What one element must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Want {
    /// The result in f64.
    pub(crate) value: f64,
    /// How far the result may lie from it; 0: it has the bits of `value`, rounded once.
    pub(crate) bound: f64,
}

impl Want {
    /// The bits of `value`, rounded once; a NaN in its canonical form.
    pub(crate) fn exactly(value: f64) -> Want {
        Want { value, bound: 0.0 }
    }

    /// Within `bound` of `value`. What is no number has no bound.
    pub(crate) fn within(value: f64, bound: f64) -> Want {
        Want { value, bound: if value.is_finite() { bound } else { 0.0 } }
    }
}

/// What a task must leave in a rectangle.
#[derive(Clone, Debug)]
pub(crate) enum Results {
    /// Numbers, row by row.
    Values(Vec<Want>),
    /// These bytes, whatever they mean: a NaN with its payload.
    Bytes(Tensor),
}

impl FromIterator<Want> for Results {
    fn from_iter<T: IntoIterator<Item = Want>>(wants: T) -> Results {
        Results::Values(wants.into_iter().collect())
    }
}

/// What an element is near to that has no bound.
const EXACT: Want = Want { value: 0.0, bound: 0.0 };

/// What a region must hold: these bytes, except for elements that may differ a little.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) tensor: Tensor,
    /// By element, those without a bound among them; empty as long as none has one.
    near: Vec<Want>,
}

impl Expected {
    /// Exactly this.
    pub(crate) fn new(tensor: Tensor) -> Expected {
        Expected { tensor, near: Vec::new() }
    }

    /// These bytes are written there.
    pub(crate) fn bytes(&mut self, at: Rect, part: &Tensor) {
        for i in self.places(at) {
            self.keep(i, EXACT);
        }
        put(&mut self.tensor, at, part);
    }

    /// Element `i` may differ from its bytes as far as this says.
    fn keep(&mut self, i: usize, want: Want) {
        if self.near.is_empty() && want.bound > 0.0 {
            self.near = vec![EXACT; (self.tensor.rows * self.tensor.cols) as usize];
        }
        if let Some(near) = self.near.get_mut(i) {
            *near = want;
        }
    }

    /// What element `i` is near to, if it has a bound.
    fn near(&self, i: usize) -> Option<Want> {
        self.near.get(i).copied().filter(|w| w.bound > 0.0)
    }

    /// A task leaves this there.
    pub(crate) fn write(&mut self, at: Rect, results: &Results) {
        match results {
            Results::Values(wants) => self.results(at, wants),
            Results::Bytes(part) => self.bytes(at, part),
        }
    }

    /// These results are written there.
    pub(crate) fn results(&mut self, at: Rect, wants: &[Want]) {
        assert_eq!(wants.len() as u64, at.area(), "one result for each element");
        let n = self.tensor.dtype.bytes() as usize;
        for (i, want) in self.places(at).zip(wants) {
            self.tensor.bytes[i * n..(i + 1) * n].copy_from_slice(&encode(self.tensor.dtype, want.value));
            self.keep(i, *want);
        }
    }

    /// What is expected there.
    pub(crate) fn wants(&self, at: Rect) -> Vec<Want> {
        let exact = |i| Want::exactly(decode(self.tensor.dtype, &self.tensor.bytes, i));
        self.places(at).map(|i| self.near(i).unwrap_or_else(|| exact(i))).collect()
    }

    /// A rectangle of this region is copied into `to`: the same bytes, as uncertain as they were.
    pub(crate) fn copy_to(&self, from: Rect, to: &mut Expected, into: Rect) {
        to.bytes(into, &part(&self.tensor, from));
        for (i, j) in self.places(from).zip(to.places(into)) {
            if let Some(want) = self.near(i) {
                to.keep(j, want);
            }
        }
    }

    /// Places of a rectangle's elements, row by row.
    fn places(&self, at: Rect) -> impl Iterator<Item = usize> + use<> {
        let pitch = self.tensor.cols;
        (at.row..at.row_end())
            .flat_map(move |r| (at.col..at.col_end()).map(move |c| (r * pitch + c) as usize))
    }

    /// Compares every byte.
    ///
    /// # Errors
    /// The first element that is wrong, and how many are.
    pub(crate) fn check(&self, got: &Tensor) -> Result<(), String> {
        let shape = |t: &Tensor| format!("{} x {}, {}, {} bytes", t.rows, t.cols, t.dtype, t.bytes.len());
        if shape(got) != shape(&self.tensor) {
            return Err(format!("is {}, not {}", shape(got), shape(&self.tensor)));
        }
        let format = format(got.dtype).unwrap_or(Format::F32);
        let n = got.dtype.bytes() as usize;
        let pairs = got.bytes.chunks_exact(n).zip(self.tensor.bytes.chunks_exact(n));
        let wrong = |&(i, (got, want)): &(usize, (&[u8], &[u8]))| match self.near(i) {
            None => got != want,
            Some(w) => {
                let got = decode(self.tensor.dtype, got, 0) as f32;
                Element { index: i, got, want: w.value, bound: w.bound }.error(format) > 1.0
            }
        };
        let mut all = pairs.enumerate().filter(wrong);
        let Some((i, (is, should))) = all.next() else { return Ok(()) };
        let (row, col) = (i as u64 / got.cols, i as u64 % got.cols);
        let bound = self.near(i).map_or(String::new(), |w| format!(" (allowed: {:e})", w.bound));
        Err(format!(
            "row {row}, column {col} is {}, not {}{bound}; {} of {} elements are wrong",
            show(got.dtype, is),
            show(got.dtype, should),
            1 + all.count(),
            got.rows * got.cols
        ))
    }
}

/// An element as a number and as bits.
fn show(dtype: DType, bytes: &[u8]) -> String {
    let hex: String = bytes.iter().rev().map(|b| format!("{b:02x}")).collect();
    format!("{:e} (0x{hex})", decode(dtype, bytes, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Around, filled};

    fn canaries(size: [u64; 2], salt: u64) -> Expected {
        Expected::new(filled(DType::Bf16, size, Around::Canary, salt))
    }

    fn expected() -> Expected {
        let mut e = canaries([3, 4], 1);
        e.results(Rect::new(1, 1, 1, 2), &[Want::exactly(2.0), Want::within(3.0, 0.1)]);
        e
    }

    #[test]
    fn every_byte_counts_and_bounds_are_kept() {
        let e = expected();
        assert_eq!(e.check(&e.tensor), Ok(()));
        for byte in 0..e.tensor.bytes.len() {
            let mut got = e.tensor.clone();
            got.bytes[byte] ^= 1;
            // The lower byte of the element that has a bound: one unit in its last place is 2^-6.
            assert_eq!(e.check(&got).is_ok(), byte == 12, "byte {byte}");
        }
        let mut got = e.tensor.clone();
        put(&mut got, Rect::new(1, 2, 1, 1), &crate::value::tensor(DType::Bf16, [1, 1], [3.2].into_iter()));
        assert!(e.check(&got).unwrap_err().contains("row 1, column 2 is 3.203125e0 (0x404d), not 3e0"));
    }

    #[test]
    fn a_copy_is_as_uncertain_as_its_source() {
        let (e, mut to) = (expected(), canaries([2, 2], 2));
        e.copy_to(Rect::new(1, 1, 1, 2), &mut to, Rect::new(0, 0, 1, 2));
        assert_eq!(to.wants(Rect::new(0, 0, 1, 2)), e.wants(Rect::new(1, 1, 1, 2)));
        to.bytes(Rect::new(0, 1, 1, 1), &part(&e.tensor, Rect::new(0, 0, 1, 1)));
        assert_eq!(to.near(1), None);
    }
}
