//! References against values worked out by hand, and a checker that lets nothing through.

use proptest::prelude::*;
use reference::*;

#[test]
fn a_product_is_rows_times_columns() {
    // [1 2 3; 4 5 6] * [7 8; 9 10; 11 12]
    let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
    assert_eq!(matmul(&a, &b, 2, 3, 2), [58.0, 64.0, 139.0, 154.0]);
    let negative = a.map(|x: f32| -x);
    assert_eq!(abs_matmul(&negative, &b, 2, 3, 2), [58.0, 64.0, 139.0, 154.0]);
    assert_eq!(matmul(&[], &[], 2, 0, 2), [0.0; 4]);
}

#[test]
fn a_product_is_summed_in_f64() {
    // In f32, 2^24 + 1 - 2^24 is 0.
    let big = 2f32.powi(24);
    assert_eq!(matmul(&[1.0, 1.0, 1.0], &[big, 1.0, -big], 1, 3, 1), [1.0]);
}

#[test]
fn swiglu_at_known_points() {
    let got = swiglu(&[0.0, 1.0, -1000.0, 1000.0], &[5.0, 2.0, 3.0, 0.5]);
    assert_eq!(got[0], 0.0);
    assert!((got[1] - 2.0 * 0.731_058_578_630_004_9).abs() < 1e-15);
    assert_eq!(got[2].abs(), 0.0);
    assert_eq!(got[3], 500.0);
}

#[test]
fn bounds_follow_the_formula() {
    let bounds = matmul_bounds(Format::F16, &[1.0], &[2.0], 8);
    assert_eq!(bounds, [2f64.powi(-10) + 8.0 * 2f64.powi(-24) * 2.0]);
    assert_eq!(elementwise_bounds(Format::F32, &[-4.0], 0.5), [2f64.powi(-21) + 2.0]);
}

#[test]
fn ulps_at_the_ends_of_the_range() {
    assert_eq!(Format::Bf16.ulp(0.99), 2f64.powi(-8));
    assert_eq!(Format::Bf16.ulp(0.0), 2f64.powi(-133));
    assert_eq!(Format::F32.ulp(1e-45), 2f64.powi(-149));
    assert_eq!(Format::F16.ulp(65_504.0), 32.0);
    assert!(Format::F16.ulp(f64::NAN).is_infinite());
    assert_eq!(Format::F32.overflow(), f64::from(f32::MAX) + 2f64.powi(103));
}

fn verdict(format: Format, got: f32, want: f64, bound: f64) -> bool {
    check(format, &[got], &[want], &[bound]).is_ok()
}

#[test]
fn a_nan_is_right_only_where_the_reference_has_one() {
    let nan = (f32::NAN, f64::NAN);
    assert!(verdict(Format::Bf16, nan.0, nan.1, f64::INFINITY));
    assert!(!verdict(Format::Bf16, nan.0, 1.0, 10.0));
    assert!(!verdict(Format::Bf16, 1.0, nan.1, f64::INFINITY));
    assert!(!verdict(Format::Bf16, nan.0, f64::INFINITY, f64::INFINITY));
    assert!(!verdict(Format::Bf16, 2.0, 1.0, f64::NAN));
}

/// 8 products of +2e38 and 8 of -2e38 are 0 in f64; in f32 a partial sum overflows, and infinity - infinity is a NaN.
#[test]
fn where_a_partial_sum_overflows_anything_is_right() {
    let a = [2e38f32; 16];
    let b: [f32; 16] = std::array::from_fn(|i| if i < 8 { 1.0 } else { -1.0 });
    let (want, abs) = (matmul(&a, &b, 1, 16, 1), abs_matmul(&a, &b, 1, 16, 1));
    assert_eq!(want, [0.0]);
    let bounds = matmul_bounds(Format::Bf16, &want, &abs, 16);
    assert_eq!(bounds, [f64::INFINITY]);
    for got in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, 1e38] {
        assert!(verdict(Format::Bf16, got, want[0], bounds[0]), "{got}");
        assert_eq!(Element { index: 0, got, want: 0.0, bound: bounds[0] }.error(Format::Bf16), 0.0);
    }
    // Only there: half of the largest number cannot overflow.
    let half = f64::from(f32::MAX) / 2.0;
    assert!(matmul_bounds(Format::Bf16, &[0.0], &[half], 16)[0] < half);
    assert_eq!(matmul_bounds(Format::Bf16, &[0.0], &[f64::from(f32::MAX)], 1), [f64::INFINITY]);
    // An infinity among the operands is no overflow: the result is known.
    let bounds = matmul_bounds(Format::Bf16, &[f64::INFINITY], &[f64::INFINITY], 1);
    assert!(verdict(Format::Bf16, f32::INFINITY, f64::INFINITY, bounds[0]));
    assert!(!verdict(Format::Bf16, 1.0, f64::INFINITY, bounds[0]));
    assert!(!verdict(Format::Bf16, f32::NAN, f64::INFINITY, bounds[0]));
}

