//! An operation of your own: one file of Rust, one of CUDA, and one `handler` call.
//!
//! The handler's `spec` says what a task touches; the verifier, the simulator and the planner need nothing else. Here:
//! rank 0 sends a matrix to rank 1, which applies a leaky ReLU. First a signal is forgotten, and the verifier says so.
//! At the end, the kernel that has the handler is compiled, if this machine has CUDA's compiler; a GPU is not needed.

use mk_core::*;
use mk_kernel::{Cache, Compiler, Options, Source, TABLE_HEADER};
use mk_sim::Simulator;

device_args! {
    /// Arguments of [`LeakyRelu`].
    pub struct LeakyReluArgs {
        /// Region that is read.
        pub src: RegionId,
        /// Region that is written.
        pub dst: RegionId,
        /// Rows.
        pub rows: u32,
        /// Columns.
        pub cols: u32,
        /// Slope below 0.
        pub slope: f32,
        /// First row in `src`.
        pub src_row: u64,
        /// First column in `src`.
        pub src_col: u64,
        /// First row in `dst`.
        pub dst_row: u64,
        /// First column in `dst`.
        pub dst_col: u64,
    }
}

/// `x` where it is positive, `slope * x` elsewhere; over a rectangle.
struct LeakyRelu;

impl Handler for LeakyRelu {
    type Args = LeakyReluArgs;
    const NAME: &'static str = "leaky_relu";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    /// Legality, footprint and work, in one place.
    fn spec(&self, a: &LeakyReluArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        let (src, dst) = (env.region(a.src)?, env.region(a.dst)?);
        if src.dtype != dst.dtype || src.dtype == DType::I32 {
            return Err(ArgError::new(format!(
                "takes two float regions of one type, not {} and {}",
                src.dtype, dst.dtype
            )));
        }
        let (rows, cols) = (u64::from(a.rows), u64::from(a.cols));
        // Page by page, as its device side does; so a wait can guard a part of it.
        let block = mk_compute::block_rows(cols, src.dtype);
        let mut spec = Spec::new(rows.div_ceil(block) as u32);
        let access = |region, [row, col]: [u64; 2], mode, at| Access {
            region,
            rank: env.rank,
            rect: Rect::new(row, col, rows, cols),
            mode,
            at,
            walk: Walk::Rows(block),
            proxy: Proxy::Async,
        };
        spec.touch(env, access(a.src, [a.src_row, a.src_col], Mode::Read, Phase::Load))?;
        spec.touch(env, access(a.dst, [a.dst_row, a.dst_col], Mode::Write, Phase::Store))?;
        spec.work.vector_flops = 2 * rows * cols;
        Ok(spec)
    }

    /// The arithmetic. It sees the bytes that the spec names: 0 is the read, 1 is the write.
    fn model(&self, a: &LeakyReluArgs, _: Step, views: &mut Views<'_>) {
        let out: Vec<f32> =
            views.load_f32(0).into_iter().map(|x| if x > 0.0 { x } else { a.slope * x }).collect();
        views.store_f32(1, &out);
    }

    /// The same on a GPU: a struct in a file of CUDA. What the two share is generated from [`LeakyReluArgs`].
    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "02_leaky_relu.cuh",
            source: include_str!("02_leaky_relu.cuh"),
            name: "lesson::LeakyRelu",
            pages: 1,
            math_registers: 216,
            min_arch: 90,
        })
    }
}

const SIDE: u64 = 64;

/// Rank 0 pushes `x` to rank 1, which applies the handler; with or without the signals that order the two.
fn program(registry: &Registry, signals: bool) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("push, then leaky relu", registry);
    let on = |rank| Shape::PerRank((0..2).map(|r| if r == rank { [SIDE, SIDE] } else { [0, 0] }).collect());
    let x = b.region(Region::input("x", DType::F32, on(0)))?;
    let inbox = b.region(Region::heap("inbox", DType::F32, Shape::Uniform([SIDE, SIDE])))?;
    let y = b.region(Region::output("y", DType::F32, on(1)))?;

    let (from, to) = (Rank(0), Rank(1));
    let put = b.op(registry.route(from, to, Caps::PUT | Caps::SIGNAL)?.handler(CommOp::PutSignal)?)?;
    let relu = b.op(LeakyRelu::NAME)?;
    let (rows, cols) = (SIDE as u32, SIDE as u32);
    let copy = CopyArgs {
        src: x,
        dst: inbox,
        peer: to,
        units: 1,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
        rows,
        cols,
    };
    let lane = Queue::Lane(Lane(0));
    let label = b.label("push x");
    let push = b.task(from, lane, put, label, &copy)?;
    let relu_args = LeakyReluArgs {
        src: inbox,
        dst: y,
        rows,
        cols,
        slope: 0.25,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    };
    let label = b.label("activate");
    let activate = b.task(to, lane, relu, label, &relu_args)?;
    if signals {
        b.edge(&[push], activate)?; // what was pushed is there before it is read
        b.credit(&[activate], push)?; // the next epoch's push waits until it has been read
    }
    b.finish()
}

/// The kernel of all registered handlers: its text on any machine, its machine code where NVRTC is.
fn kernel(registry: &Registry) -> Result<(), mk_kernel::Error> {
    let source = Source::of(registry)?;
    let table = source.header(TABLE_HEADER).unwrap_or_default();
    for line in table.lines().filter(|l| l.contains("LeakyRelu") || l.contains("leaky_relu")) {
        println!("  {line}");
    }
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(e) => {
            println!("not compiled: {e} ({})", e.explain().hint);
            return Ok(());
        }
    };
    let built = Cache::user().build(&compiler, &source, &Options::default())?;
    let spills: u32 = built.report.functions.iter().map(|f| f.spill_store_bytes).sum();
    println!("compiled: {} bytes of machine code, {spills} bytes spilled", built.cubin.len());
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::local(2)?;
    let registry =
        Registry::builder().transport(mk_nvlink::NvLink::new()).handler(LeakyRelu).build(&world)?;
    let hardware = Hardware::h200();

    match program(&registry, false)?.verify(&registry, &hardware) {
        Err(e) => println!("without signals: {e}\n  what to do: {}\n", e.explain().hint),
        Ok(_) => return Err("a race was proved to be none".into()),
    }

    let program = program(&registry, true)?.verify(&registry, &hardware)?;
    println!("with signals: proved, {} pair of accesses is ordered", program.proof().pairs);

    let x: Vec<f32> = (0..SIDE * SIDE).map(|i| i as f32 - 2048.0).collect();
    let mut gpus = Simulator::builder(&registry).build();
    for epoch in 1..=3 {
        let x: Vec<f32> = x.iter().map(|v| v * epoch as f32).collect();
        let mut bindings = Bindings::new();
        bindings.set(Rank(0), "x", Tensor::from_f32(DType::F32, SIDE, SIDE, &x));
        let out = gpus.run(&program, &bindings)?;
        let y = out.get(Rank(1), "y").ok_or("rank 1 has an output")?.to_f32();
        for (x, y) in x.iter().zip(&y) {
            let want = if *x > 0.0 { *x } else { x / 4.0 };
            if *y != want {
                return Err(format!("leaky_relu({x}) is {want}, not {y}").into());
            }
        }
        println!("epoch {epoch}: all {} elements are right; nothing was reset in between", y.len());
    }

    println!("\nin the kernel's table of handlers:");
    kernel(&registry)?;
    Ok(())
}
