//! A GPU's primary context, and calls in it.

use crate::calls::Calls;
use crate::device::Device;
use crate::error::{Error, Failure, code};
use crate::found::Driver;
use crate::ledger::{Entry, Kind};
use cudarc::driver::sys;
use std::fmt;
use std::ptr;
use std::sync::Arc;

/// The primary context of a GPU, held as long as one of its clones, or of what was made in it, lives.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    handle: Shared<sys::CUctx_st>,
    entry: Entry,
}

/// A handle of the driver's that every thread may use.
pub(crate) struct Shared<T>(pub(crate) *mut T);

// SAFETY: the functions of the driver may be called from any thread, with any handle; it takes its own locks.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.inner.device)
    }
}

impl Context {
    pub(crate) fn retain(device: &Device) -> Result<Context, Error> {
        let mut handle = ptr::null_mut();
        // SAFETY: it points at a handle of ours; the device is one of the driver's.
        unsafe { device.driver().calls().cuDevicePrimaryCtxRetain(&raw mut handle, device.handle()) }
            .map_err(|f| device.memory_refused("a context", 0, None, f))?;
        let entry = device.driver().ledger().open(Kind::Context);
        Ok(Context { inner: Arc::new(Inner { device: device.clone(), handle: Shared(handle), entry }) })
    }

    /// Its GPU.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Free memory of the GPU and all of it, in bytes.
    ///
    /// # Errors
    /// [`Error::ContextLost`], [`Error::Call`].
    pub fn memory(&self) -> Result<(u64, u64), Error> {
        self.call(|calls| {
            let (mut free, mut total) = (0, 0);
            // SAFETY: both point at a size of ours.
            unsafe { calls.cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
            Ok((free as u64, total as u64))
        })
    }

    /// Waits for all that was given to the GPU in this context. A resident kernel is waited for, too.
    ///
    /// # Errors
    /// [`Error::ContextLost`], [`Error::Call`].
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: it takes nothing.
        self.call(|calls| unsafe { calls.cuCtxSynchronize() })
    }

    pub(crate) fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    pub(crate) fn handle(&self) -> sys::CUcontext {
        self.inner.handle.0
    }

    /// Makes calls in this context. The calling thread's own context is current again afterwards.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&Calls) -> Result<T, Failure>) -> Result<T, Failure> {
        let (result, restored) = self.run(f);
        // A value that nobody gets closes itself.
        result.and_then(|value| restored.map(|()| value))
    }

    /// Does something while this context is current in this thread, as other libraries want it.
    ///
    /// # Errors
    /// [`Error::ContextLost`], [`Error::Call`].
    pub fn while_current<T>(&self, f: impl FnOnce() -> T) -> Result<T, Error> {
        self.call(|_| Ok(f()))
    }

    /// Releases a handle in this context, and tells the ledger.
    pub(crate) fn release(&self, entry: &Entry, f: impl FnOnce(&Calls) -> Result<(), Failure>) {
        let (released, restored) = self.run(f);
        entry.close(released);
        if let Err(failure) = restored {
            self.driver().ledger().keep(failure);
        }
    }

    /// What `f` gives, and whether the thread's own context is current again.
    fn run<T>(
        &self,
        f: impl FnOnce(&Calls) -> Result<T, Failure>,
    ) -> (Result<T, Failure>, Result<(), Failure>) {
        let calls = self.driver().calls();
        let mut before = ptr::null_mut();
        // SAFETY: it points at a handle of ours.
        if let Err(failure) = unsafe { calls.cuCtxGetCurrent(&raw mut before) } {
            return (Err(failure), Ok(()));
        }
        if before == self.handle() {
            return (f(calls), Ok(()));
        }
        // SAFETY: the context is held by `self`.
        if let Err(failure) = unsafe { calls.cuCtxSetCurrent(self.handle()) } {
            return (Err(failure), Ok(()));
        }
        let result = f(calls);
        // SAFETY: it was current when this began, and no other thread can change that.
        let restore = || unsafe { calls.cuCtxSetCurrent(before) };
        let restored = restore().or_else(|failure| {
            // A call may also return what an earlier, asynchronous one failed with. To set a context twice does no harm.
            restore()?;
            Err(failure)
        });
        (result, restored)
    }

    /// The same, with a typed error.
    pub(crate) fn call<T>(&self, f: impl FnOnce(&Calls) -> Result<T, Failure>) -> Result<T, Error> {
        self.with(f).map_err(|failure| self.device().refused(failure))
    }

    /// The same, for a call that takes this many bytes of memory.
    pub(crate) fn take<T>(
        &self,
        what: &'static str,
        bytes: u64,
        f: impl FnOnce(&Calls) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        self.with(f).map_err(|failure| self.memory_refused(what, bytes, failure))
    }

    /// A call that wanted memory of the GPU and failed.
    pub(crate) fn memory_refused(&self, what: &'static str, bytes: u64, failure: Failure) -> Error {
        let free = (failure.code == code::OUT_OF_MEMORY).then(|| self.memory().ok()).flatten();
        self.device().memory_refused(what, bytes, free.map(|(free, _)| free), failure)
    }

    /// Enters a new handle in the ledger.
    pub(crate) fn open(&self, kind: Kind) -> Entry {
        self.driver().ledger().open(kind)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (driver, device) = (self.device.driver(), self.device.handle());
        // SAFETY: held since `retain`, and all that was made in it held a clone, so it is closed.
        self.entry.close(unsafe { driver.calls().cuDevicePrimaryCtxRelease_v2(device) });
    }
}
