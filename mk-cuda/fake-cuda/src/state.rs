//! What the driver knows: contexts, handles, memory. Safe code; the functions of C are in [`api`](crate::api).

use crate::config::Config;
use crate::kernels::{Event, Function};
use crate::log::Log;
use crate::space::{Bytes, Piece, Space};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
pub(crate) const PEER_ACCESS_NOT_ENABLED: u32 = 705;
pub(crate) const NOT_SUPPORTED: u32 = 801;

/// After one of these, everything fails until the context is gone.
const STICKY: [u32; 10] = [214, 220, 700, 702, 710, 714, 715, 716, 718, 719];

/// What allocations and their addresses are multiples of.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// Result of a call: nothing, or a `CUresult`.
pub(crate) type Done = Result<(), u32>;

thread_local! {
    /// The GPU whose context is current in this thread.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A physical allocation.
pub(crate) struct Allocation {
    pub(crate) device: usize,
    pub(crate) bytes: Bytes,
    exportable: bool,
    /// Of another process: it does not count as memory of this one.
    imported: bool,
}

/// A multicast object.
pub(crate) struct Multicast {
    wanted: usize,
    bytes: u64,
    added: BTreeSet<usize>,
    bound: BTreeSet<usize>,
}

/// All of it.
pub(crate) struct State {
    pub(crate) config: Config,
    log: Log,
    initialised: bool,
    calls: u64,
    by_name: BTreeMap<&'static str, u64>,
    next_handle: u64,
    sticky: Option<u32>,
    /// There was a sticky error: then nothing can be closed before its context.
    lost: bool,
    /// Children that lived when their context died.
    orphans: u64,
    /// By GPU: how often its context is held.
    contexts: Vec<u64>,
    pub(crate) modules: BTreeMap<u64, usize>,
    pub(crate) functions: BTreeMap<u64, Function>,
    pub(crate) streams: BTreeMap<u64, usize>,
    pub(crate) events: BTreeMap<u64, Event>,
    /// Streams that record.
    pub(crate) capturing: BTreeSet<u64>,
    /// Recorded graphs, and what was made ready of them (true).
    pub(crate) graphs: BTreeMap<u64, bool>,
    pub(crate) space: Space,
    allocations: BTreeMap<u64, Allocation>,
    peers: BTreeSet<(usize, usize)>,
    multicasts: BTreeMap<u64, Multicast>,
}

/// Ends the process: a test that is set up wrongly must not go on.
pub(crate) fn give_up(why: &str) -> ! {
    eprintln!("fake CUDA driver: {why}");
    std::process::abort()
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let text = std::env::var("FAKE_CUDA").unwrap_or_default();
    let config = Config::parse(&text).unwrap_or_else(|why| give_up(&why));
    Mutex::new(State::new(config))
});

/// Makes one call: counts it, fails it if that was ordered, and writes it down.
pub(crate) fn call(name: &'static str, f: impl FnOnce(&mut State) -> Done) -> u32 {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let code = state.enter(name).and_then(|()| f(&mut state)).err().unwrap_or(0);
    state.write_down(name, code);
    code
}

impl State {
    fn new(config: Config) -> State {
        let devices = config.number("devices") as usize;
        State {
            config,
            log: Log::from_env(),
            initialised: false,
            calls: 0,
            by_name: BTreeMap::new(),
            next_handle: 0x10_0000,
            sticky: None,
            lost: false,
            orphans: 0,
            contexts: vec![0; devices],
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            capturing: BTreeSet::new(),
            graphs: BTreeMap::new(),
            space: Space::default(),
            allocations: BTreeMap::new(),
            peers: BTreeSet::new(),
            multicasts: BTreeMap::new(),
        }
    }

