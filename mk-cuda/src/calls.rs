//! The functions of the CUDA driver, each called by its name: the lowest level, where nothing is owned.
//!
//! Types and signatures are cudarc's, which are generated from `cuda.h`; the assertions below hold each signature against
//! it. The calls themselves are bound here, all at once and before the first one, for three reasons: cudarc panics where a
//! function is missing, it loads `libcuda.so` (in toolkits a stub) before `libcuda.so.1`, and it returns a Rust enum, which
//! an error code of a newer driver must not be put into.

use crate::error::Failure;
use cudarc::driver::sys;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::ptr;

/// `CUDA_SUCCESS`.
const SUCCESS: c_uint = 0;

/// The name of a code that this driver does not know.
const UNNAMED: &str = "an error without a name";

type GetErrorName = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;

macro_rules! functions {
    ($($name:ident($($arg:ident: $t:ty),*);)*) => {
        /// All functions that are used. Pointers stay good, since the library is never unloaded.
        #[allow(non_snake_case, reason = "the names of cuda.h")]
        pub(crate) struct Calls {
            cuGetErrorName: GetErrorName,
            $($name: unsafe extern "C" fn($($t),*) -> c_uint,)*
        }

        // The signatures are those of the header.
        $(const _: unsafe fn($($t),*) -> sys::CUresult = sys::$name;)*

        #[allow(non_snake_case, reason = "the names of cuda.h")]
        impl Calls {
            /// Finds all functions; else the names of those that the library does not have.
            pub(crate) fn bind(library: &Library) -> Result<Calls, Vec<String>> {
                let mut lacking = Vec::new();
                let names = symbol::<GetErrorName>(library, "cuGetErrorName", &mut lacking);
                $(let $name = symbol(library, stringify!($name), &mut lacking);)*
                if let (Some(cuGetErrorName), $(Some($name),)*) = (names, $($name,)*) {
                    return Ok(Calls { cuGetErrorName, $($name,)* });
                }
                Err(lacking)
            }

            $(
                /// # Safety
                /// What `cuda.h` demands of the arguments.
                #[allow(clippy::too_many_arguments, reason = "those of cuda.h")]
                pub(crate) unsafe fn $name(&self, $($arg: $t),*) -> Result<(), Failure> {
                    // SAFETY: promised by the caller.
                    let code = unsafe { (self.$name)($($arg),*) };
                    self.outcome(stringify!($name), code)
                }
            )*
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut sys::CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: sys::CUdevice);
    cuDeviceGetUuid_v2(uuid: *mut sys::CUuuid, device: sys::CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: sys::CUdevice_attribute, device: sys::CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: sys::CUdevice);
    cuDeviceCanAccessPeer(can: *mut c_int, device: sys::CUdevice, peer: sys::CUdevice);
    cuDeviceGetP2PAttribute(
        value: *mut c_int,
        attribute: sys::CUdevice_P2PAttribute,
        from: sys::CUdevice,
        to: sys::CUdevice
    );
    cuDevicePrimaryCtxRetain(context: *mut sys::CUcontext, device: sys::CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: sys::CUdevice);
    cuCtxGetCurrent(context: *mut sys::CUcontext);
    cuCtxSetCurrent(context: sys::CUcontext);
    cuCtxSynchronize();
    cuCtxEnablePeerAccess(peer: sys::CUcontext, flags: c_uint);
    cuCtxDisablePeerAccess(peer: sys::CUcontext);
    cuModuleLoadData(module: *mut sys::CUmodule, image: *const c_void);
    cuModuleUnload(module: sys::CUmodule);
    cuModuleGetFunction(function: *mut sys::CUfunction, module: sys::CUmodule, name: *const c_char);
    cuFuncLoad(function: sys::CUfunction);
    cuFuncGetAttribute(value: *mut c_int, attribute: sys::CUfunction_attribute, function: sys::CUfunction);
    cuFuncSetAttribute(function: sys::CUfunction, attribute: sys::CUfunction_attribute, value: c_int);
    cuFuncGetParamInfo(function: sys::CUfunction, index: usize, offset: *mut usize, bytes: *mut usize);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: sys::CUfunction,
        threads: c_int,
        shared_bytes: usize
    );
    cuOccupancyMaxActiveClusters(
        clusters: *mut c_int,
        function: sys::CUfunction,
        config: *const sys::CUlaunchConfig
    );
    cuLaunchKernelEx(
        config: *const sys::CUlaunchConfig,
        function: sys::CUfunction,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void
    );
    cuTensorMapEncodeTiled(
        map: *mut sys::CUtensorMap,
        kind: sys::CUtensorMapDataType,
        rank: c_uint,
        address: *mut c_void,
        sizes: *const u64,
        strides: *const u64,
        boxes: *const c_uint,
        steps: *const c_uint,
        interleave: sys::CUtensorMapInterleave,
        swizzle: sys::CUtensorMapSwizzle,
        promotion: sys::CUtensorMapL2promotion,
        fill: sys::CUtensorMapFloatOOBfill
    );
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(address: *mut sys::CUdeviceptr, bytes: usize);
    cuMemFree_v2(address: sys::CUdeviceptr);
    cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostGetDevicePointer_v2(device: *mut sys::CUdeviceptr, address: *mut c_void, flags: c_uint);
    cuMemFreeHost(address: *mut c_void);
    cuMemcpyHtoDAsync_v2(to: sys::CUdeviceptr, from: *const c_void, bytes: usize, stream: sys::CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream);
    cuMemcpyDtoDAsync_v2(to: sys::CUdeviceptr, from: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream);
    cuMemsetD8Async(to: sys::CUdeviceptr, value: c_uchar, bytes: usize, stream: sys::CUstream);
    cuStreamCreate(stream: *mut sys::CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: sys::CUstream);
    cuStreamSynchronize(stream: sys::CUstream);
    cuStreamQuery(stream: sys::CUstream);
    cuStreamWaitEvent(stream: sys::CUstream, event: sys::CUevent, flags: c_uint);
    cuStreamIsCapturing(stream: sys::CUstream, status: *mut sys::CUstreamCaptureStatus);
    cuStreamBeginCapture_v2(stream: sys::CUstream, mode: sys::CUstreamCaptureMode);
    cuStreamEndCapture(stream: sys::CUstream, graph: *mut sys::CUgraph);
    cuGraphInstantiateWithFlags(ready: *mut sys::CUgraphExec, graph: sys::CUgraph, flags: c_ulonglong);
    cuGraphDestroy(graph: sys::CUgraph);
    cuGraphLaunch(ready: sys::CUgraphExec, stream: sys::CUstream);
    cuGraphExecDestroy(ready: sys::CUgraphExec);
    cuEventCreate(event: *mut sys::CUevent, flags: c_uint);
    cuEventDestroy_v2(event: sys::CUevent);
    cuEventRecord(event: sys::CUevent, stream: sys::CUstream);
    cuEventSynchronize(event: sys::CUevent);
    cuEventQuery(event: sys::CUevent);
    cuEventElapsedTime_v2(milliseconds: *mut f32, from: sys::CUevent, to: sys::CUevent);
    cuMemGetAllocationGranularity(
        bytes: *mut usize,
        properties: *const sys::CUmemAllocationProp,
        option: sys::CUmemAllocationGranularity_flags
    );
    cuMemCreate(
        handle: *mut sys::CUmemGenericAllocationHandle,
        bytes: usize,
        properties: *const sys::CUmemAllocationProp,
        flags: c_ulonglong
    );
    cuMemRelease(handle: sys::CUmemGenericAllocationHandle);
    cuMemAddressReserve(
        address: *mut sys::CUdeviceptr,
        bytes: usize,
        alignment: usize,
        wish: sys::CUdeviceptr,
        flags: c_ulonglong
    );
    cuMemAddressFree(address: sys::CUdeviceptr, bytes: usize);
    cuMemMap(
        address: sys::CUdeviceptr,
        bytes: usize,
        offset: usize,
        handle: sys::CUmemGenericAllocationHandle,
        flags: c_ulonglong
    );
    cuMemUnmap(address: sys::CUdeviceptr, bytes: usize);
    cuMemSetAccess(address: sys::CUdeviceptr, bytes: usize, access: *const sys::CUmemAccessDesc, count: usize);
    cuMemExportToShareableHandle(
        shareable: *mut c_void,
        handle: sys::CUmemGenericAllocationHandle,
        kind: sys::CUmemAllocationHandleType,
        flags: c_ulonglong
    );
    cuMemImportFromShareableHandle(
        handle: *mut sys::CUmemGenericAllocationHandle,
        shareable: *mut c_void,
        kind: sys::CUmemAllocationHandleType
    );
    cuMulticastGetGranularity(
        bytes: *mut usize,
        properties: *const sys::CUmulticastObjectProp,
        option: sys::CUmulticastGranularity_flags
    );
    cuMulticastCreate(
        handle: *mut sys::CUmemGenericAllocationHandle,
        properties: *const sys::CUmulticastObjectProp
    );
    cuMulticastAddDevice(handle: sys::CUmemGenericAllocationHandle, device: sys::CUdevice);
    cuMulticastBindMem(
        multicast: sys::CUmemGenericAllocationHandle,
        multicast_offset: usize,
        memory: sys::CUmemGenericAllocationHandle,
        memory_offset: usize,
        bytes: usize,
        flags: c_ulonglong
    );
    cuMulticastUnbind(
        handle: sys::CUmemGenericAllocationHandle,
        device: sys::CUdevice,
        offset: usize,
        bytes: usize
    );
}

