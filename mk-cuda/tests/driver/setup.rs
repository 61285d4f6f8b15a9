//! A set-up as a session makes it: two GPUs, the kernel, memory of all kinds, mapped by both and by a third party.

use mk_cuda::{
    Allocation, Context, DeviceMemory, Driver, Error, Event, Graph, HostMemory, Kernel, Launch, Mapping,
    Memory as _, Module, PeerAccess, Requirements, Stream,
};
use std::os::fd::AsFd as _;

/// Dynamic shared memory of the kernel, in bytes.
pub(crate) const SHARED_BYTES: u32 = 231_168;
/// Threads of a block of it.
pub(crate) const THREADS: u32 = 384;
/// What is moved.
pub(crate) const TEXT: &[u8] = b"one byte follows the other";
/// What lanes read of the two words that the kernel takes.
pub(crate) type Parameter = [u64; 2];

/// All that is open, in the order in which it was opened.
pub(crate) struct Setup {
    pub(crate) contexts: Vec<Context>,
    pub(crate) kernel: Kernel,
    pub(crate) stream: Stream,
    pub(crate) events: [Event; 2],
    pub(crate) graph: Graph,
    pub(crate) memory: DeviceMemory,
    pub(crate) host: HostMemory,
    pub(crate) heap: Mapping,
    /// The heap again, as another process would have it.
    pub(crate) imported: Mapping,
    pub(crate) _peer: PeerAccess,
}

/// Opens all of it, one call after the other.
pub(crate) fn open(driver: &Driver) -> Result<Setup, Error> {
    let devices = driver.devices()?;
    let needed =
        Requirements { arch: "sm_90a".into(), capability: [9, 0], later: false, shared_bytes: 232_448 };
    for device in &devices {
        device.check(&needed)?;
    }
    let contexts = devices.iter().map(|d| d.context()).collect::<Result<Vec<_>, _>>()?;
    let [first, second] = [&contexts[0], &contexts[1]];
    let kernel = kernel(first)?;
    kernel.residency(THREADS, SHARED_BYTES)?.check(132, 0)?;
    let stream = Stream::new(first)?;
    let events = [Event::timed(first)?, Event::timed(first)?];
    let graph = record(&kernel, &stream)?;
    let memory = DeviceMemory::new(first, 4096)?;
    let host = HostMemory::new(first, 4096)?;
    stream.fill(&memory, 0)?;
    stream.upload(&memory, 8, TEXT)?;
    let heap = Allocation::shared(first, 3 << 20)?.map(&[first, second])?;
    let descriptor = heap.allocation().export()?;
    let imported = Allocation::import(second, descriptor.as_fd(), heap.bytes())?.map(&[second])?;
    let peer = PeerAccess::new(second, first)?;
    Ok(Setup { contexts, kernel, stream, events, graph, memory, host, heap, imported, _peer: peer })
}

/// Loads the kernel.
pub(crate) fn kernel(context: &Context) -> Result<Kernel, Error> {
    let kernel = Module::load(context, &cubin())?.kernel("mk_kernel")?;
    kernel.allow_shared(SHARED_BYTES)?;
    Ok(kernel)
}

/// Records a launch of the kernel.
#[allow(unsafe_code, reason = "no kernel can be started otherwise")]
fn record(kernel: &Kernel, stream: &Stream) -> Result<Graph, Error> {
    let size = Launch { blocks: 132, threads: THREADS, shared_bytes: SHARED_BYTES, pairs: true, early: true };
    Graph::record(stream, || {
        // SAFETY: the fake driver runs no kernel.
        unsafe { kernel.launch(stream, size, &Parameter::default()) }
    })
}

/// Starts the kernel between two events, and waits for it.
#[allow(unsafe_code, reason = "no kernel can be started otherwise")]
pub(crate) fn run(s: &Setup) -> Result<(), Error> {
    let [begin, end] = &s.events;
    s.stream.record(begin)?;
    let size = Launch { blocks: 132, threads: THREADS, shared_bytes: SHARED_BYTES, pairs: true, early: true };
    let parameter: Parameter = [s.heap.address(), s.memory.address()];
    // SAFETY: the fake driver runs no kernel.
    unsafe { s.kernel.launch(&s.stream, size, &parameter) }?;
    // SAFETY: as above.
    unsafe { s.graph.launch(&s.stream) }?;
    s.stream.record(end)?;
    s.stream.synchronize()?;
    end.milliseconds_since(begin).map(drop)
}

/// What the fake driver takes for machine code: any ELF file.
pub(crate) fn cubin() -> Vec<u8> {
    std::fs::read(super::fake::library()).unwrap()
}
