//! Elementwise operations.

use crate::Format;

/// `x + y`.
pub fn add(x: &[f32], y: &[f32]) -> Vec<f64> {
    x.iter().zip(y).map(|(&x, &y)| f64::from(x) + f64::from(y)).collect()
}

/// `x * factor`.
pub fn scale(x: &[f32], factor: f32) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x) * f64::from(factor)).collect()
}

/// `gate * sigmoid(gate) * up`.
pub fn swiglu(gate: &[f32], up: &[f32]) -> Vec<f64> {
    let one = |(&gate, &up): (&f32, &f32)| {
        let gate = f64::from(gate);
        gate / (1.0 + (-gate).exp()) * f64::from(up)
    };
    gate.iter().zip(up).map(one).collect()
}

/// Each value as `format` holds it: a result must be exactly this.
pub fn cast(x: &[f32], format: Format) -> Vec<f64> {
    x.iter().map(|&x| format.round(f64::from(x))).collect()
}

/// How far an operation in f32 with a relative error of `relative`, rounded once to `format`, may lie from `want`:
/// 1 ulp + `relative * |want|`.
pub fn elementwise_bounds(format: Format, want: &[f64], relative: f64) -> Vec<f64> {
    want.iter().map(|&want| format.ulp(want) + relative * want.abs()).collect()
}
