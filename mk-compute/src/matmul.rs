//! A matrix product on the CPU, with bits that do not depend on how the result is cut into tiles.

/// A dense, row-major part of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// From its first element on.
    pub(crate) values: &'a [f32],
    /// Elements from one row to the next.
    pub(crate) stride: usize,
}

/// `c += a * b` with `a` of `m x k`, `b` of `k x n` and `c` of `m x n`, dense. The product is complete, in f32,
/// before it is added.
///
/// For `k` up to 64 each element of the product is one chain over `k` in ascending order, whatever `m` and `n` are:
/// that is what makes the bits of a sum of such products independent of tile shapes.
///
/// # Panics
/// If a part is too short.
#[allow(unsafe_code)]
pub(crate) fn add_product(m: usize, n: usize, k: usize, a: Part<'_>, b: Part<'_>, c: &mut [f32]) {
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    assert!(a.stride >= k && a.values.len() >= (m - 1) * a.stride + k, "a holds m x k elements");
    assert!(b.stride >= n && b.values.len() >= (k - 1) * b.stride + n, "b holds k x n elements");
    assert!(c.len() == m * n, "c holds m x n elements");
    let (rsa, rsb, rsc) = (a.stride as isize, b.stride as isize, n as isize);
    // SAFETY: the three asserts above keep every element that sgemm touches inside its slice; `c` is borrowed
    // mutably, so it overlaps neither `a` nor `b`.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a.values.as_ptr(),
            rsa,
            1,
            b.values.as_ptr(),
            rsb,
            1,
            1.0,
            c.as_mut_ptr(),
            rsc,
            1,
        );
    }
}
