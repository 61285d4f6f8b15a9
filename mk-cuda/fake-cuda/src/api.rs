//! The functions of `cuda.h`: pointers become values and back, and nothing else.
//!
//! Structs and numbers are written down from the header, apart from those of mKernel, so that a wrong layout on either side
//! shows.
#![allow(unsafe_code, reason = "these are functions of C")]
#![allow(non_snake_case, reason = "the names of cuda.h")]

use crate::state::{Done, GRANULARITY, INVALID_VALUE, NOT_SUPPORTED, State, call};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::os::fd::IntoRawFd as _;

type Address = c_ulonglong;
/// Contexts, modules, functions, streams and events are addresses that nobody looks behind.
type Handle = *mut c_void;

/// CUlaunchConfig.
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

/// CUlaunchAttribute.
#[repr(C)]
struct LaunchAttribute {
    id: c_uint,
    pad: c_uint,
    value: [c_uint; 16],
}

impl LaunchConfig {
    /// What its attributes ask for: 1 for pairs of blocks, 2 for an early beginning.
    fn asked(&self) -> Result<u64, u32> {
        let mut asked = 0;
        for i in 0..self.attribute_count as usize {
            let attribute = get(self.attributes.wrapping_add(i))?;
            asked |= match (attribute.id, attribute.value) {
                (4, [2, 1, 1, ..]) if self.grid[0].is_multiple_of(2) => 1,
                (6, [1, ..]) => 2,
                _ => return Err(INVALID_VALUE),
            };
        }
        Ok(asked)
    }
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ALLOCATION_TYPE_PINNED`.
const DESCRIPTOR: c_uint = 1;
const ON_DEVICE: c_uint = 1;
const PINNED: c_uint = 1;

/// `CUmemLocation`.
#[repr(C)]
struct Location {
    kind: c_uint,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: c_uint,
    handle_kinds: c_uint,
    location: Location,
    windows: *mut c_void,
    flags: [c_uchar; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: c_uint,
}

/// `CUmulticastObjectProp`.
#[repr(C)]
struct MulticastProperties {
    devices: c_uint,
    bytes: usize,
    handle_kinds: c_ulonglong,
    flags: c_ulonglong,
}

/// Pinned memory is aligned to pages.
const PAGE: usize = 4096;

fn number(handle: Handle) -> u64 {
    handle.addr() as u64
}

/// Writes a result where the caller wants it.
fn put<T>(to: *mut T, value: T) -> Done {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and by `cuda.h` it points at a `T` of the caller's.
    unsafe { to.write(value) };
    Ok(())
}

fn put_handle(to: *mut Handle, value: u64) -> Done {
    put(to, std::ptr::without_provenance_mut(value as usize))
}

fn put_int(to: *mut c_int, value: u64) -> Done {
    put(to, c_int::try_from(value).map_err(|_| INVALID_VALUE)?)
}

/// What the caller's pointer points at.
fn get<'a, T>(from: *const T) -> Result<&'a T, u32> {
    // SAFETY: null, or by `cuda.h` it points at a `T` of the caller's that lives as long as the call.
    unsafe { from.as_ref() }.ok_or(INVALID_VALUE)
}

/// Text for a buffer of the caller's, which is cut if it is too short.
fn put_text(to: *mut c_char, room: c_int, text: &str) -> Done {
    let room = usize::try_from(room).ok().filter(|r| *r > 0 && !to.is_null()).ok_or(INVALID_VALUE)?;
    let n = text.len().min(room - 1);
    // SAFETY: by `cuda.h` there is room for so many bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), n);
        to.add(n).write(0);
    }
    Ok(())
}

macro_rules! functions {
    ($($name:ident($($arg:ident: $t:ty),*) $f:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $t),*) -> c_uint {
            call(stringify!($name), $f)
        }
    )*};
}

functions! {
    cuDriverGetVersion(version: *mut c_int) |s| put_int(version, s.config.number("driver"));
    cuInit(flags: c_uint) |s| if flags == 0 { s.init() } else { Err(INVALID_VALUE) };
    cuDeviceGetCount(count: *mut c_int) |s| put_int(count, s.devices() as u64);
    cuDeviceGet(device: *mut c_int, ordinal: c_int) |s| put_int(device, s.device(ordinal)? as u64);
    cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) |s| {
        s.device(device)?;
        put_text(name, room, "Fake H200")
    };
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |s| {
        let mut bytes = [0xfa; 16];
        bytes[15] = s.device(device)? as u8;
        put(uuid, bytes)
    };
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) |s| {
        s.device(device)?;
        put_int(value, s.device_attribute(attribute)?)
    };
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |s| {
        let device = s.device(device)?;
        put(bytes, s.memory(device).1 as usize)
    };
    cuDeviceCanAccessPeer(can: *mut c_int, from: c_int, to: c_int) |s| {
        let (from, to) = (s.device(from)?, s.device(to)?);
        put_int(can, s.can_reach(from, to).into())
    };
    cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, from: c_int, to: c_int) |s| {
        let (from, to) = (s.device(from)?, s.device(to)?);
        // Rank, access, native atomics.
        match attribute {
            1 => put_int(value, 0),
            2 => put_int(value, s.can_reach(from, to).into()),
            3 => put_int(value, u64::from(s.can_reach(from, to)) * s.config.number("atomics")),
            _ => Err(INVALID_VALUE),
        }
    };
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) |s| {
        let device = s.device(device)?;
        put_handle(context, s.retain(device))
    };
    cuDevicePrimaryCtxRelease_v2(device: c_int) |s| {
        let device = s.device(device)?;
        s.release(device)
    };
    cuCtxGetCurrent(context: *mut Handle) |s| put_handle(context, s.current_handle());
    cuCtxSetCurrent(context: Handle) |s| s.set_current(number(context));
    cuCtxSynchronize() |s| s.current().map(drop);
    cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) |s| {
        if flags == 0 { s.enable_peer(number(peer)) } else { Err(INVALID_VALUE) }
    };
    cuCtxDisablePeerAccess(peer: Handle) |s| s.disable_peer(number(peer));
    cuModuleLoadData(module: *mut Handle, image: *const c_void) |s| {
        let magic = *get(image.cast::<[u8; 4]>())?;
        put_handle(module, s.load(magic)?)
    };
    cuModuleUnload(module: Handle) |s| s.unload(number(module));
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) |s| {
        get(name)?;
        // SAFETY: not null, and by `cuda.h` a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| INVALID_VALUE)?;
        put_handle(function, s.function(number(module), name)?)
    };
    cuFuncLoad(function: Handle) |s| s.is_function(number(function));
    cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: Handle) |s| {
        put_int(value, s.function_attribute(attribute, number(function))?)
    };
    cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) |s| {
        let bytes = u64::try_from(value).map_err(|_| INVALID_VALUE)?;
        s.allow_shared(attribute, bytes, number(function))
    };
    cuFuncGetParamInfo(function: Handle, index: usize, offset: *mut usize, bytes: *mut usize) |s| {
        let found = s.parameter(number(function), index)?;
        put(offset, 0)?;
        put(bytes, found as usize)
    };
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: Handle,
        threads: c_int,
        shared: usize
    ) |s| {
        let threads = u64::try_from(threads).map_err(|_| INVALID_VALUE)?;
        put_int(blocks, s.occupancy(number(function), threads, shared as u64)?)
    };
    cuOccupancyMaxActiveClusters(clusters: *mut c_int, function: Handle, config: *const LaunchConfig) |s| {
        let c = get(config)?;
        if c.asked()? != 1 {
            return Err(INVALID_VALUE);
        }
        put_int(clusters, s.pairs(number(function), c.block[0].into(), c.shared_bytes.into())?)
    };
    cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: Handle,
        parameters: *mut Handle,
        _extra: *mut Handle
    ) |s| {
        let (parameter, c) = (*get(parameters)?, get(config)?);
        if parameter.is_null() || [c.grid[1], c.grid[2], c.block[1], c.block[2]] != [1; 4] {
            return Err(INVALID_VALUE);
        }
        s.launch(number(function), [c.grid[0], c.block[0], c.shared_bytes], number(c.stream), c.asked()?)
    };
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |s| {
        let (f, t) = s.memory(s.current()?);
        put(free, f as usize)?;
        put(total, t as usize)
    };
    cuMemAlloc_v2(address: *mut Address, bytes: usize) |s| put(address, s.allocate(bytes as u64)?);
    cuMemFree_v2(address: Address) |s| s.free(address);
    cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) |s| {
        s.current()?;
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE).map_err(|_| 2u32)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the size is not 0.
        let memory = unsafe { std::alloc::alloc(layout) };
        if memory.is_null() {
            return Err(2);
        }
        // What is in it is undefined, so that nobody relies on it.
        // SAFETY: as many bytes as were just allocated.
        unsafe { memory.write_bytes(0xa5, bytes) };
        s.space.pinned.insert(memory.expose_provenance() as u64, bytes as u64);
        put(address, memory.cast())
    };
    cuMemHostGetDevicePointer_v2(device: *mut Address, address: *mut c_void, _flags: c_uint) |s| {
        let known = s.space.pinned.contains_key(&number(address));
        if known { put(device, number(address)) } else { Err(INVALID_VALUE) }
    };
    cuMemFreeHost(address: *mut c_void) |s| {
        s.current()?;
        let bytes = s.space.pinned.remove(&number(address)).ok_or(INVALID_VALUE)?;
        let layout = std::alloc::Layout::from_size_align(bytes as usize, PAGE).map_err(|_| INVALID_VALUE)?;
        // SAFETY: allocated above with this layout, and just taken out of the list.
        unsafe { std::alloc::dealloc(address.cast(), layout) };
        Ok(())
    };
    cuMemcpyHtoDAsync_v2(to: Address, from: *const c_void, bytes: usize, stream: Handle) |s| {
        let device = s.device_of_stream(number(stream))?;
        // SAFETY: by `cuda.h` it points at so many bytes.
        let from = unsafe { std::slice::from_raw_parts(get(from.cast::<u8>())?, bytes) };
        s.space.write(to, from, device)
    };
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: Address, bytes: usize, stream: Handle) |s| {
        let device = s.device_of_stream(number(stream))?;
        let mut copy = vec![0; bytes];
        s.space.read(from, &mut copy, device)?;
        get(to.cast::<u8>())?;
        // SAFETY: by `cuda.h` it points at so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr(), to.cast(), bytes) };
        Ok(())
    };
    cuMemcpyDtoDAsync_v2(to: Address, from: Address, bytes: usize, stream: Handle) |s| {
        let device = s.device_of_stream(number(stream))?;
        let mut copy = vec![0; bytes];
        s.space.read(from, &mut copy, device)?;
        s.space.write(to, &copy, device)
    };
    cuTensorMapEncodeTiled(
        map: *mut [u64; 16],
        _kind: c_uint,
        rank: c_uint,
        address: *mut c_void,
        _sizes: *const u64,
        _strides: *const u64,
        _boxes: *const c_uint,
        _steps: *const c_uint,
        _interleave: c_uint,
        _swizzle: c_uint,
        _promotion: c_uint,
        _fill: c_uint
    ) |_| {
        if map.is_null() || address.is_null() || !(1..=5).contains(&rank) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as the caller promises, it points at a map.
        unsafe { map.write([address as u64; 16]) };
        Ok(())
    };
    cuMemsetD8Async(to: Address, value: c_uchar, bytes: usize, stream: Handle) |s| {
        let device = s.device_of_stream(number(stream))?;
        s.space.write(to, &vec![value; bytes], device)
    };
    cuStreamCreate(stream: *mut Handle, _flags: c_uint) |s| put_handle(stream, s.create_stream()?);
    cuStreamDestroy_v2(stream: Handle) |s| s.destroy_stream(number(stream));
    cuStreamSynchronize(stream: Handle) |s| s.device_of_stream(number(stream)).map(drop);
    cuStreamQuery(stream: Handle) |s| s.device_of_stream(number(stream)).map(drop);
    cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) |s| {
        s.device_of_stream(number(stream))?;
        s.is_event(number(event))
    };
    cuStreamIsCapturing(stream: Handle, status: *mut c_uint) |s| {
        put(status, s.is_capturing(number(stream))?.into())
    };
    cuStreamBeginCapture_v2(stream: Handle, _mode: c_uint) |s| s.begin_capture(number(stream));
    cuStreamEndCapture(stream: Handle, graph: *mut Handle) |s| put_handle(graph, s.end_capture(number(stream))?);
    cuGraphInstantiateWithFlags(ready: *mut Handle, graph: Handle, _flags: c_ulonglong) |s| {
        put_handle(ready, s.instantiate(number(graph))?)
    };
    cuGraphDestroy(graph: Handle) |s| s.destroy_graph(number(graph), false);
    cuGraphLaunch(ready: Handle, stream: Handle) |s| s.launch_graph(number(ready), number(stream));
    cuGraphExecDestroy(ready: Handle) |s| s.destroy_graph(number(ready), true);
    cuEventCreate(event: *mut Handle, flags: c_uint) |s| put_handle(event, s.create_event(flags)?);
    cuEventDestroy_v2(event: Handle) |s| s.destroy_event(number(event));
    cuEventRecord(event: Handle, stream: Handle) |s| s.record(number(event), number(stream));
    cuEventSynchronize(event: Handle) |s| s.is_event(number(event));
    cuEventQuery(event: Handle) |s| s.is_event(number(event));
    cuEventElapsedTime_v2(milliseconds: *mut f32, from: Handle, to: Handle) |s| {
        s.elapsed(number(from), number(to))?;
        put(milliseconds, 1.0)
    };
    cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const Properties, _option: c_uint) |s| {
        device_of(s, get(properties)?)?;
        put(bytes, GRANULARITY as usize)
    };
    cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, _flags: c_ulonglong) |s| {
        let properties = get(properties)?;
        let device = device_of(s, properties)?;
        put(handle, s.create(bytes as u64, device, properties.handle_kinds == DESCRIPTOR)?)
    };
    cuMemRelease(handle: u64) |s| s.release_handle(handle);
    cuMemAddressReserve(
        address: *mut Address,
        bytes: usize,
        _alignment: usize,
        _wish: Address,
        _flags: c_ulonglong
    ) |s| put(address, s.reserve(bytes as u64)?);
    cuMemAddressFree(address: Address, bytes: usize) |s| s.unreserve(address, bytes as u64);
    cuMemMap(address: Address, bytes: usize, offset: usize, handle: u64, _flags: c_ulonglong) |s| {
        if offset == 0 { s.map(address, bytes as u64, handle) } else { Err(INVALID_VALUE) }
    };
    cuMemUnmap(address: Address, bytes: usize) |s| s.unmap(address, bytes as u64);
    cuMemSetAccess(address: Address, bytes: usize, access: *const Access, count: usize) |s| {
        let access = get(access)?;
        // To read and to write.
        if count != 1 || access.flags != 3 || access.location.kind != ON_DEVICE {
            return Err(INVALID_VALUE);
        }
        let device = s.device(access.location.id)?;
        s.allow(address, bytes as u64, device)
    };
    cuMemExportToShareableHandle(to: *mut c_int, handle: u64, kind: c_uint, _flags: c_ulonglong) |s| {
        if kind != DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        put(to, s.export(handle)?.into_raw_fd())
    };
    cuMemImportFromShareableHandle(handle: *mut u64, from: Handle, kind: c_uint) |s| {
        if kind != DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        put(handle, s.import(from.addr())?)
    };
    cuMulticastGetGranularity(bytes: *mut usize, properties: *const MulticastProperties, _option: c_uint) |_s| {
        get(properties)?;
        put(bytes, GRANULARITY as usize)
    };
    cuMulticastCreate(handle: *mut u64, properties: *const MulticastProperties) |s| {
        let properties = get(properties)?;
        put(handle, s.create_multicast(properties.devices as usize, properties.bytes as u64)?)
    };
    cuMulticastAddDevice(handle: u64, device: c_int) |s| {
        let device = s.device(device)?;
        s.add_to_multicast(handle, device)
    };
    cuMulticastBindMem(
        handle: u64,
        offset: usize,
        memory: u64,
        memory_offset: usize,
        bytes: usize,
        _flags: c_ulonglong
    ) |s| {
        if (offset, memory_offset) != (0, 0) {
            return Err(INVALID_VALUE);
        }
        s.bind(handle, memory, bytes as u64)
    };
    cuMulticastUnbind(handle: u64, device: c_int, _offset: usize, _bytes: usize) |s| {
        let device = s.device(device)?;
        s.unbind(handle, device)
    };
}

/// The GPU of an allocation's properties, if they are ones that this driver knows.
fn device_of(s: &State, properties: &Properties) -> Result<usize, u32> {
    let known = properties.kind == PINNED && properties.location.kind == ON_DEVICE;
    let plain = properties.handle_kinds <= DESCRIPTOR && properties.windows.is_null();
    if known && plain && properties.flags == [0; 8] {
        s.device(properties.location.id)
    } else {
        Err(INVALID_VALUE)
    }
}

/// Not counted, and never fails: it is asked what the others' failures mean.
#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: c_uint, name: *mut *const c_char) -> c_uint {
    let text = match code {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        46 => c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        200 => c"CUDA_ERROR_INVALID_IMAGE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        209 => c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        217 => c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        401 => c"CUDA_ERROR_ILLEGAL_STATE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        600 => c"CUDA_ERROR_NOT_READY",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        704 => c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        705 => c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        800 => c"CUDA_ERROR_NOT_PERMITTED",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        802 => c"CUDA_ERROR_SYSTEM_NOT_READY",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        999 => c"CUDA_ERROR_UNKNOWN",
        _ => return INVALID_VALUE,
    };
    put(name, text.as_ptr()).err().unwrap_or(0)
}

/// Tells this driver from a real one.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_is_fake() -> c_int {
    1
}
