//! Memory that is allocated and mapped to addresses in two steps, so that other GPUs and other processes can map it, too.

use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Failure, code};
use crate::ledger::{Entry, Kind};
use crate::memory::{Known, Memory, host_size};
use cudarc::driver::sys;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::Arc;

/// How memory is given to other processes: by a file descriptor.
const SHARED: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const PRIVATE: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;

/// Memory of a GPU without an address. Clones are the same memory; it is freed when the last of them, and the last mapping
/// in any process, is gone.
#[derive(Clone)]
pub struct Allocation {
    inner: Arc<Physical>,
}

struct Physical {
    context: Context,
    handle: sys::CUmemGenericAllocationHandle,
    bytes: u64,
    origin: Origin,
    entry: Entry,
}

/// How memory came to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Allocated for this process only.
    Private,
    /// Allocated, to be given to others.
    Shared,
    /// Allocated by another process.
    Imported,
}

impl Allocation {
    /// At least so many bytes, for this process only; what is in them is undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] says how much is free.
    pub fn new(context: &Context, bytes: u64) -> Result<Allocation, Error> {
        Allocation::create(context, bytes, Origin::Private)
    }

    /// The same, to be given to other processes by [`Allocation::export`].
    ///
    /// # Errors
    /// [`Error::ExportRefused`] if this GPU cannot do that; [`Error::OutOfMemory`].
    pub fn shared(context: &Context, bytes: u64) -> Result<Allocation, Error> {
        let device = context.device();
        if !device.facts().exports_memory {
            return Err(Error::ExportRefused { device: device.to_string(), bytes, failure: None });
        }
        Allocation::create(context, bytes, Origin::Shared)
    }

    fn create(context: &Context, bytes: u64, origin: Origin) -> Result<Allocation, Error> {
        let kind = if origin == Origin::Private { PRIVATE } else { SHARED };
        let properties = properties(context.device(), kind);
        let granularity = granularity(context, &properties)?;
        let bytes = bytes.max(1).checked_next_multiple_of(granularity).unwrap_or(u64::MAX);
        context.take("memory to be mapped", bytes, |calls| {
            let mut handle = 0;
            // SAFETY: both point at values of ours.
            unsafe { calls.cuMemCreate(&raw mut handle, host_size(bytes), &raw const properties, 0) }?;
            Ok(Allocation::own(context, handle, bytes, origin))
        })
    }

    fn own(
        context: &Context,
        handle: sys::CUmemGenericAllocationHandle,
        bytes: u64,
        origin: Origin,
    ) -> Allocation {
        let entry = context.open(Kind::Allocation);
        Allocation { inner: Arc::new(Physical { context: context.clone(), handle, bytes, origin, entry }) }
    }

    /// Takes memory that another process, or this one, has exported. `context` is of a GPU that is to reach it; `bytes` is what
    /// [`Allocation::bytes`] says over there, since a file descriptor does not tell. The descriptor stays the caller's.
    ///
    /// # Errors
    /// [`Error::ImportRefused`] with CUDA's code.
    pub fn import(context: &Context, from: BorrowedFd<'_>, bytes: u64) -> Result<Allocation, Error> {
        let number = usize::try_from(from.as_raw_fd()).unwrap_or(usize::MAX);
        let imported = context.with(|calls| {
            let mut handle = 0;
            // SAFETY: it points at a handle of ours; for this kind, the descriptor itself stands in the pointer's place.
            unsafe {
                let descriptor: *mut c_void = std::ptr::without_provenance_mut(number);
                calls.cuMemImportFromShareableHandle(&raw mut handle, descriptor, SHARED)
            }?;
            Ok(Allocation::own(context, handle, bytes, Origin::Imported))
        });
        imported.map_err(|failure| import_refused(context, bytes, failure))
    }

    /// A file descriptor by which another process can take it. Closing it frees nothing.
    ///
    /// # Errors
    /// [`Error::ExportRefused`] with CUDA's code; without one if it was not made by [`Allocation::shared`].
    pub fn export(&self) -> Result<OwnedFd, Error> {
        let Physical { context, handle, bytes, origin, .. } = &*self.inner;
        let device = context.device();
        let refused = |failure| Error::ExportRefused { device: device.to_string(), bytes: *bytes, failure };
        if *origin == Origin::Private {
            return Err(refused(None));
        }
        let exported = context.with(|calls| {
            let mut descriptor: c_int = -1;
            let to = (&raw mut descriptor).cast();
            // SAFETY: for this kind, it points at an int of ours.
            unsafe { calls.cuMemExportToShareableHandle(to, *handle, SHARED, 0) }?;
            // SAFETY: the driver made it for us, and nobody else knows of it.
            Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
        });
        exported.map_err(|f| if f.is_sticky() { device.refused(f) } else { refused(Some(f)) })
    }

    /// How many bytes it has: those that were asked for, rounded up.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// Maps it to addresses at which the GPUs of all these contexts reach it, to read and to write.
    ///
    /// # Errors
    /// [`Error::PeerRefused`] if one of them cannot; [`Error::ImportRefused`] if it is another process's and cannot be mapped;
    /// [`Error::OutOfMemory`], [`Error::Call`].
    pub fn map(&self, reached_by: &[&Context]) -> Result<Mapping, Error> {
        let range = Reservation::new(&self.inner.context, self.bytes())?;
        let mapped = Mapped::new(self, range)?;
        for context in reached_by {
            mapped.allow(context.device())?;
        }
        Ok(Mapping { mapped })
    }

