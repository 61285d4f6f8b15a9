//! What the handlers compute, against f64.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Memory, assert_product, format, random};
use mk_compute::*;
use mk_core::*;
use proptest::prelude::*;
use reference::Format;

const R0: RegionId = RegionId(0);
const R1: RegionId = RegionId(1);
const R2: RegionId = RegionId(2);

/// The whole of a product, in tiles that are cut at these rows and columns.
fn tiled_product(a: &Tensor, b: &Tensor, rows: &[u64], cols: &[u64]) -> Tensor {
    // Every byte that no tile writes stays NaN.
    let mut c = Tensor::zeros(a.dtype, a.rows, b.cols);
    c.bytes.fill(0xff);
    let mut memory = Memory::new(vec![a.clone(), b.clone(), c]);
    for row in rows.windows(2) {
        for col in cols.windows(2) {
            let args = GemmArgs {
                a: R0,
                b: R1,
                c: R2,
                rows: (row[1] - row[0]) as u16,
                cols: (col[1] - col[0]) as u16,
                a_row: row[0],
                c_row: row[0],
                col: col[0],
                k: a.cols,
            };
            memory.run(&Gemm, &args).unwrap();
        }
    }
    memory.tensors.remove(2)
}

/// Cuts `0..len` at every multiple of `size`.
fn even_cuts(len: u64, size: u64) -> Vec<u64> {
    (0..len.div_ceil(size)).map(|i| i * size).chain([len]).collect()
}

#[test]
fn a_product_is_right_at_every_edge_of_a_tile() {
    for dtype in [DType::Bf16, DType::F16] {
        for (m, n) in [(1, 8), (1, 256), (128, 8), (127, 248), (129, 264), (64, 1), (257, 520)] {
            for k in [1, 8, 63, 64, 65, 192, 320] {
                let (a, b) = (random(dtype, 1, 0, m, k), random(dtype, 1, 1, k, n));
                let c = tiled_product(&a, &b, &even_cuts(m, 128), &even_cuts(n, 256));
                assert_product(&c, &a, &b);
            }
        }
    }
}

#[test]
fn a_sum_of_no_terms_is_zero() {
    let (a, b) = (Tensor::zeros(DType::F16, 3, 0), Tensor::zeros(DType::F16, 0, 8));
    let c = tiled_product(&a, &b, &[0, 3], &[0, 8]);
    assert_eq!(c, Tensor::zeros(DType::F16, 3, 8));
}

#[test]
fn integers_whose_sums_are_exact_come_out_exact() {
    // |sum| <= 320 * 8 * 8 < 2^24, and below 2^11 after scaling down columns to +-1: every fp16 result is exact.
    let int = |t: u64, range: f32, r, c| {
        let x: Vec<f32> =
            reference::uniform_block(5, t, [0, 0], [r, c]).iter().map(|x| (x * range).round()).collect();
        Tensor::from_f32(DType::F16, r, c, &x)
    };
    let (a, b) = (int(0, 4.0, 40, 320), int(1, 1.0, 320, 24));
    let c = tiled_product(&a, &b, &[0, 40], &[0, 24]);
    let want = reference::matmul(&a.to_f32(), &b.to_f32(), 40, 320, 24);
    assert!(want.iter().all(|x| x.abs() <= 2048.0));
    assert_eq!(c.to_f32().iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), want);
}

