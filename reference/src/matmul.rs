//! Matrix products.

use crate::Format;

/// `a * b` with `a` of `m x k` and `b` of `k x n`, row-major; products and sums in f64.
///
/// # Panics
/// If a slice is not of that size.
pub fn matmul(a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Vec<f64> {
    product(a, b, m, k, n, f64::from)
}

/// `|a| * |b|`: for each element of the product, the sum of its terms' magnitudes.
///
/// # Panics
/// If a slice is not of that size.
pub fn abs_matmul(a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Vec<f64> {
    product(a, b, m, k, n, |x| f64::from(x).abs())
}

fn product(a: &[f32], b: &[f32], m: usize, k: usize, n: usize, widen: impl Fn(f32) -> f64) -> Vec<f64> {
    assert_eq!(a.len(), m * k, "a is {m} x {k}");
    assert_eq!(b.len(), k * n, "b is {k} x {n}");
    let b: Vec<f64> = b.iter().map(|&x| widen(x)).collect();
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        let row = &mut c[i * n..(i + 1) * n];
        for (j, &x) in a[i * k..(i + 1) * k].iter().enumerate() {
            let x = widen(x);
            for (sum, &y) in row.iter_mut().zip(&b[j * n..(j + 1) * n]) {
                *sum += x * y;
            }
        }
    }
    c
}

/// How far an f32-accumulated product, rounded once to `format`, may lie from `want`: 1 ulp + k * 2^-24 * `abs`,
/// where `abs` is [`abs_matmul`]'s result.
///
/// Infinite, so that [`check`](crate::check()) accepts anything, where `abs` reaches the largest f32 number, 3.4e38: in some
/// order of the sum, a partial sum then overflows, and what follows may be an infinity or a NaN, however small the sum is.
///
/// # Panics
/// If the slices differ in length.
pub fn matmul_bounds(format: Format, want: &[f64], abs: &[f64], k: usize) -> Vec<f64> {
    assert_eq!(want.len(), abs.len(), "one sum of magnitudes for each element");
    let relative = k as f64 * 2f64.powi(-24);
    let bound = |(&want, &abs): (&f64, &f64)| {
        // The partial sums are rounded as well.
        let overflows = abs + relative * abs >= f64::from(f32::MAX);
        if overflows { f64::INFINITY } else { format.ulp(want) + relative * abs }
    };
    want.iter().zip(abs).map(bound).collect()
}
