//! Entry points for fuzzing: each takes any bytes, and panics only where the crate is wrong.
//!
//! Tests run them on random bytes, on mutations of valid files and on a committed corpus; `fuzz/` wraps them.

use crate::{
    Access, ArgError, CopyArgs, DType, Direction, DynHandler, Env, Handler, Hardware, Limits, Mode, Phase,
    Program, Proxy, Rank, Region, RegionId, RegionKind, Registry, Shape, Spec, Step, Stream, Topology, Views,
    Walk, World, copy_model, copy_spec, device_args,
};

device_args! {
    /// Arguments of [`Fill`].
    pub struct FillArgs {
        /// What is filled.
        pub dst: RegionId,
        /// With what.
        pub value: f32,
    }
}

/// Fills a region: a compute handler for programs that are only read and written.
pub struct Fill;

impl Handler for Fill {
    type Args = FillArgs;
    const NAME: &'static str = "fill";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, a: &FillArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        let (region, rank) = (a.dst, env.rank);
        let rect = env.region(region)?.whole(rank);
        let mut spec = Spec::new(1);
        let (mode, at, walk, proxy) = (Mode::Write, Phase::Store, Walk::Whole, Proxy::Generic);
        spec.touch(env, Access { region, rank, rect, mode, at, walk, proxy })?;
        Ok(spec)
    }

    fn model(&self, a: &FillArgs, _: Step, views: &mut Views<'_>) {
        let n = views.get(0).rows * views.get(0).cols;
        views.store_f32(0, &vec![a.value; n]);
    }
}

/// Copies a rectangle: a comm handler for programs that are only read and written.
pub struct Copy;

impl Handler for Copy {
    type Args = CopyArgs;
    const NAME: &'static str = "copy";
    const VERSION: u32 = 2;
    const STREAM: Stream = Stream::Comm;

    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::Put)
    }

    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::Put, step, views);
    }
}

/// A registry of `ranks` ranks with [`Fill`] and [`Copy`].
///
/// # Panics
/// If there is no world of this size.
pub fn registry(ranks: u64) -> Registry {
    let world = World::local(ranks).expect("a world of this size");
    Registry::builder().handler(Fill).handler(Copy).build(&world).expect("two handlers with different names")
}

/// A program file: what is accepted is written again as the same bytes.
pub fn program_file(bytes: &[u8]) {
    program_file_with(&registry(1), bytes);
    // The body alone, under a header that fits: mutations get past the checksum.
    program_file_with(&registry(1), &crate::file::with_header(bytes));
}

fn program_file_with(registry: &Registry, bytes: &[u8]) {
    let Ok(program) = Program::read(bytes, registry) else { return };
    let mut again = Vec::new();
    program.write(registry, &mut again).expect("what was read can be written");
    assert!(again == bytes, "a program has one file");
}

/// A topology file: what is accepted is described by a file that is accepted, and all its ranks have answers.
pub fn topology_toml(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(topology) = Topology::from_toml(text) else { return };
    assert!(topology.size() as u64 <= Limits::RANKS);
    assert_eq!(Topology::from_toml(&topology.to_toml()).ok(), Some(topology.clone()));
    for rank in [Rank(0), Rank((topology.size() - 1) as u16)] {
        let _ = (topology.local(rank), topology.nic_of(rank), topology.networked(Rank(0), rank));
    }
}

/// A hardware profile: what is accepted is described by a file that is accepted, with times that are numbers.
pub fn hardware_toml(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(hardware) = Hardware::from_toml(text) else { return };
    assert_eq!(Hardware::from_toml(&hardware.to_toml()).ok(), Some(hardware.clone()));
    let mut spec = Spec::new(1);
    spec.work.read_bytes = 1;
    assert!(hardware.time("gemm", &spec, 1).load_ns > 0.0);
}

/// Launchers' variables, one `NAME=value` a line.
pub fn launcher(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let find = |name: &str| {
        text.lines().find_map(|l| l.split_once('=').filter(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    };
    let Ok(world) = World::from_vars(find) else { return };
    let rank = world.rank.expect("a launched process is one rank");
    assert!((rank.0 as u32) < world.size());
}

/// Arguments of the handlers of [`registry`].
pub fn device_args(bytes: &[u8]) {
    registry(1).handlers().iter().for_each(|h| handler_args(&**h, bytes));
}

/// A handler's arguments: any bytes have a spec or an error, and JSON that gives them back.
pub fn handler_args(handler: &dyn DynHandler, bytes: &[u8]) {
    let mut args = [0; Limits::ARG_BYTES];
    for (to, from) in args.iter_mut().zip(bytes) {
        *to = *from;
    }
    let shape = Shape::Uniform([64, 64]);
    let region =
        |name: &str, dtype| Region::new(name, RegionKind::Heap, crate::Io::Scratch, dtype, shape.clone());
    let regions = [region("bf16", DType::Bf16), region("also bf16", DType::Bf16), region("fp32", DType::F32)];
    let _ = handler.spec(&args, &Env { regions: &regions, rank: Rank(0), ranks: 2 });
    let mut json = Vec::new();
    if handler.write_args(&args, &mut json).is_ok() {
        let raw = serde_json::from_slice(&json).expect("arguments are written as JSON");
        assert_eq!(handler.args_from_json(raw).ok(), Some(args));
    }
    if let Ok(raw) = serde_json::from_slice(bytes) {
        let _ = handler.args_from_json(raw);
    }
}
