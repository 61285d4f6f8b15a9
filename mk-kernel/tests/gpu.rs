//! Programs run on a GPU as they do in the simulator, to the bit where sums are exact.
//!
//! Without a GPU these tests say that they are skipped.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "what is bound and launched is the caller's promise")]

#[path = "common/product.rs"]
mod product;

use mk_compute::{AllGatherGemm, Gather, Plan};
use mk_core::*;
use mk_kernel::driver::{Device, DeviceMemory, Graph, Memory as _, Stream};
use mk_kernel::{DeviceTensor, DeviceTensors, Gpu, Limits, Sabotage};
use product::{Product, device, registry};
use std::error::Error as Failure;

/// Each plan, on worlds of one to four ranks of one GPU, for three epochs with new data each.
#[test]
fn all_gather_gemm_has_the_simulators_bits() {
    let Some(device) = device() else { return };
    for ranks in 1..=4u32 {
        let registry = registry(ranks.into());
        let mut gpu = Gpu::open(&registry, &device, Limits::default()).unwrap();
        for (m, n, k) in [(257, 264, 192), (129, 8, 64), (1, 520, 320), (640, 1032, 1096), (0, 64, 64)] {
            for dtype in [DType::Bf16, DType::F16] {
                for (plan, gather) in [
                    (Plan::Fused, Gather::Push),
                    (Plan::Fused, Gather::Pull),
                    (Plan::Unfused, Gather::Push),
                    (Plan::Unfused, Gather::Pull),
                ] {
                    let op = AllGatherGemm::new(m, n, k, dtype).plan_kind(plan).gather(gather).lanes(16);
                    let product = Product::planned(&registry, op, (m, n, k), dtype);
                    for epoch in 0..3 {
                        let want = product.want(epoch);
                        let got = gpu.run(&product.program, &product.tensors(epoch)).unwrap();
                        let op = &product.op;
                        assert!(got == want, "{op} ({plan}, {gather}) on {ranks} ranks, epoch {epoch}");
                    }
                }
            }
        }
    }
}

/// On all SMs lanes come in pairs: those whose tiles have an operand in common load it once for both.
#[test]
fn lanes_that_share_what_they_load_have_the_simulators_bits() {
    let Some(device) = device() else { return };
    let registry = registry(1);
    let lanes = device.facts().multiprocessors as u16;
    // Tiles above each other, in the last row beside each other, whole and not; laps of the ring; a few columns.
    let sizes = [(12 * 128, 11 * 256, 832), (25 * 128 - 60, 11 * 256 - 112, 200), (130 * 64 + 7, 8, 264)];
    let products = sizes.map(|size| {
        let op = AllGatherGemm::new(size.0, size.1, size.2, DType::Bf16).lanes(lanes);
        let product = Product::planned(&registry, op, size, DType::Bf16);
        let want = [0, 1].map(|seed| product.want(seed));
        (product, want)
    });
    for resident in [false, true] {
        let builder = Gpu::builder(&registry).all(&device);
        let mut gpu = if resident { builder.resident() } else { builder }.open().unwrap();
        for (product, want) in &products {
            for (seed, want) in (0..).zip(want) {
                let got = gpu.run(&product.program, &product.tensors(seed)).unwrap();
                assert!(got == *want, "{}, resident {resident}, inputs {seed}", product.op);
            }
        }
    }
}

const FUSED: (u64, u64, u64) = (256, 512, 256);

fn fault(result: Result<Bindings, RunError>) -> Fault {
    match result {
        Err(RunError::Fault(fault)) => *fault,
        other => panic!("no fault: {other:?}"),
    }
}