#[test]
fn nan_and_infinity_reach_exactly_the_elements_that_depend_on_them() {
    let (mut a, mut b) = (random(DType::Bf16, 2, 0, 20, 130), random(DType::Bf16, 2, 1, 130, 16));
    DType::Bf16.store(&mut a.bytes, 3 * 130 + 100, f32::NAN);
    DType::Bf16.store(&mut b.bytes, 64 * 16 + 5, f32::INFINITY);
    let c = tiled_product(&a, &b, &[0, 7, 20], &[0, 16]);
    // An infinite term makes an infinite sum, and 0 * infinity or NaN a NaN: the reference knows which.
    assert_product(&c, &a, &b);
    let got = c.to_f32();
    for (i, x) in got.iter().enumerate() {
        let (row, col) = (i / 16, i % 16);
        assert_eq!(x.is_nan(), row == 3, "row {row}, column {col}");
        assert_eq!(x.is_infinite(), row != 3 && col == 5, "row {row}, column {col}");
    }
    let nan = &c.bytes[3 * 16 * 2..][..2];
    assert_eq!(nan, 0x7fffu16.to_le_bytes(), "a stored NaN has one form");
}

#[test]
fn blocks_are_added_in_ascending_order() {
    // 2^24 + 1 is 2^24 in f32, so what is left of 1 + 2^24 - 2^24 tells which was added first.
    let at = |terms: &[(usize, f32)]| {
        let mut x = vec![0.0; 192];
        terms.iter().for_each(|&(i, v)| x[i] = v);
        let a = Tensor::from_f32(DType::Bf16, 1, 192, &x);
        let b = Tensor::from_f32(DType::Bf16, 192, 1, &[1.0; 192]);
        tiled_product(&a, &b, &[0, 1], &[0, 1]).to_f32()[0]
    };
    let big = 2f32.powi(24);
    assert_eq!(at(&[(0, big), (64, 1.0), (128, -big)]), 0.0);
    assert_eq!(at(&[(0, big), (64, -big), (128, 1.0)]), 1.0);
    // Inside a block the sum is complete before it is added to the others: 1 - 2^24 is exact.
    assert_eq!(at(&[(0, big), (64, 1.0), (65, -big)]), 1.0);
}