    fn enter(&mut self, name: &'static str) -> Done {
        self.calls += 1;
        let of_name = self.by_name.entry(name).or_default();
        *of_name += 1;
        if let Some(code) = self.config.failure(name, self.calls, *of_name) {
            self.sticky = self.sticky.or(STICKY.contains(&code).then_some(code));
            return Err(code);
        }
        if !self.initialised && !["cuInit", "cuDriverGetVersion"].contains(&name) {
            return Err(NOT_INITIALIZED);
        }
        // To let a context go is what ends a lost one.
        let lets_go = ["cuDevicePrimaryCtxRelease_v2", "cuCtxGetCurrent", "cuCtxSetCurrent"].contains(&name);
        match self.sticky {
            Some(code) if !lets_go => Err(code),
            _ => Ok(()),
        }
    }

    fn write_down(&mut self, name: &str, code: u32) {
        let mapped = self.space.pieces.values().filter(|p| p.mapped).count();
        let bound: usize = self.multicasts.values().map(|m| m.bound.len()).sum();
        let counts = [
            ("contexts", self.contexts.iter().sum::<u64>() as usize),
            ("modules", self.modules.len()),
            ("device_memory", self.space.pieces.len() - mapped),
            ("host_memory", self.space.pinned.len()),
            ("streams", self.streams.len()),
            ("events", self.events.len()),
            ("graphs", self.graphs.len()),
            ("allocations", self.allocations.len()),
            ("reservations", self.space.reserved.len()),
            ("mappings", mapped + bound),
            ("peer_accesses", self.peers.len()),
            ("multicasts", self.multicasts.len()),
        ];
        let live = counts.map(|(kind, n)| format!("\"{kind}\":{n}")).join(",");
        let current = CURRENT.get().map_or("none".into(), |d| d.to_string());
        let line =
            format!("{} {name} {code} {{{live}}} current={current} orphans={}", self.calls, self.orphans);
        self.log.line(&line);
    }