/// Waits that are never met, ranks that stop, opcodes that are none: each ends within its bound in a fault that names the
/// task, and the session goes on with fresh memory. As a launch a run, and resident.
#[test]
fn whatever_breaks_is_a_typed_fault_and_the_session_goes_on() {
    let Some(device) = device() else { return };
    let product = Product::new(2, FUSED, 4);
    let want = product.want(1);
    let limits = Limits { start_us: 200_000, run_us: 100_000, ..Limits::default() };
    for resident in [false, true] {
        let builder = Gpu::builder(&product.registry).all(&device).limits(limits);
        let mut gpu = if resident { builder.resident() } else { builder }.open().unwrap();
        let cases =
            [Sabotage::LosePostsTo(Rank(1)), Sabotage::NoTasks(Rank(0)), Sabotage::BadOpcode(Rank(1))];
        for (generation, how) in (2..).zip(cases) {
            assert!(gpu.run(&product.program, &product.tensors(1)).unwrap() == want);
            gpu.sabotage(&product.program, how).unwrap();
            let start = std::time::Instant::now();
            let fault = fault(gpu.run(&product.program, &product.tensors(1)));
            println!("{how:?}, resident {resident}: {fault} after {:?}", start.elapsed());
            assert!(start.elapsed().as_millis() < 1500, "{how:?}: it took {:?}", start.elapsed());
            match how {
                Sabotage::BadOpcode(rank) => {
                    assert!(fault.rank == rank && fault.to_string().contains("opcode 65535"), "{fault}");
                }
                _ => {
                    assert!(matches!(fault.reason, Reason::Timeout(_)), "{fault}");
                    assert!(fault.rank == Rank(1) && fault.signal.contains("arrival"), "{fault}");
                    assert!(fault.task.contains("tile from rank 0"), "{fault}");
                }
            }
            assert_eq!(gpu.generation(), generation);
            assert!(gpu.run(&product.program, &product.tensors(1)).unwrap() == want, "rebuilt, it is right");
        }
    }
}

/// The caller's tensors on the GPU, one rank, and a stream.
struct OnDevice {
    a: DeviceMemory,
    b: DeviceMemory,
    c: DeviceMemory,
    stream: Stream,
}

impl OnDevice {
    fn new(device: &Device, product: &Product) -> OnDevice {
        let context = device.context().unwrap();
        let (m, n, k) = product.size;
        let room = |elements: u64| DeviceMemory::new(&context, 2 * elements).unwrap();
        OnDevice { a: room(m * k), b: room(k * n), c: room(m * n), stream: Stream::new(&context).unwrap() }
    }

    fn fill(&self, product: &Product, seed: u64) {
        let tensors = product.tensors(seed);
        for (memory, name) in [(&self.a, AllGatherGemm::A), (&self.b, AllGatherGemm::B)] {
            self.stream.upload(memory, 0, &tensors.get(Rank(0), name).unwrap().bytes).unwrap();
        }
        self.stream.fill(&self.c, 0xff).unwrap();
    }

    fn tensors(&self, product: &Product) -> DeviceTensors {
        let (_, n, k) = product.size;
        let mut tensors = DeviceTensors::new();
        for (name, memory, cols) in
            [(AllGatherGemm::A, &self.a, k), (AllGatherGemm::B, &self.b, n), (AllGatherGemm::C, &self.c, n)]
        {
            let tensor = DeviceTensor { address: memory.address(), pitch_bytes: 2 * cols };
            tensors.set(Rank(0), name, tensor);
        }
        tensors
    }

    fn result(&self, product: &Product) -> Vec<u8> {
        let (m, n, _) = product.size;
        let mut bytes = vec![0; (2 * m * n) as usize];
        self.stream.download(&self.c, 0, &mut bytes).unwrap();
        bytes
    }
}

/// What a single rank must have in C.
fn want(product: &Product, seed: u64) -> Vec<u8> {
    product.want(seed).get(Rank(0), AllGatherGemm::C).unwrap().bytes.clone()
}

/// The caller's own tensors, used where they lie; a thousand runs with nothing reset have the same bits.
#[test]
fn a_thousand_runs_on_the_callers_tensors_have_the_same_bits() {
    let Some(device) = device() else { return };
    let product = Product::new(1, (640, 1032, 1096), 16);
    for resident in [false, true] {
        let builder = Gpu::builder(&product.registry).all(&device);
        let mut gpu = if resident { builder.resident() } else { builder }.open().unwrap();
        let on_device = OnDevice::new(&device, &product);
        // SAFETY: the tensors are as large as the regions and live longer than the session's runs.
        let bound = unsafe { gpu.bind(&product.program, &on_device.tensors(&product)) }.unwrap();
        for seed in 0..2 {
            on_device.fill(&product, seed);
            let want = want(&product, seed);
            for run in 0..500 {
                // SAFETY: the stream is of the device's context; nobody else uses the tensors.
                unsafe { gpu.launch(&bound, &[&on_device.stream]) }.unwrap();
                if run % 100 == 0 {
                    gpu.wait(&bound).unwrap();
                    assert!(
                        on_device.result(&product) == want,
                        "seed {seed}, run {run}, resident {resident}"
                    );
                    on_device.stream.fill(&on_device.c, 0xff).unwrap();
                } else if run % 32 == 0 {
                    gpu.wait(&bound).unwrap();
                }
            }
            gpu.wait(&bound).unwrap();
            assert!(on_device.result(&product) == want, "seed {seed}, resident {resident}");
        }
        assert_eq!(gpu.outcome(&bound).unwrap(), 1000);
        gpu.park().unwrap();
    }
}

