//! Tables of plain records, as the bytes that the GPU reads.

use mk_core::Task;

/// A record without padding and without references.
///
/// # Safety
/// Every byte of a value is initialised.
pub unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: integers, without padding: see the assertion.
unsafe impl Plain for Task {}

const _: () = assert!(size_of::<Task>() == 2 + 2 + 4 + 2 * 20 + 2 * 16 + 48);

/// The bytes of a table.
pub fn bytes_of<T: Plain>(table: &[T]) -> &[u8] {
    // SAFETY: all bytes of `T` are initialised, and a byte needs no alignment.
    unsafe { std::slice::from_raw_parts(table.as_ptr().cast(), size_of_val(table)) }
}
