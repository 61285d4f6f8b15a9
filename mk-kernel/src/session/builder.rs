//! How a session is opened.

use super::bound::Later;
use super::place::Place;
use super::{Gpu, Limits, too_many};
use crate::abi::{Geometry, LAUNCH_RANKS};
use crate::driver::Device;
use crate::{Arch, Cache, Compiler, Error, Options, Source};
use mk_core::{Rank, Registry};
use std::path::PathBuf;

/// What a session is opened with. See [`Gpu::builder`].
pub struct GpuBuilder<'a> {
    registry: &'a Registry,
    ranks: Vec<(Rank, Device)>,
    limits: Limits,
    folder: Option<PathBuf>,
    resident: bool,
    trace: bool,
    code: Option<(Vec<u8>, u32)>,
}

impl<'a> GpuBuilder<'a> {
    pub(super) fn new(registry: &'a Registry) -> GpuBuilder<'a> {
        let (ranks, limits) = (Vec::new(), Limits::default());
        GpuBuilder { registry, ranks, limits, folder: None, resident: false, trace: false, code: None }
    }

    /// Puts a rank of this process on a GPU.
    #[must_use]
    pub fn rank(mut self, rank: Rank, device: &Device) -> Self {
        self.ranks.push((rank, device.clone()));
        self
    }

    /// Puts all ranks of the world on one GPU.
    #[must_use]
    pub fn all(mut self, device: &Device) -> Self {
        self.ranks = self.registry.topology().ranks().map(|r| (r, device.clone())).collect();
        self
    }

    /// How long things may take.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        GpuBuilder { limits, ..self }
    }

    /// Where the processes of this node meet, if this is not the only one: a folder that nobody else reaches.
    #[must_use]
    pub fn meet_in(self, folder: impl Into<PathBuf>) -> Self {
        GpuBuilder { folder: Some(folder.into()), ..self }
    }

    /// One kernel that stays, and takes runs from a queue, in place of a launch a run. It takes all SMs but
    /// [`Limits::reserved_sms`], and leaves when it has had nothing to do for [`Limits::idle_us`].
    #[must_use]
    pub fn resident(self) -> Self {
        GpuBuilder { resident: true, ..self }
    }

    /// Whether [`Gpu::trace`] tells what runs did. The kernel is another one then, which looks at the clock around every task
    /// and wait, so runs take longer.
    #[must_use]
    pub fn trace(self, trace: bool) -> Self {
        GpuBuilder { trace, ..self }
    }

    /// Machine code that was made elsewhere, and the dynamic shared memory of its blocks: where there is no compiler. It traces
    /// only if it was compiled with [`Options::trace`], too.
    #[must_use]
    pub fn code(self, cubin: &[u8], shared_bytes: u32) -> Self {
        GpuBuilder { code: Some((cubin.into(), shared_bytes)), ..self }
    }

    /// Opens it.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open(self) -> Result<Gpu, Error> {
        let source = Source::of(self.registry)?;
        let mut places: Vec<Place> = Vec::new();
        let mut code = self.code;
        for (rank, device) in &self.ranks {
            if let Some(place) = places.iter_mut().find(|p| p.device().facts() == device.facts()) {
                place.ranks.push(*rank);
                continue;
            }
            let (cubin, shared_bytes) = match &code {
                Some(code) => code,
                None => code.insert(build(&source, device, self.trace)?),
            };
            places.push(Place::new(device, *rank, cubin, *shared_bytes, self.resident)?);
        }
        if let Some(place) = places.iter().find(|p| p.ranks.len() > LAUNCH_RANKS) {
            return Err(too_many(place.ranks.len(), place.device()));
        }
        places.iter_mut().for_each(|p| p.ranks.sort_unstable());
        let (registry, limits, folder) = (self.registry.clone(), self.limits, self.folder);
        Ok(Gpu {
            registry,
            source,
            limits,
            folder,
            generation: 1,
            later: Later::default(),
            stuck: None,
            trace: self.trace,
            failed: None,
            loaded: Vec::new(),
            places,
        })
    }
}

/// Machine code for a GPU, and the shared memory of its blocks.
fn build(source: &Source, device: &Device, trace: bool) -> Result<(Vec<u8>, u32), Error> {
    let [major, minor] = device.facts().capability;
    let arch: Arch = format!("sm_{major}{minor}a").parse()?;
    let options = Options { arch, trace, ..Options::default() };
    let built = Cache::user().build(&Compiler::find()?, source, &options)?;
    Ok((built.cubin, built.report.dynamic_shared_bytes.unwrap_or(Geometry::SHARED_BYTES)))
}