    pub(crate) fn handle(&self) -> sys::CUmemGenericAllocationHandle {
        self.inner.handle
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocation({} bytes of {})", self.bytes(), self.inner.context.device())
    }
}

/// Memory of another process that is not to be had: some drivers say so when it is taken, others when it is mapped.
fn import_refused(context: &Context, bytes: u64, failure: Failure) -> Error {
    if failure.is_sticky() || failure.code == code::OUT_OF_MEMORY {
        return context.memory_refused("mapped memory", bytes, failure);
    }
    Error::ImportRefused { device: context.device().to_string(), bytes, failure }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: created or imported, and not released yet. Mappings keep the memory.
        self.context.release(&self.entry, |calls| unsafe { calls.cuMemRelease(self.handle) });
    }
}

fn properties(device: &Device, kind: sys::CUmemAllocationHandleType) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: kind,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(device: &Device) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: c_int::try_from(device.facts().ordinal).unwrap_or(c_int::MAX),
    }
}

/// What sizes and addresses must be multiples of, in bytes.
fn granularity(context: &Context, properties: &sys::CUmemAllocationProp) -> Result<u64, Error> {
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    context.call(|calls| {
        let mut bytes = 0;
        // SAFETY: both point at values of ours.
        unsafe {
            calls.cuMemGetAllocationGranularity(&raw mut bytes, std::ptr::from_ref(properties), option)
        }?;
        Ok((bytes as u64).max(1))
    })
}

/// Addresses that nothing else is put at.
struct Reservation {
    context: Context,
    address: sys::CUdeviceptr,
    bytes: u64,
    entry: Entry,
}

impl Reservation {
    fn new(context: &Context, bytes: u64) -> Result<Reservation, Error> {
        context.take("addresses", bytes, |calls| {
            let mut address = 0;
            // SAFETY: it points at an address of ours; alignment 0 is the default, address 0 is any.
            unsafe { calls.cuMemAddressReserve(&raw mut address, host_size(bytes), 0, 0, 0) }?;
            let entry = context.open(Kind::Reservation);
            Ok(Reservation { context: context.clone(), address, bytes, entry })
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (address, bytes) = (self.address, host_size(self.bytes));
        // SAFETY: reserved in `new`; whatever was mapped there held `self`, so it is unmapped.
        self.context.release(&self.entry, |calls| unsafe { calls.cuMemAddressFree(address, bytes) });
    }
}

/// An allocation at its addresses, reached by nobody yet. Fields are dropped in this order, after it is unmapped.
struct Mapped {
    entry: Entry,
    range: Reservation,
    allocation: Allocation,
}

impl Mapped {
    fn new(allocation: &Allocation, range: Reservation) -> Result<Mapped, Error> {
        let context = range.context.clone();
        let (address, bytes) = (range.address, host_size(range.bytes));
        let mapped = context.with(|calls| {
            // SAFETY: the range was reserved with this size, and nothing is mapped there.
            unsafe { calls.cuMemMap(address, bytes, 0, allocation.handle(), 0) }?;
            let entry = context.open(Kind::Mapping);
            Ok(Mapped { entry, range, allocation: allocation.clone() })
        });
        mapped.map_err(|failure| match allocation.inner.origin {
            Origin::Imported => import_refused(&context, allocation.bytes(), failure),
            _ => context.memory_refused("mapped memory", allocation.bytes(), failure),
        })
    }

    /// Lets a GPU reach it.
    fn allow(&self, device: &Device) -> Result<(), Error> {
        let access = sys::CUmemAccessDesc {
            location: location(device),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let (address, bytes) = (self.range.address, host_size(self.range.bytes));
        let context = &self.range.context;
        // SAFETY: mapped as a whole; one description.
        let allowed = context
            .with(|calls| unsafe { calls.cuMemSetAccess(address, bytes, std::ptr::from_ref(&access), 1) });
        allowed.map_err(|failure| self.not_reached(device, failure))
    }

    fn not_reached(&self, device: &Device, failure: Failure) -> Error {
        let context = &self.range.context;
        let own = context.device().facts() == device.facts();
        if self.allocation.inner.origin == Origin::Imported {
            return import_refused(context, self.range.bytes, failure);
        }
        if own || failure.is_sticky() || failure.code == code::OUT_OF_MEMORY {
            return context.memory_refused("mapped memory", self.range.bytes, failure);
        }
        Error::PeerRefused {
            from: device.to_string(),
            to: context.device().to_string(),
            failure: Some(failure),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let (address, bytes) = (self.range.address, host_size(self.range.bytes));
        // SAFETY: mapped in `new`, and not unmapped yet.
        self.range.context.release(&self.entry, |calls| unsafe { calls.cuMemUnmap(address, bytes) });
    }
}

/// An allocation, own or imported, at addresses that are the same for all GPUs that reach it. Unmapped when it is dropped.
pub struct Mapping {
    mapped: Mapped,
}

impl Mapping {
    /// What is mapped.
    pub fn allocation(&self) -> &Allocation {
        &self.mapped.allocation
    }
}

impl Known for Mapping {}

impl Memory for Mapping {
    fn address(&self) -> u64 {
        self.mapped.range.address
    }

    fn bytes(&self) -> u64 {
        self.mapped.range.bytes
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:?} at {:#x})", self.allocation(), self.address())
    }
}
