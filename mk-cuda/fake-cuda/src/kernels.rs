//! Modules, their one kernel, streams and events.

use crate::state::{Done, INVALID_HANDLE, INVALID_VALUE, State};

/// `\x7fELF`: machine code.
const MAGIC: [u8; 4] = *b"\x7fELF";
const INVALID_IMAGE: u32 = 200;
const NOT_FOUND: u32 = 500;
/// Threads of a multiprocessor on Hopper.
const THREADS: u64 = 2048;
/// Shared memory of a block that is the system's own.
const SYSTEM_SHARED: u64 = 1024;
/// Dynamic shared memory that a kernel has without asking.
const SHARED: u64 = 48 * 1024;

/// A kernel of a loaded module.
pub(crate) struct Function {
    pub(crate) module: u64,
    /// Dynamic shared memory that it may have.
    shared: u64,
}

impl State {
    pub(crate) fn load(&mut self, magic: [u8; 4]) -> Result<u64, u32> {
        let device = self.current()?;
        if magic != MAGIC {
            return Err(INVALID_IMAGE);
        }
        let module = self.handle();
        self.modules.insert(module, device);
        Ok(module)
    }

    pub(crate) fn unload(&mut self, module: u64) -> Done {
        self.current()?;
        self.functions.retain(|_, f| f.module != module);
        self.modules.remove(&module).map(drop).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn function(&mut self, module: u64, name: &str) -> Result<u64, u32> {
        if !self.modules.contains_key(&module) {
            return Err(INVALID_HANDLE);
        }
        if name != self.config.kernel {
            return Err(NOT_FOUND);
        }
        let handle = self.handle();
        self.functions.insert(handle, Function { module, shared: SHARED });
        Ok(handle)
    }

    fn known(&mut self, function: u64) -> Result<&mut Function, u32> {
        self.current()?;
        self.functions.get_mut(&function).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn is_function(&mut self, function: u64) -> Done {
        self.known(function).map(drop)
    }

    /// By the numbers of `CUfunction_attribute`.
    pub(crate) fn function_attribute(&mut self, attribute: u32, function: u64) -> Result<u64, u32> {
        let shared = self.known(function)?.shared;
        let n = |key| self.config.number(key);
        match attribute {
            0 => Ok(n("kernel_threads")),
            1 => Ok(n("kernel_shared")),
            3 => Ok(n("kernel_local")),
            4 => Ok(n("kernel_registers")),
            6 => Ok(n("capability")),
            8 => Ok(shared),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn allow_shared(&mut self, attribute: u32, bytes: u64, function: u64) -> Done {
        let limit = self.config.number("shared") - self.config.number("kernel_shared");
        if attribute != 8 || bytes > limit {
            return Err(INVALID_VALUE);
        }
        self.known(function)?.shared = bytes;
        Ok(())
    }

    pub(crate) fn parameter(&mut self, function: u64, index: usize) -> Result<u64, u32> {
        self.known(function)?;
        if index == 0 { Ok(self.config.number("parameter")) } else { Err(INVALID_VALUE) }
    }

    /// Blocks of the kernel on one multiprocessor.
    pub(crate) fn occupancy(&mut self, function: u64, threads: u64, dynamic: u64) -> Result<u64, u32> {
        let allowed = self.known(function)?.shared;
        let n = |key| self.config.number(key);
        if n("resident") != u64::MAX {
            return Ok(n("resident"));
        }
        if threads == 0 || dynamic > allowed {
            return Ok(0);
        }
        let registers = (n("kernel_registers") * threads).max(1);
        let shared = n("kernel_shared") + dynamic + SYSTEM_SHARED;
        // A multiprocessor has what one block may have, and the system's part of it.
        Ok((n("registers") / registers).min((n("shared") + SYSTEM_SHARED) / shared).min(THREADS / threads))
    }

    /// Pairs of blocks of the kernel on all multiprocessors.
    pub(crate) fn pairs(&mut self, function: u64, threads: u64, dynamic: u64) -> Result<u64, u32> {
        Ok(self.occupancy(function, threads, dynamic)? * (self.config.number("sms") / 2))
    }

    pub(crate) fn launch(
        &mut self,
        function: u64,
        [grid, threads, shared]: [u32; 3],
        stream: u64,
        asked: u64,
    ) -> Done {
        let allowed = self.known(function)?.shared;
        self.device_of_stream(stream)?;
        let fits = u64::from(threads) <= self.config.number("kernel_threads") && u64::from(shared) <= allowed;
        let wanted = self.config.number("launched");
        let other = wanted != u64::MAX && wanted != asked;
        if grid == 0 || threads == 0 || !fits || other { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// The GPU that a stream is of; the null stream is of the current context.
    pub(crate) fn device_of_stream(&mut self, stream: u64) -> Result<usize, u32> {
        let current = self.current()?;
        if stream == 0 {
            return Ok(current);
        }
        self.streams.get(&stream).copied().ok_or(INVALID_HANDLE)
    }

    pub(crate) fn create_stream(&mut self) -> Result<u64, u32> {
        let (device, handle) = (self.current()?, self.handle());
        self.streams.insert(handle, device);
        Ok(handle)
    }

    pub(crate) fn destroy_stream(&mut self, stream: u64) -> Done {
        self.streams.remove(&stream).map(drop).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn is_capturing(&mut self, stream: u64) -> Result<bool, u32> {
        self.device_of_stream(stream)?;
        Ok(self.capturing.contains(&stream))
    }

    pub(crate) fn begin_capture(&mut self, stream: u64) -> Done {
        self.device_of_stream(stream)?;
        if self.capturing.insert(stream) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    pub(crate) fn end_capture(&mut self, stream: u64) -> Result<u64, u32> {
        if !self.capturing.remove(&stream) {
            return Err(INVALID_VALUE);
        }
        let handle = self.handle();
        self.graphs.insert(handle, false);
        Ok(handle)
    }

    pub(crate) fn instantiate(&mut self, graph: u64) -> Result<u64, u32> {
        if self.graphs.get(&graph) != Some(&false) {
            return Err(INVALID_HANDLE);
        }
        let handle = self.handle();
        self.graphs.insert(handle, true);
        Ok(handle)
    }

    pub(crate) fn launch_graph(&mut self, ready: u64, stream: u64) -> Done {
        self.device_of_stream(stream)?;
        if self.graphs.get(&ready) == Some(&true) { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    pub(crate) fn destroy_graph(&mut self, graph: u64, ready: bool) -> Done {
        if self.graphs.get(&graph) != Some(&ready) {
            return Err(INVALID_HANDLE);
        }
        self.graphs.remove(&graph);
        Ok(())
    }

    pub(crate) fn create_event(&mut self, flags: u32) -> Result<u64, u32> {
        let (device, handle) = (self.current()?, self.handle());
        self.events.insert(handle, Event { device, timed: flags & 2 == 0, recorded: false });
        Ok(handle)
    }

    pub(crate) fn destroy_event(&mut self, event: u64) -> Done {
        self.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn record(&mut self, event: u64, stream: u64) -> Done {
        let device = self.device_of_stream(stream)?;
        let event = self.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        event.recorded = true;
        if event.device == device { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    pub(crate) fn is_event(&mut self, event: u64) -> Done {
        self.events.get(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    /// Both are timed and recorded.
    pub(crate) fn elapsed(&mut self, from: u64, to: u64) -> Done {
        let good = |e| self.events.get(&e).is_some_and(|e| e.timed && e.recorded);
        if good(from) && good(to) { Ok(()) } else { Err(INVALID_HANDLE) }
    }
}

/// A point in a stream.
pub(crate) struct Event {
    pub(crate) device: usize,
    timed: bool,
    recorded: bool,
}
