//! Memory of the GPU, and memory of the host that the GPU reaches.

use crate::context::{Context, Shared};
use crate::error::Error;
use crate::ledger::{Entry, Kind};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// What is known to be memory: no other type can be, or safe code could name any address.
pub(crate) trait Known {}

impl Known for DeviceMemory {}
impl Known for HostMemory {}
impl Known for ForeignMemory {}

/// Bytes that a GPU reaches at an address of its own.
#[allow(private_bounds, reason = "only this library's types are memory")]
pub trait Memory: Known {
    /// The first byte, as the GPU sees it.
    fn address(&self) -> u64;

    /// How many bytes there are.
    fn bytes(&self) -> u64;

    /// The address of `range`, counted from the first byte.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    fn address_of(&self, range: Range<u64>) -> Result<u64, Error> {
        inside(&range, self.bytes())?;
        Ok(self.address() + range.start)
    }
}

/// Checks that a range lies inside of so many bytes.
fn inside(range: &Range<u64>, bytes: u64) -> Result<(), Error> {
    if range.start <= range.end && range.end <= bytes {
        return Ok(());
    }
    Err(Error::OutOfRange { offset: range.start, count: range.end.saturating_sub(range.start), bytes })
}

/// A size as the host counts; too large for the host is out of memory on a 64-bit one, too.
pub(crate) fn host_size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Memory of a GPU, not shared with other processes. Freed when it is dropped, after the work that the driver knows of:
/// that waits for a resident kernel, too.
pub struct DeviceMemory {
    context: Context,
    address: sys::CUdeviceptr,
    bytes: u64,
    entry: Entry,
}

impl DeviceMemory {
    /// So many bytes, at least one; what is in them is undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] says how much is free.
    pub fn new(context: &Context, bytes: u64) -> Result<DeviceMemory, Error> {
        // The driver has no empty pieces.
        let bytes = bytes.max(1);
        context.take("device memory", bytes, |calls| {
            let mut address = 0;
            // SAFETY: it points at an address of ours.
            unsafe { calls.cuMemAlloc_v2(&raw mut address, host_size(bytes)) }?;
            let entry = context.open(Kind::DeviceMemory);
            Ok(DeviceMemory { context: context.clone(), address, bytes, entry })
        })
    }
}

impl Memory for DeviceMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes at {:#x})", self.bytes, self.address)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and not freed yet.
        self.context.release(&self.entry, |calls| unsafe { calls.cuMemFree_v2(self.address) });
    }
}

/// Memory that somebody else owns.
#[derive(Clone, Copy, Debug)]
pub struct ForeignMemory {
    address: u64,
    bytes: u64,
}

impl ForeignMemory {
    /// So many bytes at an address.
    ///
    /// # Safety
    /// The GPU by whose streams it is used reaches all of them, as long as they are used.
    pub unsafe fn at(address: u64, bytes: u64) -> ForeignMemory {
        ForeignMemory { address, bytes }
    }
}

impl Memory for ForeignMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Pinned memory of the host, which the GPU reads and writes while the host does: all access is by copies, one at a time, and by
/// atomics.
pub struct HostMemory {
    context: Context,
    pointer: Shared<c_void>,
    device_address: sys::CUdeviceptr,
    bytes: u64,
    entry: Entry,
}

impl HostMemory {
    /// So many bytes, at least one, all 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(context: &Context, bytes: u64) -> Result<HostMemory, Error> {
        let bytes = bytes.max(1);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let mut memory = context
            .with(|calls| {
                let mut pointer = ptr::null_mut();
                // SAFETY: it points at an address of ours.
                unsafe { calls.cuMemHostAlloc(&raw mut pointer, host_size(bytes), flags) }?;
                let (context, entry) = (context.clone(), context.open(Kind::HostMemory));
                Ok(HostMemory { context, pointer: Shared(pointer), device_address: 0, bytes, entry })
            })
            .map_err(|f| context.device().memory_refused("pinned host memory", bytes, None, f))?;
        // SAFETY: as many bytes as were just allocated.
        unsafe { memory.pointer.0.cast::<u8>().write_bytes(0, host_size(bytes)) };
        let pointer = memory.pointer.0;
        memory.device_address = context.call(|calls| {
            let mut address = 0;
            // SAFETY: allocated with DEVICEMAP.
            unsafe { calls.cuMemHostGetDevicePointer_v2(&raw mut address, pointer, 0) }?;
            Ok(address)
        })?;
        Ok(memory)
    }

    /// Copies into it, from its byte `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let to = self.host_pointer(offset, from.len())?;
        // SAFETY: inside of the allocation, into which nobody has a reference, since `self` is borrowed alone. What the GPU
        // writes at the same time may be lost, as with any memory that is shared with a device.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Copies out of it, from its byte `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let from = self.host_pointer(offset, to.len())?;
        // SAFETY: as in `write`; all of it was written by `new`.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// The word at byte `offset`, a multiple of 8, as host and GPU share it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, Error> {
        let pointer = self.host_pointer(offset, size_of::<u64>())?.cast::<u64>();
        if !pointer.is_aligned() {
            return Err(Error::OutOfRange { offset, count: size_of::<u64>() as u64, bytes: self.bytes });
        }
        // SAFETY: inside of the allocation, aligned, and lives as long as `self`; the GPU uses atomics or whole words, too.
        Ok(unsafe { AtomicU64::from_ptr(pointer) })
    }

    pub(crate) fn host_pointer(&self, offset: u64, count: usize) -> Result<*mut u8, Error> {
        inside(&(offset..offset.saturating_add(count as u64)), self.bytes)?;
        // SAFETY: `offset` is inside of the allocation.
        Ok(unsafe { self.pointer.0.cast::<u8>().add(host_size(offset)) })
    }
}

impl Memory for HostMemory {
    fn address(&self) -> u64 {
        self.device_address
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} bytes)", self.bytes)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and not freed yet.
        self.context.release(&self.entry, |calls| unsafe { calls.cuMemFreeHost(self.pointer.0) });
    }
}
