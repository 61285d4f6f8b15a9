//! cuBLAS, loaded where it is installed: what everybody has.

#![allow(unsafe_code, reason = "a library in C")]

use crate::error::{Exit, Failure};
use cudarc::cublas::sys;
use mk_core::{DType, Explanation};
use mk_kernel::driver::{Context, DeviceMemory, Memory as _, Stream};

/// Bytes that NVIDIA recommends for Hopper.
const WORKSPACE_BYTES: u64 = 32 << 20;

/// See the module.
pub(in crate::commands::bench) struct Cublas {
    handle: sys::cublasHandle_t,
    context: Context,
    _workspace: DeviceMemory,
}

/// `C = A * B`, all of them row-major and without gaps.
#[derive(Clone, Copy)]
pub(in crate::commands::bench) struct Product {
    /// Rows of A and C, columns of B and C, and what is summed over.
    pub(in crate::commands::bench) shape: [u64; 3],
    pub(in crate::commands::bench) dtype: DType,
    /// Addresses of A, B and C.
    pub(in crate::commands::bench) at: [u64; 3],
}

impl Cublas {
    /// What it starts is behind all work of the stream.
    ///
    /// # Errors
    /// It is not installed, or refuses.
    pub(in crate::commands::bench) fn new(context: &Context, stream: &Stream) -> Result<Cublas, Failure> {
        // SAFETY: it only opens the library and closes it again.
        if !unsafe { sys::is_culib_present() } {
            return Err(failed(Exit::Missing, "cuBLAS is not installed", "no libcublas.so"));
        }
        let workspace = DeviceMemory::new(context, WORKSPACE_BYTES)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: it points at a handle of ours, and the context is current.
        context
            .while_current(|| done("cublasCreate", unsafe { sys::cublasCreate_v2(&raw mut handle) }))??;
        let cublas = Cublas { handle, context: context.clone(), _workspace: workspace };
        let at = std::ptr::with_exposed_provenance_mut(stream.address() as usize);
        // SAFETY: the stream outlives this, as the caller's runner does.
        cublas.call("cublasSetStream", || unsafe { sys::cublasSetStream_v2(handle, at) })?;
        let at = std::ptr::with_exposed_provenance_mut(cublas._workspace.address() as usize);
        // SAFETY: it is as large as is said, and lives as long as the handle.
        cublas.call("cublasSetWorkspace", || unsafe {
            sys::cublasSetWorkspace_v2(handle, at, WORKSPACE_BYTES as usize)
        })?;
        Ok(cublas)
    }

    /// From now on it plans for so many SMs.
    pub(in crate::commands::bench) fn for_sms(&self, sms: u16) -> Result<(), Failure> {
        // SAFETY: it only takes a number.
        self.call("cublasSetSmCountTarget", || unsafe {
            sys::cublasSetSmCountTarget(self.handle, sms.into())
        })
    }

    /// `13.1.0`.
    pub(in crate::commands::bench) fn version(&self) -> Result<String, Failure> {
        let mut version = 0;
        // SAFETY: it points at a number of ours.
        self.call("cublasGetVersion", || unsafe { sys::cublasGetVersion_v2(self.handle, &raw mut version) })?;
        Ok(format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100))
    }

    /// Starts it.
    pub(in crate::commands::bench) fn start(&self, product: &Product) -> Result<(), Failure> {
        let (one, zero) = (1f32, 0f32);
        let [m, n, k] = product.shape.map(|x| x as i32);
        let [a, b, c] = product.at.map(|x| std::ptr::with_exposed_provenance_mut(x as usize));
        let numbers = match product.dtype {
            DType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            _ => sys::cudaDataType::CUDA_R_16F,
        };
        let plain = sys::cublasOperation_t::CUBLAS_OP_N;
        // SAFETY: it takes matrices by column, so it is given the transposed ones: C' = B' * A'. The caller's memory is as
        // large as the shape says.
        self.call("cublasGemmEx", || unsafe {
            sys::cublasGemmEx(
                self.handle,
                plain,
                plain,
                n,
                m,
                k,
                (&raw const one).cast(),
                b,
                numbers,
                n,
                a,
                numbers,
                k,
                (&raw const zero).cast(),
                c,
                numbers,
                n,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        })
    }

    fn call(&self, name: &str, f: impl FnOnce() -> sys::cublasStatus_t) -> Result<(), Failure> {
        self.context.while_current(|| done(name, f()))?
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: it was made by `new`, and nothing uses it any more. What it returns helps nobody here.
        let _ = self.context.while_current(|| unsafe { sys::cublasDestroy_v2(self.handle) });
    }
}

fn done(name: &str, status: sys::cublasStatus_t) -> Result<(), Failure> {
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(failed(Exit::Internal, "cuBLAS refuses", &format!("{name} gave {other:?}"))),
    }
}

fn failed(exit: Exit, message: &str, given: &str) -> Failure {
    let says = Explanation {
        kind: "cublas",
        message: message.into(),
        given: given.into(),
        allowed: "libcublas.so of CUDA 13 where the loader finds it".into(),
        hint: "install cuBLAS (the CUDA toolkit, or the wheel nvidia-cublas), or name its folder in LD_LIBRARY_PATH".into(),
    };
    Failure::new(exit, says)
}