/// Small enough for tools that look at every access.
#[test]
fn a_small_program_is_right() {
    let Some(device) = device() else { return };
    let product = Product::sliced(2, (130, 264, 256));
    for resident in [false, true] {
        let builder = Gpu::builder(&product.registry).all(&device);
        let mut gpu = if resident { builder.resident() } else { builder }.open().unwrap();
        for seed in 0..2 {
            assert!(gpu.run(&product.program, &product.tensors(seed)).unwrap() == product.want(seed));
        }
    }
}

/// Puts in which all threads of a warp take part return.
#[test]
fn regress_nccl_1893_puts_by_all_threads_of_a_warp_return() {
    let Some(device) = device() else { return };
    for ranks in 2..=4 {
        let product = Product::sliced(ranks, (300, 264, 512));
        let mut gpu = Gpu::open(&product.registry, &device, Limits::default()).unwrap();
        for seed in 0..3 {
            assert!(
                gpu.run(&product.program, &product.tensors(seed)).unwrap() == product.want(seed),
                "{ranks}"
            );
        }
    }
}

/// One token, and a result that was NaN before: nothing of it is left, for the signal comes after the last byte.
#[test]
fn regress_vllm_45448_one_token_leaves_nothing_unwritten() {
    let Some(device) = device() else { return };
    for size in [(1, 4096, 4096), (1, 4096, 8), (2, 8, 4096)] {
        let product = Product::new(1, size, 16);
        let mut gpu = Gpu::open(&product.registry, &device, Limits::default()).unwrap();
        let on_device = OnDevice::new(&device, &product);
        // SAFETY: as above.
        let bound = unsafe { gpu.bind(&product.program, &on_device.tensors(&product)) }.unwrap();
        for seed in 0..20 {
            on_device.fill(&product, seed);
            // SAFETY: as above.
            unsafe { gpu.launch(&bound, &[&on_device.stream]) }.unwrap();
            gpu.wait(&bound).unwrap();
            assert!(on_device.result(&product) == want(&product, seed), "{size:?}, seed {seed}");
        }
    }
}

/// A run is recorded once and replayed with new inputs, between runs that are not: the epoch lies on the device.
#[test]
fn regress_aiter_3928_a_recorded_run_is_replayed_with_new_inputs() {
    let Some(device) = device() else { return };
    let product = Product::new(1, (129, 264, 320), 4);
    let mut gpu = Gpu::open(&product.registry, &device, Limits::default()).unwrap();
    let on_device = OnDevice::new(&device, &product);
    // SAFETY: as above.
    let bound = unsafe { gpu.bind(&product.program, &on_device.tensors(&product)) }.unwrap();
    let stream = &on_device.stream;
    // SAFETY: as above.
    let graph = recorded(stream, || unsafe { gpu.launch(&bound, &[stream]) });
    for seed in 0..6 {
        on_device.fill(&product, seed);
        if seed % 3 == 2 {
            // SAFETY: as above.
            unsafe { gpu.launch(&bound, &[stream]) }.unwrap();
            gpu.wait(&bound).unwrap();
        } else {
            // SAFETY: as above; session and binding live.
            unsafe { graph.launch(stream) }.unwrap();
            stream.synchronize().unwrap();
        }
        assert!(on_device.result(&product) == want(&product, seed), "seed {seed}");
        assert_eq!(gpu.outcome(&bound).unwrap(), seed + 1);
    }
    // Two recorded runs at once: one of them is refused. (Replays of one recording take turns.)
    let other = Stream::new(&device.context().unwrap()).unwrap();
    let big = Product::new(1, (2048, 2048, 4096), 4);
    let on_device = OnDevice::new(&device, &big);
    // SAFETY: as above.
    let bound = unsafe { gpu.bind(&big.program, &on_device.tensors(&big)) }.unwrap();
    let stream = &on_device.stream;
    // SAFETY: as above.
    let mut record = |on: &Stream| {
        // SAFETY: as above.
        recorded(on, || unsafe { gpu.launch(&bound, &[on]) })
    };
    let [graph, second] = [record(stream), record(&other)];
    on_device.fill(&big, 1);
    for _ in 0..5 {
        // SAFETY: as above.
        unsafe { graph.launch(stream) }.unwrap();
        // SAFETY: as above.
        unsafe { second.launch(&other) }.unwrap();
        stream.synchronize().unwrap();
        other.synchronize().unwrap();
        let outcome = gpu.outcome(&bound);
        println!("{outcome:?}");
        assert!(matches!(outcome, Err(RunError::Busy)), "{outcome:?}");
    }
    assert_eq!(gpu.outcome(&bound).unwrap(), 5);
    assert!(on_device.result(&big) == want(&big, 1));
}