#[test]
fn an_infinity_is_right_only_where_the_reference_leaves_the_range() {
    let inf = f32::INFINITY;
    assert!(verdict(Format::F16, inf, f64::INFINITY, f64::INFINITY));
    assert!(!verdict(Format::F16, -inf, f64::INFINITY, f64::INFINITY));
    assert!(!verdict(Format::F16, 1.0, f64::INFINITY, f64::INFINITY));
    assert!(verdict(Format::F16, inf, 70_000.0, 64.0));
    assert!(verdict(Format::F16, inf, 65_510.0, 32.0));
    assert!(!verdict(Format::F16, -inf, 70_000.0, 64.0));
    assert!(!verdict(Format::F16, inf, 60_000.0, 32.0));
    assert!(!verdict(Format::F16, 65_504.0, 70_000.0, 64.0));
    assert!(!verdict(Format::Bf16, inf, 70_000.0, 64.0));
}

#[test]
fn the_worst_element_is_named_and_a_nan_is_the_worst() {
    let want = [1.0, 1.0, 1.0, 1.0];
    let error = check(Format::F32, &[1.0, 1.5, f32::NAN, 9.0], &want, &[0.1; 4]).unwrap_err();
    let Mismatch::Elements { worst, wrong, of } = &error else { panic!("{error}") };
    assert_eq!((worst.index, *wrong, *of), (2, 3, 4));
    let error = check(Format::F32, &[1.0, 1.5, 1.0, 9.0], &want, &[0.1; 4]).unwrap_err();
    assert_eq!(error.to_string(), "element 3 is 9, not 1 (allowed difference 1e-1); 2 of 4 are wrong");
    let best = check(Format::F32, &[1.0, 1.05, 1.0, 1.0], &want, &[0.1; 4]).unwrap().unwrap();
    assert_eq!(best.index, 1);
}

#[test]
fn a_bound_is_met_by_equality_and_lengths_must_agree() {
    assert!(verdict(Format::F32, 1.5, 1.0, 0.5));
    assert!(verdict(Format::F32, 1.0, 1.0, 0.0));
    assert!(!verdict(Format::F32, 1.25, 1.0, 0.0));
    assert_eq!(check(Format::F32, &[1.0], &[], &[]), Err(Mismatch::Lengths([1, 0, 0])));
    assert_eq!(check(Format::F32, &[], &[], &[]), Ok(None));
}

#[test]
fn random_numbers_are_uniform_and_independent_of_how_they_are_asked_for() {
    let block = uniform_block(3, 1, [10, 20], [50, 40]);
    assert_eq!(block[7 * 40 + 9], uniform(3, 1, 17, 29));
    let n = block.len() as f32;
    let mean = block.iter().sum::<f32>() / n;
    let variance = block.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
    // The mean of 2000 numbers has a standard deviation of 0.013; the variance is 1/3.
    assert!(mean.abs() < 0.05 && (variance - 1.0 / 3.0).abs() < 0.03, "{mean} {variance}");
    assert!(block.iter().all(|x| (-1.0..1.0).contains(x)));
}

#[test]
fn every_coordinate_counts() {
    let base = uniform(1, 2, 3, 4);
    let others = [
        uniform(2, 2, 3, 4),
        uniform(1, 3, 3, 4),
        uniform(1, 2, 4, 4),
        uniform(1, 2, 3, 5),
        uniform(1, 2, 4, 3),
    ];
    assert!(others.iter().all(|&x| x != base));
    assert!(uniform(u64::MAX, u64::MAX, u64::MAX, u64::MAX).abs() <= 1.0);
}

proptest! {
    /// The nearest of two neighbours, found by looking at both.
    #[test]
    fn rounding_takes_the_nearest_neighbour(bits: u32) {
        let x = f64::from(f32::from_bits(bits));
        prop_assume!(!x.is_nan());
        let down = f64::from(f32::from_bits(bits & 0xffff_0000));
        let up = f64::from(f32::from_bits((bits & 0xffff_0000).wrapping_add(0x1_0000)));
        let rounded = Format::Bf16.round(x);
        if up.is_finite() {
            let nearest = (x - down).abs().min((x - up).abs());
            prop_assert_eq!((x - rounded).abs(), nearest);
            prop_assert!(rounded == down || rounded == up);
        }
        prop_assert_eq!(Format::F32.round(x), x);
        prop_assert_eq!(Format::F16.round(Format::F16.round(x)), Format::F16.round(x));
    }
}
