//! Multicast: one store that reaches the memory of several GPUs.
//!
//! A GPU says by [`Facts::multicast`](crate::Facts::multicast) whether it has it. Whether it works is only known when it is
//! tried, and that is never done unless it is asked for: to make a multicast object changes the state of the NVLink switches,
//! which all GPUs of a server share.

use crate::context::Context;
use crate::error::{Error, Failure};
use crate::ledger::{Entry, Kind};
use crate::mapping::Allocation;
use crate::memory::host_size;
use cudarc::driver::sys;

/// Makes a multicast object over the GPUs of these contexts, binds memory of each to it, and takes all of that down again.
///
/// All GPUs get the same verdict, that of the first one that refuses; none of them waits for another. After a refusal, peer
/// access is as good as before.
///
/// # Errors
/// [`Error::MulticastRefused`] names the GPU and CUDA's code, often 802 (the switches' service does not run) or 401;
/// [`Error::OutOfMemory`].
pub fn try_multicast(contexts: &[Context]) -> Result<(), Error> {
    let refused = |context: &Context, failure| {
        let device = context.device().to_string();
        Error::MulticastRefused { device, failure }
    };
    if let Some(without) = contexts.iter().find(|c| !c.device().facts().multicast) {
        return Err(refused(without, None));
    }
    let Some(first) = contexts.first() else { return Ok(()) };
    let object = Object::new(contexts, first).map_err(|f| refused(first, Some(f)))?;
    // All GPUs have to be in before memory is bound: a bind waits for them.
    for context in contexts {
        object.add(context).map_err(|f| refused(context, Some(f)))?;
    }
    let mut bound = Vec::new();
    for context in contexts {
        let memory = Allocation::shared(context, object.bytes)?;
        bound.push(object.bind(context, memory).map_err(|f| refused(context, Some(f)))?);
    }
    Ok(())
}

/// A multicast object.
struct Object {
    context: Context,
    handle: sys::CUmemGenericAllocationHandle,
    bytes: u64,
    entry: Entry,
}

impl Object {
    fn new(contexts: &[Context], owner: &Context) -> Result<Object, Failure> {
        let mut properties = sys::CUmulticastObjectProp {
            numDevices: u32::try_from(contexts.len()).unwrap_or(u32::MAX),
            size: 0,
            handleTypes: 0,
            flags: 0,
        };
        let option = sys::CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM;
        owner.with(|calls| {
            let mut bytes = 0;
            // SAFETY: both point at values of ours.
            unsafe { calls.cuMulticastGetGranularity(&raw mut bytes, &raw const properties, option) }?;
            properties.size = bytes;
            let mut handle = 0;
            // SAFETY: as above.
            unsafe { calls.cuMulticastCreate(&raw mut handle, &raw const properties) }?;
            let (context, entry) = (owner.clone(), owner.open(Kind::Multicast));
            Ok(Object { context, handle, bytes: bytes as u64, entry })
        })
    }

    fn add(&self, context: &Context) -> Result<(), Failure> {
        // SAFETY: the object lives; the GPU is one of the driver's.
        context.with(|calls| unsafe { calls.cuMulticastAddDevice(self.handle, context.device().handle()) })
    }

    fn bind(&self, context: &Context, memory: Allocation) -> Result<Bound<'_>, Failure> {
        let bytes = host_size(self.bytes);
        context.with(|calls| {
            // SAFETY: both live, and have as many bytes.
            unsafe { calls.cuMulticastBindMem(self.handle, 0, memory.handle(), 0, bytes, 0) }?;
            let entry = context.open(Kind::Mapping);
            Ok(Bound { object: self, context: context.clone(), entry, _memory: memory })
        })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and not released yet; nothing is bound to it any more.
        self.context.release(&self.entry, |calls| unsafe { calls.cuMemRelease(self.handle) });
    }
}

/// Memory of one GPU that is bound to a multicast object.
struct Bound<'a> {
    object: &'a Object,
    context: Context,
    entry: Entry,
    _memory: Allocation,
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let (object, device) = (self.object.handle, self.context.device().handle());
        let bytes = host_size(self.object.bytes);
        // SAFETY: bound in `bind`, and not unbound yet.
        self.context
            .release(&self.entry, |calls| unsafe { calls.cuMulticastUnbind(object, device, 0, bytes) });
    }
}