    pub(crate) fn init(&mut self) -> Done {
        if self.contexts.is_empty() {
            return Err(NO_DEVICE);
        }
        self.initialised = true;
        Ok(())
    }

    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 0x100;
        self.next_handle
    }

    pub(crate) fn devices(&self) -> usize {
        self.contexts.len()
    }

    pub(crate) fn device(&self, device: i32) -> Result<usize, u32> {
        usize::try_from(device).ok().filter(|d| *d < self.devices()).ok_or(INVALID_DEVICE)
    }

    /// By the numbers of `CUdevice_attribute`.
    pub(crate) fn device_attribute(&self, attribute: u32) -> Result<u64, u32> {
        let n = |key| self.config.number(key);
        match attribute {
            16 => Ok(n("sms")),
            75 => Ok(n("capability") / 10),
            76 => Ok(n("capability") % 10),
            82 => Ok(n("registers")),
            97 => Ok(n("shared")),
            102 => Ok(n("vmm")),
            103 => Ok(n("posix")),
            132 => Ok(n("multicast")),
            _ => Err(INVALID_VALUE),
        }
    }

    // Contexts.

    /// The handle of a GPU's context.
    fn context(device: usize) -> u64 {
        0x1000 + device as u64 * 0x100
    }

    fn device_of(&self, context: u64) -> Result<usize, u32> {
        let alive = |d: &usize| State::context(*d) == context && self.contexts[*d] > 0;
        (0..self.devices()).find(alive).ok_or(INVALID_CONTEXT)
    }

    pub(crate) fn retain(&mut self, device: usize) -> u64 {
        self.contexts[device] += 1;
        State::context(device)
    }

    pub(crate) fn release(&mut self, device: usize) -> Done {
        let held = self.contexts[device].checked_sub(1).ok_or(INVALID_CONTEXT)?;
        self.contexts[device] = held;
        if held == 0 {
            self.destroy(device);
        }
        Ok(())
    }

    /// What was made in a context goes with it. Mapped memory does not.
    fn destroy(&mut self, device: usize) {
        let before = self.children();
        self.modules.retain(|_, d| *d != device);
        self.streams.retain(|_, d| *d != device);
        self.events.retain(|_, e| e.device != device);
        self.space.pieces.retain(|_, p| p.mapped || p.device != device);
        self.peers.retain(|(from, to)| *from != device && *to != device);
        self.lost |= self.sticky.take().is_some();
        if !self.lost {
            self.orphans += (before - self.children()) as u64;
        }
    }

    fn children(&self) -> usize {
        self.modules.len()
            + self.streams.len()
            + self.events.len()
            + self.space.pieces.len()
            + self.peers.len()
    }

    /// The handle of the context that is current in this thread; 0 if none is.
    pub(crate) fn current_handle(&self) -> u64 {
        CURRENT.get().map_or(0, State::context)
    }

    pub(crate) fn set_current(&mut self, context: u64) -> Done {
        CURRENT.set(if context == 0 { None } else { Some(self.device_of(context)?) });
        Ok(())
    }

    /// The GPU whose context is current, and alive.
    pub(crate) fn current(&self) -> Result<usize, u32> {
        CURRENT.get().filter(|d| self.contexts[*d] > 0).ok_or(INVALID_CONTEXT)
    }

    // Peers.

    pub(crate) fn can_reach(&self, from: usize, to: usize) -> bool {
        from != to && self.config.number("peers") != 0
    }

    pub(crate) fn enable_peer(&mut self, context: u64) -> Done {
        let (from, to) = (self.current()?, self.device_of(context)?);
        if !self.can_reach(from, to) {
            return Err(217);
        }
        if !self.peers.insert((from, to)) {
            return Err(PEER_ACCESS_ALREADY_ENABLED);
        }
        self.reach_peers();
        Ok(())
    }

    pub(crate) fn disable_peer(&mut self, context: u64) -> Done {
        let (from, to) = (self.current()?, self.device_of(context)?);
        let was = self.peers.remove(&(from, to));
        self.reach_peers();
        if was { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }

    /// Peer access is for all memory that is not mapped by hand.
    fn reach_peers(&mut self) {
        for piece in self.space.pieces.values_mut().filter(|p| !p.mapped) {
            let peers = self.peers.iter().filter(|(_, to)| *to == piece.device).map(|(from, _)| *from);
            piece.reach = peers.chain([piece.device]).collect();
        }
    }

    // Memory.

    /// Bytes of a GPU that are free, and all of them.
    pub(crate) fn memory(&self, device: usize) -> (u64, u64) {
        let plain = self.space.pieces.values().filter(|p| !p.mapped && p.device == device);
        let own = self.allocations.values().filter(|a| !a.imported && a.device == device);
        let used: u64 = plain.map(|p| p.bytes.len).sum::<u64>() + own.map(|a| a.bytes.len).sum::<u64>();
        let total = self.config.number("memory");
        (total.saturating_sub(used), total)
    }

    fn bytes(&self, device: usize, bytes: u64) -> Result<Bytes, u32> {
        if bytes > self.memory(device).0 {
            return Err(OUT_OF_MEMORY);
        }
        Bytes::new(bytes).map_err(|e| give_up(&format!("no memory file: {e}")))
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<u64, u32> {
        let device = self.current()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let bytes = self.bytes(device, bytes)?;
        let address = self.space.fresh(bytes.len, 512);
        self.space.pieces.insert(address, Piece { bytes, reach: [device].into(), device, mapped: false });
        self.reach_peers();
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: u64) -> Done {
        self.current()?;
        let plain = self.space.pieces.get(&address).is_some_and(|p| !p.mapped);
        if !plain {
            return Err(INVALID_VALUE);
        }
        self.space.pieces.remove(&address);
        Ok(())
    }

    pub(crate) fn create(&mut self, bytes: u64, device: usize, exportable: bool) -> Result<u64, u32> {
        if self.config.number("vmm") == 0 || (exportable && self.config.number("posix") == 0) {
            return Err(NOT_SUPPORTED);
        }
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        let bytes = self.bytes(device, bytes)?;
        let handle = self.handle();
        self.allocations.insert(handle, Allocation { device, bytes, exportable, imported: false });
        Ok(handle)
    }

    /// A file that another process can take it by.
    pub(crate) fn export(&mut self, handle: u64) -> Result<std::fs::File, u32> {
        let allocation = self.allocations.get(&handle).filter(|a| a.exportable).ok_or(INVALID_VALUE)?;
        allocation.bytes.file.try_clone().map_err(|_| 304)
    }

    pub(crate) fn import(&mut self, descriptor: usize) -> Result<u64, u32> {
        let bytes = Bytes::import(descriptor).ok_or(INVALID_VALUE)?;
        let handle = self.handle();
        self.allocations.insert(handle, Allocation { device: 0, bytes, exportable: true, imported: true });
        Ok(handle)
    }

    /// Lets an allocation or a multicast object go.
    pub(crate) fn release_handle(&mut self, handle: u64) -> Done {
        let known = self.allocations.remove(&handle).is_some() || self.multicasts.remove(&handle).is_some();
        if known { Ok(()) } else { Err(INVALID_VALUE) }
    }

    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<u64, u32> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        let address = self.space.fresh(bytes, GRANULARITY);
        self.space.reserved.insert(address, bytes);
        Ok(address)
    }

    pub(crate) fn unreserve(&mut self, address: u64, bytes: u64) -> Done {
        let whole = self.space.reserved.get(&address) == Some(&bytes);
        if !whole || self.space.is_mapped(address, bytes) {
            return Err(INVALID_VALUE);
        }
        self.space.reserved.remove(&address);
        Ok(())
    }

    pub(crate) fn map(&mut self, address: u64, bytes: u64, handle: u64) -> Done {
        let Allocation { device, bytes: all, .. } = self.allocations.get(&handle).ok_or(INVALID_VALUE)?;
        let fits = bytes <= all.len && bytes.is_multiple_of(GRANULARITY);
        if !fits || !self.space.is_reserved(address, bytes) || self.space.is_mapped(address, bytes) {
            return Err(INVALID_VALUE);
        }
        let bytes = Bytes { file: all.file.clone(), len: bytes };
        let piece = Piece { bytes, reach: BTreeSet::new(), device: *device, mapped: true };
        self.space.pieces.insert(address, piece);
        Ok(())
    }

    /// The whole of what is mapped at an address.
    fn mapped(&mut self, address: u64, bytes: u64) -> Result<&mut Piece, u32> {
        let piece = self.space.pieces.get_mut(&address);
        piece.filter(|p| p.mapped && p.bytes.len == bytes).ok_or(INVALID_VALUE)
    }

    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Done {
        self.mapped(address, bytes)?;
        self.space.pieces.remove(&address);
        Ok(())
    }

    pub(crate) fn allow(&mut self, address: u64, bytes: u64, device: usize) -> Done {
        let peers = self.config.number("peers") != 0;
        let piece = self.mapped(address, bytes)?;
        if piece.device != device && !peers {
            return Err(INVALID_DEVICE);
        }
        piece.reach.insert(device);
        Ok(())
    }

    // Multicast.

    pub(crate) fn create_multicast(&mut self, devices: usize, bytes: u64) -> Result<u64, u32> {
        if self.config.number("multicast") == 0 || devices == 0 || bytes == 0 {
            return Err(NOT_SUPPORTED);
        }
        let handle = self.handle();
        let object = Multicast { wanted: devices, bytes, added: BTreeSet::new(), bound: BTreeSet::new() };
        self.multicasts.insert(handle, object);
        Ok(handle)
    }

    pub(crate) fn add_to_multicast(&mut self, handle: u64, device: usize) -> Done {
        let object = self.multicasts.get_mut(&handle).ok_or(INVALID_VALUE)?;
        if object.added.insert(device) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    pub(crate) fn bind(&mut self, handle: u64, memory: u64, bytes: u64) -> Done {
        let device = self.allocations.get(&memory).ok_or(INVALID_VALUE)?.device;
        let object = self.multicasts.get_mut(&handle).ok_or(INVALID_VALUE)?;
        // The real driver waits for ever where a GPU is not added.
        let whole = object.added.len() == object.wanted && object.added.contains(&device);
        if !whole || bytes != object.bytes || !object.bound.insert(device) {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }

    pub(crate) fn unbind(&mut self, handle: u64, device: usize) -> Done {
        let object = self.multicasts.get_mut(&handle).ok_or(INVALID_VALUE)?;
        if object.bound.remove(&device) { Ok(()) } else { Err(INVALID_VALUE) }
    }
}