impl Calls {
    /// What a call returned.
    fn outcome(&self, call: &'static str, code: c_uint) -> Result<(), Failure> {
        if code == SUCCESS {
            Ok(())
        } else {
            Err(Failure { call, code, name: name(self.cuGetErrorName, code) })
        }
    }
}

/// CUDA's name of a code, by a library that is not known to be whole.
pub(crate) fn name_of(library: &Library, code: c_uint) -> String {
    symbol(library, "cuGetErrorName", &mut Vec::new()).map_or_else(|| UNNAMED.into(), |get| name(get, code))
}

fn name(get: GetErrorName, code: c_uint) -> String {
    let mut name = ptr::null();
    // SAFETY: it takes any code, and writes the address of a string that is never freed, or null.
    let found = unsafe { get(code, &raw mut name) };
    if found != SUCCESS || name.is_null() {
        return UNNAMED.into();
    }
    // SAFETY: not null, and a C string by its contract.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// A function of the library. `T` must be its type in `cuda.h`, which for all but one the assertions above see to.
fn symbol<T: Copy>(library: &Library, name: &str, lacking: &mut Vec<String>) -> Option<T> {
    // SAFETY: the type is that of the header.
    match unsafe { library.get::<T>(name) } {
        Ok(symbol) => Some(*symbol),
        Err(_) => {
            lacking.push(name.into());
            None
        }
    }
}
