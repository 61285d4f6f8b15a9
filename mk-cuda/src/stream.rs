//! Streams and events: the order of work on a GPU.

use crate::context::{Context, Shared};
use crate::error::{Error, Failure, code};
use crate::ledger::{Entry, Kind};
use crate::memory::{HostMemory, Memory, host_size};
use cudarc::driver::sys;
use std::fmt;
use std::ptr;

/// A queue of work. It does not wait for the default stream, nor that for it.
pub struct Stream {
    context: Context,
    handle: Shared<sys::CUstream_st>,
    /// None for the stream of somebody else.
    entry: Option<Entry>,
}

impl Stream {
    /// A new one.
    ///
    /// # Errors
    /// [`Error::ContextLost`], [`Error::Call`].
    pub fn new(context: &Context) -> Result<Stream, Error> {
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        context.take("a stream", 0, |calls| {
            let mut handle = ptr::null_mut();
            // SAFETY: it points at a handle of ours.
            unsafe { calls.cuStreamCreate(&raw mut handle, flags) }?;
            let entry = Some(context.open(Kind::Stream));
            Ok(Stream { context: context.clone(), handle: Shared(handle), entry })
        })
    }

    /// The caller's own stream, a `CUstream` or `cudaStream_t`. It is not destroyed here.
    ///
    /// # Safety
    /// It is a stream of this context, and lives longer than what is returned.
    pub unsafe fn of_caller(context: &Context, stream: u64) -> Stream {
        let handle = ptr::with_exposed_provenance_mut(host_size(stream));
        Stream { context: context.clone(), handle: Shared(handle), entry: None }
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Waits until all work that it was given is done.
    ///
    /// # Errors
    /// [`Error::ContextLost`] if some of it failed; [`Error::Call`].
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the stream lives.
        self.context.call(|calls| unsafe { calls.cuStreamSynchronize(self.handle.0) })
    }

    /// Whether all work that it was given is done. Does not wait.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_done(&self) -> Result<bool, Error> {
        // SAFETY: the stream lives.
        self.context.call(|calls| ready(unsafe { calls.cuStreamQuery(self.handle.0) }))
    }

    /// Whether its work is being recorded into a graph instead of being done.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn is_capturing(&self) -> Result<bool, Error> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives; the three states of the header are all that there are.
        self.context.call(|calls| unsafe { calls.cuStreamIsCapturing(self.handle.0, &raw mut status) })?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Later work waits for the event as it was last recorded.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both live.
        self.context.call(|calls| unsafe { calls.cuStreamWaitEvent(self.handle.0, event.handle.0, 0) })
    }

    /// Records the event behind all work so far.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn record(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both live.
        self.context.call(|calls| unsafe { calls.cuEventRecord(event.handle.0, self.handle.0) })
    }

    /// Copies into the GPU's memory, from byte `offset` of it on, behind all work so far, and waits for that.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ContextLost`], [`Error::Call`].
    pub fn upload(&self, to: &impl Memory, offset: u64, from: &[u8]) -> Result<(), Error> {
        let address = to.address_of(offset..offset.saturating_add(from.len() as u64))?;
        self.context.call(|calls| {
            // SAFETY: the ranges are as long as is said, and live until the work is waited for, below.
            unsafe { calls.cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), from.len(), self.handle.0) }
        })?;
        self.synchronize()
    }

    /// Copies out of the GPU's memory, from byte `offset` of it on, behind all work so far, and waits for that.
    ///
    /// # Errors
    /// As [`Stream::upload`].
    pub fn download(&self, from: &impl Memory, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let address = from.address_of(offset..offset.saturating_add(to.len() as u64))?;
        self.context.call(|calls| {
            // SAFETY: as in `upload`.
            unsafe { calls.cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), address, to.len(), self.handle.0) }
        })?;
        self.synchronize()
    }

    /// Sets all bytes of the GPU's memory, behind all work so far, and waits for that.
    ///
    /// # Errors
    /// [`Error::ContextLost`], [`Error::Call`].
    pub fn fill(&self, to: &impl Memory, value: u8) -> Result<(), Error> {
        // SAFETY: the memory is borrowed until the work is waited for, below.
        unsafe { self.fill_async(to, 0, to.bytes(), value) }?;
        self.synchronize()
    }

    /// As [`Stream::fill`] for `bytes` from `offset` on, but does not wait.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Call`].
    ///
    /// # Safety
    /// The memory lives until the stream has done it; if it is recorded into a graph, until the graph is gone.
    pub unsafe fn fill_async(
        &self,
        to: &impl Memory,
        offset: u64,
        bytes: u64,
        value: u8,
    ) -> Result<(), Error> {
        let address = to.address_of(offset..offset.saturating_add(bytes))?;
        self.context.call(|calls| {
            // SAFETY: inside of memory that lives, by the caller's promise.
            unsafe { calls.cuMemsetD8Async(address, value, host_size(bytes), self.handle.0) }
        })
    }

    /// Copies `bytes` of pinned memory into the GPU's memory behind all work so far. Does not wait.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Call`].
    ///
    /// # Safety
    /// Both pieces of memory live, and the source is not written, until the stream has done it; if it is recorded into a
    /// graph, until the graph is gone.
    pub unsafe fn upload_async(
        &self,
        (to, to_offset): (&impl Memory, u64),
        (from, from_offset): (&HostMemory, u64),
        bytes: u64,
    ) -> Result<(), Error> {
        let to = to.address_of(to_offset..to_offset.saturating_add(bytes))?;
        let from = from.host_pointer(from_offset, host_size(bytes))?;
        self.context.call(|calls| {
            // SAFETY: both ranges are inside of memory that lives, by the caller's promise.
            unsafe { calls.cuMemcpyHtoDAsync_v2(to, from.cast(), host_size(bytes), self.handle.0) }
        })
    }

    /// Copies `bytes` of the GPU's memory into pinned memory behind all work so far. Does not wait.
    ///
    /// # Errors
    /// As [`Stream::upload_async`].
    ///
    /// # Safety
    /// As [`Stream::upload_async`]; the destination is not read before the stream has done it.
    pub unsafe fn download_async(
        &self,
        (to, to_offset): (&HostMemory, u64),
        (from, from_offset): (&impl Memory, u64),
        bytes: u64,
    ) -> Result<(), Error> {
        let from = from.address_of(from_offset..from_offset.saturating_add(bytes))?;
        let to = to.host_pointer(to_offset, host_size(bytes))?;
        self.context.call(|calls| {
            // SAFETY: as in `upload_async`.
            unsafe { calls.cuMemcpyDtoHAsync_v2(to.cast(), from, host_size(bytes), self.handle.0) }
        })
    }

    /// Copies `bytes` between two pieces of the GPU's memory, or of another GPU's that is mapped, behind all work so far.
    /// Does not wait.
    ///
    /// # Errors
    /// As [`Stream::upload_async`].
    ///
    /// # Safety
    /// As [`Stream::upload_async`].
    pub unsafe fn copy_async(
        &self,
        (to, to_offset): (&impl Memory, u64),
        (from, from_offset): (&impl Memory, u64),
        bytes: u64,
    ) -> Result<(), Error> {
        let to = to.address_of(to_offset..to_offset.saturating_add(bytes))?;
        let from = from.address_of(from_offset..from_offset.saturating_add(bytes))?;
        self.context.call(|calls| {
            // SAFETY: as in `upload_async`.
            unsafe { calls.cuMemcpyDtoDAsync_v2(to, from, host_size(bytes), self.handle.0) }
        })
    }

    /// As a `CUstream`, for other libraries.
    pub fn address(&self) -> u64 {
        self.handle.0.expose_provenance() as u64
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.handle.0
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = if self.entry.is_some() { "own" } else { "the caller's" };
        write!(f, "Stream({owner}, {:?})", self.context)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            // SAFETY: created in `new`, and not destroyed yet. Its work goes on.
            self.context.release(entry, |calls| unsafe { calls.cuStreamDestroy_v2(self.handle.0) });
        }
    }
}

