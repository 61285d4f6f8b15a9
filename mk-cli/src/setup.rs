//! From options to world, hardware and registry.

use crate::args::{HardwareArgs, WorldArgs};
use crate::error::Failure;
use mk_core::{Hardware, Registry, Topology, World};
use std::path::Path;

/// Text files are read whole; none that makes sense is larger.
const TEXT_BYTES: u64 = 16 << 20;

/// The world of `--ranks`, `--nodes` and `--topology`.
pub(crate) fn world(args: &WorldArgs) -> Result<World, Failure> {
    match &args.topology {
        Some(file) => topology_file(file).map(World::of),
        None => uniform(args.nodes, args.ranks),
    }
}

/// `ranks` GPUs on equal nodes; as soon as there are several, each GPU has a NIC.
pub(crate) fn uniform(nodes: u64, ranks: u64) -> Result<World, Failure> {
    let nics = if nodes > 1 { (ranks / nodes).min(mk_core::Limits::NICS) as u32 } else { 0 };
    Ok(World::of(Topology::uniform(nodes, ranks, nics)?))
}

/// A topology from a file.
pub(crate) fn topology_file(path: &Path) -> Result<Topology, Failure> {
    Topology::from_toml(&text_file(path)?).map_err(|e| Failure::from(e).of_file(path))
}

/// The profile of `--hardware`: a built-in name, or a file.
pub(crate) fn hardware(args: &HardwareArgs) -> Result<Hardware, Failure> {
    let path = &args.hardware;
    match path.to_str().filter(|name| Hardware::NAMES.contains(name)) {
        Some(name) => Ok(Hardware::named(name)?),
        None if path.symlink_metadata().is_err() => Ok(Hardware::named(&path.to_string_lossy())?),
        None => Hardware::from_toml(&text_file(path)?).map_err(|e| Failure::from(e).of_file(path)),
    }
}

/// Everything that this command can plan with and run.
pub(crate) fn registry(world: &World) -> Result<Registry, Failure> {
    Ok(Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .transport(mk_rdma::Rdma::ordered())
        .handlers(mk_compute::handlers())
        .build(world)?)
}

/// A text file of a sensible size.
pub(crate) fn text_file(path: &Path) -> Result<String, Failure> {
    let bytes = crate::input::read(path, TEXT_BYTES)?;
    String::from_utf8(bytes).map_err(|_| Failure::file(path, "is not text (UTF-8)", "give a TOML file"))
}