/// Borders between 0 and `len`, at most `size` apart.
fn cuts(len: u64, size: u64) -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(1..=size, 1..=len as usize).prop_map(move |sizes| {
        let mut cuts = vec![0];
        for s in sizes.into_iter().chain(std::iter::repeat_n(size, len as usize)) {
            let last = cuts[cuts.len() - 1];
            if last < len {
                cuts.push(len.min(last + s));
            }
        }
        cuts
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn bits_do_not_depend_on_how_a_product_is_cut(rows in cuts(130, 128), cols in cuts(48, 256), k in 1u64..200, seed: u64, half: bool) {
        let dtype = if half { DType::F16 } else { DType::Bf16 };
        let (a, b) = (random(dtype, seed, 0, 130, k), random(dtype, seed, 1, k, 48));
        let whole = tiled_product(&a, &b, &even_cuts(130, 128), &even_cuts(48, 256));
        prop_assert_eq!(tiled_product(&a, &b, &rows, &cols).bytes, whole.bytes);
    }
}

/// Runs an elementwise task on the inner rectangle of tensors that are larger than it, and gives that back; what lies
/// around it must stay as it was.
fn inner(handler: &impl DynHandler, args: &impl DeviceAbi, inputs: Vec<Tensor>, dtype: DType) -> Tensor {
    let mut out = Tensor::zeros(dtype, 40, 30);
    out.bytes.fill(0x5a);
    let canary = out.clone();
    let mut memory = Memory::new(inputs.into_iter().chain([out]).collect());
    memory.run(handler, args).unwrap();
    let out = memory.tensors.pop().unwrap();
    let result = out.slice(5, 33, 3, 17);
    let mut around = out;
    around.paste(5, 3, &canary.slice(5, 33, 3, 17));
    assert_eq!(around, canary, "nothing around the rectangle was written");
    result
}

/// The inputs' rectangle.
fn source(t: &Tensor) -> Vec<f32> {
    t.slice(2, 33, 4, 17).to_f32()
}

const FLOATS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

fn assert_close(got: &Tensor, want: &[f64], relative: f64) {
    let format = format(got.dtype);
    let bounds = reference::elementwise_bounds(format, want, relative);
    reference::check(format, &got.to_f32(), want, &bounds).unwrap();
}

#[test]
fn add_scale_and_swiglu_are_right_to_an_ulp() {
    for dtype in FLOATS {
        let (x, y) = (random(dtype, 8, 0, 40, 30), random(dtype, 8, 1, 40, 30));
        let (rows, cols, src_row, src_col, dst_row, dst_col) = (33, 17, 2, 4, 5, 3);
        let add = AddArgs { x: R0, y: R1, dst: R2, rows, cols, src_row, src_col, dst_row, dst_col };
        let sum = inner(&Add, &add, vec![x.clone(), y.clone()], dtype);
        assert_close(&sum, &reference::add(&source(&x), &source(&y)), 0.0);

        let scale =
            ScaleArgs { src: R0, dst: R1, factor: -3.7, rows, cols, src_row, src_col, dst_row, dst_col };
        let scaled = inner(&Scale, &scale, vec![x.clone()], dtype);
        assert_close(&scaled, &reference::scale(&source(&x), -3.7), 0.0);

        let swiglu = SwigluArgs { gate: R0, up: R1, dst: R2, rows, cols, src_row, src_col, dst_row, dst_col };
        let gated = inner(&Swiglu, &swiglu, vec![x.clone(), y.clone()], dtype);
        // The exponential, a sum, a quotient and a product in f32: a few units in its last place.
        assert_close(&gated, &reference::swiglu(&source(&x), &source(&y)), 8.0 * 2f64.powi(-24));
    }
}

#[test]
fn swiglu_has_its_limits_at_the_ends() {
    let gates = [-1e30, -200.0, 0.0, 200.0, f32::INFINITY, f32::NAN];
    let gate = Tensor::from_f32(DType::F32, 1, 6, &gates);
    let up = Tensor::from_f32(DType::F32, 1, 6, &[2.0; 6]);
    let mut memory = Memory::new(vec![gate, up, Tensor::zeros(DType::F32, 1, 6)]);
    let args = SwigluArgs {
        gate: R0,
        up: R1,
        dst: R2,
        rows: 1,
        cols: 6,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    };
    memory.run(&Swiglu, &args).unwrap();
    let got = memory.tensors[2].to_f32();
    assert_eq!(got[..5], [0.0, 0.0, 0.0, 400.0, f32::INFINITY]);
    assert!(got[5].is_nan());
}

/// The upper half of every f32 pattern, with lower halves around the ties of both 16-bit types.
#[test]
fn a_cast_is_exact_rounding_for_every_pattern() {
    for low in [0x0000u32, 0x0001, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff] {
        let x: Vec<f32> = (0..=0xffffu32).map(|high| f32::from_bits(high << 16 | low)).collect();
        // `store` would make NaNs canonical: the bytes as they are.
        let bytes = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let src = Tensor { dtype: DType::F32, rows: 256, cols: 256, bytes };
        for dtype in FLOATS {
            let mut memory = Memory::new(vec![src.clone(), Tensor::zeros(dtype, 256, 256)]);
            let args = CastArgs {
                src: R0,
                dst: R1,
                rows: 256,
                cols: 256,
                src_row: 0,
                src_col: 0,
                dst_row: 0,
                dst_col: 0,
            };
            memory.run(&Cast, &args).unwrap();
            let got = memory.tensors[1].to_f32();
            for ((&got, want), &x) in got.iter().zip(reference::cast(&x, format(dtype))).zip(&x) {
                let same = if want.is_nan() {
                    got.is_nan()
                } else {
                    f64::from(got) == want && got.is_sign_negative() == x.is_sign_negative()
                };
                assert!(same, "{x:e} ({:#010x}) as {dtype} is {want:e}, not {got:e}", x.to_bits());
            }
        }
    }
}

#[test]
fn a_cast_widens_without_loss() {
    for (dtype, format) in [(DType::Bf16, Format::Bf16), (DType::F16, Format::F16)] {
        let src = random(dtype, 4, 0, 8, 8);
        let mut memory = Memory::new(vec![src.clone(), Tensor::zeros(DType::F32, 8, 8)]);
        let args =
            CastArgs { src: R0, dst: R1, rows: 8, cols: 8, src_row: 0, src_col: 0, dst_row: 0, dst_col: 0 };
        memory.run(&Cast, &args).unwrap();
        assert_eq!(memory.tensors[1].to_f32(), src.to_f32());
        assert_eq!(memory.tensors[1].to_f32().map_round(format), src.to_f32());
    }
}

trait MapRound {
    fn map_round(&self, format: Format) -> Vec<f32>;
}
impl MapRound for Vec<f32> {
    fn map_round(&self, format: Format) -> Vec<f32> {
        reference::cast(self, format).iter().map(|&x| x as f32).collect()
    }
}

/// Every 16 bits once: each NaN of the 16-bit types, and each upper half of one of fp32.
#[test]
fn a_copy_keeps_every_bit() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in DType::ALL {
        let cols = bytes.len() as u64 / 256 / dtype.bytes();
        let src = Tensor { dtype, rows: 256, cols, bytes: bytes.clone() };
        let mut memory = Memory::new(vec![src.clone(), Tensor::zeros(dtype, 258, cols + 3)]);
        let at = CopyRectArgs {
            src: R0,
            dst: R1,
            rows: 256,
            cols: cols as u32,
            src_row: 0,
            src_col: 0,
            dst_row: 1,
            dst_col: 2,
        };
        memory.run(&Copy, &at).unwrap();
        let mut want = Tensor::zeros(dtype, 258, cols + 3);
        want.paste(1, 2, &src);
        assert_eq!(memory.tensors, [src, want]);
    }
}