/// What a stream is given, recorded.
fn recorded(stream: &Stream, give: impl FnOnce() -> Result<(), RunError>) -> Graph {
    Graph::record(stream, || give().map_err(Box::<dyn Failure>::from)).unwrap()
}

/// Two streams at once: one run goes on, the other is refused, by a test on the device.
#[test]
fn regress_sglang_31117_a_second_run_at_once_is_busy() {
    let Some(device) = device() else { return };
    let product = Product::new(1, (2048, 2048, 4096), 4);
    let mut gpu = Gpu::open(&product.registry, &device, Limits::default()).unwrap();
    let on_device = OnDevice::new(&device, &product);
    let other = Stream::new(&device.context().unwrap()).unwrap();
    // SAFETY: as above.
    let bound = unsafe { gpu.bind(&product.program, &on_device.tensors(&product)) }.unwrap();
    on_device.fill(&product, 1);
    for _ in 0..20 {
        // SAFETY: as above.
        unsafe { gpu.launch(&bound, &[&on_device.stream]) }.unwrap();
        // SAFETY: as above.
        unsafe { gpu.launch(&bound, &[&other]) }.unwrap();
        assert!(matches!(gpu.wait(&bound), Err(RunError::Busy)));
        gpu.wait(&bound).unwrap();
        on_device.stream.synchronize().unwrap();
        other.synchronize().unwrap();
    }
    assert_eq!(gpu.outcome(&bound).unwrap(), 20);
    assert!(on_device.result(&product) == want(&product, 1));
}

/// A resident kernel leaves when it has nothing to do, comes back by itself, and takes programs from a queue.
#[test]
fn a_resident_kernel_leaves_and_comes_back() {
    let Some(device) = device() else { return };
    let product = Product::new(2, FUSED, 8);
    let limits = Limits { idle_us: 20_000, reserved_sms: 4, ..Limits::default() };
    let mut gpu = Gpu::builder(&product.registry).all(&device).limits(limits).resident().open().unwrap();
    for seed in 0..6 {
        let want = product.want(seed);
        for pause in [0, 0, 19, 20, 21, 60] {
            std::thread::sleep(std::time::Duration::from_millis(pause));
            assert!(gpu.run(&product.program, &product.tensors(seed)).unwrap() == want, "{seed}, {pause} ms");
        }
        if seed == 3 {
            gpu.park().unwrap();
        }
    }
}

/// Everything is given back: 50 sessions one after the other.
#[test]
fn regress_uccl_988_fifty_sessions_leave_nothing_behind() {
    let Some(device) = device() else { return };
    let product = Product::new(2, FUSED, 4);
    let want = product.want(1);
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut after_first = None;
    for cycle in 0..50 {
        let builder = Gpu::builder(&product.registry).all(&device);
        let mut gpu = if cycle % 2 == 0 { builder } else { builder.resident() }.open().unwrap();
        assert!(gpu.run(&product.program, &product.tensors(1)).unwrap() == want, "cycle {cycle}");
        drop(gpu);
        if cycle >= 4 {
            let context = device.context().unwrap();
            let (free, _) = context.memory().unwrap();
            drop(context);
            let now = (free >> 22, files());
            let first = *after_first.get_or_insert(now);
            assert!(now.0 + 16 >= first.0 && now.1 <= first.1 + 4, "cycle {cycle}: {first:?}, then {now:?}");
        }
    }
    assert!(device.driver().take_failures().is_empty());
}

/// More memory than there is: an error that says how much, and the session goes on.
#[test]
fn too_little_memory_is_a_typed_error() {
    let Some(device) = device() else { return };
    let product = Product::new(1, FUSED, 4);
    let mut gpu = Gpu::open(&product.registry, &device, Limits::default()).unwrap();
    let mut b = ProgramBuilder::new("huge", &product.registry);
    b.region(Region::heap("huge", DType::F32, Shape::Uniform([1 << 20, 1 << 20]))).unwrap();
    let huge = b.finish().unwrap().verify(&product.registry, &Hardware::h200()).unwrap();
    let RunError::Hardware(why) = gpu.load(&huge).unwrap_err() else { panic!("another error") };
    assert!(why.kind.contains("memory"), "{why:?}");
    assert!(gpu.run(&product.program, &product.tensors(1)).unwrap() == product.want(1));
}