/// A point in a stream's work.
pub struct Event {
    context: Context,
    handle: Shared<sys::CUevent_st>,
    entry: Entry,
}

impl Event {
    /// One that also keeps the time.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn timed(context: &Context) -> Result<Event, Error> {
        Event::create(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// One for order only, which is cheaper.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn untimed(context: &Context) -> Result<Event, Error> {
        Event::create(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn create(context: &Context, flags: sys::CUevent_flags) -> Result<Event, Error> {
        context.take("an event", 0, |calls| {
            let mut handle = ptr::null_mut();
            // SAFETY: it points at a handle of ours.
            unsafe { calls.cuEventCreate(&raw mut handle, flags as u32) }?;
            let entry = context.open(Kind::Event);
            Ok(Event { context: context.clone(), handle: Shared(handle), entry })
        })
    }

    /// Waits until the work before it is done; not at all if it was never recorded.
    ///
    /// # Errors
    /// [`Error::ContextLost`], [`Error::Call`].
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the event lives.
        self.context.call(|calls| unsafe { calls.cuEventSynchronize(self.handle.0) })
    }

    /// Whether the work before it is done. Does not wait.
    ///
    /// # Errors
    /// [`Error::ContextLost`], [`Error::Call`].
    pub fn is_done(&self) -> Result<bool, Error> {
        // SAFETY: the event lives.
        self.context.call(|calls| ready(unsafe { calls.cuEventQuery(self.handle.0) }))
    }

    /// Milliseconds from an earlier event to this one; both are timed, recorded and done.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn milliseconds_since(&self, earlier: &Event) -> Result<f32, Error> {
        self.context.call(|calls| {
            let mut time = 0.0;
            // SAFETY: both live; it points at a number of ours.
            unsafe { calls.cuEventElapsedTime_v2(&raw mut time, earlier.handle.0, self.handle.0) }?;
            Ok(time)
        })
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?})", self.context)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `create`, and not destroyed yet.
        self.context.release(&self.entry, |calls| unsafe { calls.cuEventDestroy_v2(self.handle.0) });
    }
}

/// "Not yet" is an answer.
fn ready(asked: Result<(), Failure>) -> Result<bool, Failure> {
    match asked {
        Ok(()) => Ok(true),
        Err(failure) if failure.code == code::NOT_READY => Ok(false),
        Err(failure) => Err(failure),
    }
}