#[test]
fn a_copy_may_stay_in_its_region() {
    let x = random(DType::F16, 7, 0, 12, 20);
    let mut memory = Memory::new(vec![x.clone()]);
    let args =
        CopyRectArgs { src: R0, dst: R0, rows: 5, cols: 9, src_row: 1, src_col: 2, dst_row: 6, dst_col: 11 };
    memory.run(&Copy, &args).unwrap();
    let mut want = x.clone();
    want.paste(6, 11, &x.slice(1, 5, 2, 9));
    assert_eq!(memory.tensors, [want]);
}

#[test]
fn integers_are_added_as_integers() {
    let ints = |v: &[i32]| Tensor {
        dtype: DType::I32,
        rows: 1,
        cols: v.len() as u64,
        bytes: v.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    let (x, y) = (ints(&[1 << 24, i32::MAX, -5]), ints(&[1, 1, 5]));
    let mut memory = Memory::new(vec![x, y, Tensor::zeros(DType::I32, 1, 3)]);
    let args =
        AddArgs { x: R0, y: R1, dst: R2, rows: 1, cols: 3, src_row: 0, src_col: 0, dst_row: 0, dst_col: 0 };
    memory.run(&Add, &args).unwrap();
    assert_eq!(memory.tensors[2], ints(&[(1 << 24) + 1, i32::MIN, 0]));
}

#[test]
fn elementwise_tasks_may_work_in_place() {
    let (x, y) = (random(DType::F32, 6, 0, 9, 9), random(DType::F32, 6, 1, 9, 9));
    let at = (0, 0, 0, 0);
    let mut memory = Memory::new(vec![x.clone(), y.clone()]);
    let (src_row, src_col, dst_row, dst_col) = at;
    let args = AddArgs { x: R0, y: R1, dst: R0, rows: 9, cols: 9, src_row, src_col, dst_row, dst_col };
    memory.run(&Add, &args).unwrap();
    let want: Vec<f32> = x.to_f32().iter().zip(y.to_f32()).map(|(x, y)| x + y).collect();
    assert_eq!(memory.tensors[0].to_f32(), want);
    assert_eq!(memory.tensors[1], y);
}
