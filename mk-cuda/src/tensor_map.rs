//! Tensor maps: how the tensor memory accelerator finds boxes of a matrix.

use crate::context::Context;
use crate::error::Error;
use cudarc::driver::sys;
use mk_core::DType;
use std::ffi::c_void;

/// A matrix in the GPU's memory, in rotating copies.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Where its first copy begins.
    pub address: u64,
    /// Of its elements.
    pub dtype: DType,
    /// Rows.
    pub rows: u64,
    /// Columns, in elements.
    pub cols: u64,
    /// How many copies there are.
    pub copies: u32,
    /// From one row to the next.
    pub pitch_bytes: u64,
    /// From one copy to the next.
    pub copy_bytes: u64,
}

/// A tensor map, known to the hardware only. All 0: no map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodedMap(pub [u64; 16]);

/// Columns of a box: what a 128-byte swizzle is wide, in elements of two bytes.
const BOX_COLS: u32 = 64;

/// A map of boxes of `box_rows` rows and 64 columns with a 128-byte swizzle; what lies outside of the matrix is read as 0 and
/// not written. All 0 for a matrix that no box can be taken from: other types than 16-bit floats, no elements.
///
/// # Errors
/// [`Error::Call`] where the driver refuses the matrix: an address or pitch that is no multiple of 16 bytes, among others.
pub fn encode(context: &Context, matrix: &Matrix, box_rows: u32) -> Result<EncodedMap, Error> {
    let kind = match matrix.dtype {
        DType::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        DType::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        _ => return Ok(EncodedMap::default()),
    };
    if matrix.rows == 0 || matrix.cols == 0 {
        return Ok(EncodedMap::default());
    }
    let sizes = [matrix.cols, matrix.rows, matrix.copies.into()];
    let (strides, boxes, steps) =
        ([matrix.pitch_bytes, matrix.copy_bytes], [BOX_COLS, box_rows, 1], [1u32; 3]);
    context.call(|calls| {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: it points at a map of ours; sizes, strides, boxes and steps are as many as the rank says.
        unsafe {
            calls.cuTensorMapEncodeTiled(
                &raw mut map,
                kind,
                3,
                matrix.address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }?;
        Ok(EncodedMap(map.opaque))
    })
}
