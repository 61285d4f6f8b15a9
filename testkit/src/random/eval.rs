//! What a random program must compute: its stages, one after the other, in f64.
//!
//! All values are integers (or products with a gate that is all or nothing) that every type of the pipeline holds
//! exactly, so one rounding more or less changes no bit.

use super::Rng;
use mk_core::{Bindings, DType, Rank, Tensor};

/// One stage, as arithmetic. Tensors are named by their place; chunks by rank and place.
#[derive(Clone, Debug)]
pub(super) enum Eval {
    /// `factor * src`.
    Scale { src: usize, factor: f64 },
    /// `a + b`.
    Add { a: usize, b: usize },
    /// `gate * sigmoid(gate) * src`.
    Gate { src: usize },
    /// `src * weights`.
    Product { src: usize },
    /// Chunk `c` of rank `r` is that of `from[r][c]`.
    Exchange { src: usize, from: Vec<Vec<(usize, usize)>> },
    /// Chunk `c` of rank `r` is the sum of chunk `c` of the ranks `of[r]`.
    Sum { src: usize, of: Vec<Vec<usize>> },
}

/// A tensor: its type, and how it is made (the input is not).
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) dtype: DType,
    pub(super) eval: Option<Eval>,
}

/// Everything that is needed to compute inputs and outputs.
#[derive(Clone, Debug)]
pub struct Expected {
    pub(super) seed: u64,
    pub(super) ranks: usize,
    /// First row of each chunk, and the number of rows.
    pub(super) starts: Vec<u64>,
    pub(super) cols: u64,
    pub(super) tensors: Vec<Made>,
    /// Which tensor is the output.
    pub(super) output: usize,
    /// Whether gates and weights are bound, and of which type.
    pub(super) gates: Option<DType>,
    pub(super) weights: Option<DType>,
}

type Matrix = Vec<f64>;

impl Expected {
    fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Integers of -`most` to `most`, chosen by place.
    fn data(&self, tag: u64, rank: usize, epoch: u64, n: u64, most: u64) -> Matrix {
        let mut rng = Rng::new(self.seed ^ tag << 56 ^ (rank as u64) << 40 ^ epoch << 20);
        (0..n).map(|_| rng.below(2 * most + 1) as f64 - most as f64).collect()
    }

    fn input(&self, rank: usize, epoch: u64) -> Matrix {
        self.data(1, rank, epoch, self.rows() * self.cols, 1)
    }

    /// -128 (nothing passes), 0 or 128 (all passes, times 128): `exp` of these is 0 or infinite in f32.
    fn gate(&self, rank: usize, epoch: u64) -> Matrix {
        self.data(2, rank, epoch, self.rows() * self.cols, 1).into_iter().map(|x| 128.0 * x).collect()
    }

    fn weight(&self, rank: usize, epoch: u64) -> Matrix {
        self.data(3, rank, epoch, self.cols * self.cols, 1)
    }

    fn bind(to: &mut Bindings, rank: usize, name: &str, dtype: DType, rows: u64, cols: u64, values: &Matrix) {
        let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        to.set(Rank(rank as u16), name, Tensor::from_f32(dtype, rows, cols, &values));
    }

    pub(super) fn inputs(&self, epoch: u64) -> Bindings {
        let mut b = Bindings::new();
        let (rows, cols) = (self.rows(), self.cols);
        for rank in 0..self.ranks {
            Expected::bind(&mut b, rank, "x", self.tensors[0].dtype, rows, cols, &self.input(rank, epoch));
            if let Some(dtype) = self.gates {
                Expected::bind(&mut b, rank, "gates", dtype, rows, cols, &self.gate(rank, epoch));
            }
            if let Some(dtype) = self.weights {
                Expected::bind(&mut b, rank, "weights", dtype, cols, cols, &self.weight(rank, epoch));
            }
        }
        b
    }

    pub(super) fn outputs(&self, epoch: u64) -> Bindings {
        let mut values: Vec<Vec<Matrix>> = Vec::new();
        for made in &self.tensors {
            let next: Vec<Matrix> = (0..self.ranks)
                .map(|rank| match &made.eval {
                    None => self.input(rank, epoch),
                    Some(eval) => self.stage(eval, rank, epoch, &values),
                })
                .collect();
            values.push(next);
        }
        let mut b = Bindings::new();
        let (rows, cols, dtype) = (self.rows(), self.cols, self.tensors[self.output].dtype);
        for (rank, y) in values[self.output].iter().enumerate() {
            Expected::bind(&mut b, rank, "y", dtype, rows, cols, y);
        }
        b
    }

    fn stage(&self, eval: &Eval, rank: usize, epoch: u64, values: &[Vec<Matrix>]) -> Matrix {
        match eval {
            Eval::Scale { src, factor } => values[*src][rank].iter().map(|x| x * factor).collect(),
            Eval::Add { a, b } => {
                values[*a][rank].iter().zip(&values[*b][rank]).map(|(a, b)| a + b).collect()
            }
            Eval::Gate { src } => {
                let gates = self.gate(rank, epoch);
                gates.iter().zip(&values[*src][rank]).map(|(g, x)| g / (1.0 + (-g).exp()) * x).collect()
            }
            Eval::Product { src } => self.product(&values[*src][rank], &self.weight(rank, epoch)),
            Eval::Exchange { src, from } => {
                let mut y = vec![0.0; (self.rows() * self.cols) as usize];
                for (c, &(r, other)) in from[rank].iter().enumerate() {
                    let (to, at) = (self.starts[c] * self.cols, self.starts[other] * self.cols);
                    let n = ((self.starts[c + 1] - self.starts[c]) * self.cols) as usize;
                    y[to as usize..][..n].copy_from_slice(&values[*src][r][at as usize..][..n]);
                }
                y
            }
            Eval::Sum { src, of } => {
                // The first is copied, not added to 0: the sum of negative zeros is one.
                let mut y = values[*src][of[rank][0]].clone();
                for &r in &of[rank][1..] {
                    y.iter_mut().zip(&values[*src][r]).for_each(|(y, x)| *y += x);
                }
                y
            }
        }
    }

    fn product(&self, a: &Matrix, b: &Matrix) -> Matrix {
        let n = self.cols as usize;
        let dot = |row: &[f64], col: usize| (0..n).fold(0.0, |sum, k| sum + row[k] * b[k * n + col]);
        a.chunks(n.max(1)).flat_map(|row| (0..n).map(move |col| dot(row, col))).collect()
    }
}
