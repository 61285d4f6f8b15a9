//! Machine code in a GPU: its kernels, what they use, how many blocks of them can be resident, and their launch.

use crate::context::{Context, Shared};
use crate::cubin;
use crate::error::{Error, Failure, Limit, code};
use crate::ledger::{Entry, Kind};
use crate::stream::Stream;
use cudarc::driver::sys;
use serde::Serialize;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use sys::CUfunction_attribute as Attribute;

/// By whole percents, what MPS gives this process of a GPU.
const MPS_SHARE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// Loaded machine code. Unloaded when it and its kernels are dropped.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    handle: Shared<sys::CUmod_st>,
    entry: Entry,
}

impl Module {
    /// Loads a cubin.
    ///
    /// # Errors
    /// [`Error::NotCubin`]; [`Error::Image`] if the driver does not take it; [`Error::OutOfMemory`], [`Error::Call`].
    pub fn load(context: &Context, cubin: &[u8]) -> Result<Module, Error> {
        cubin::check(cubin).map_err(|message| Error::NotCubin { message })?;
        let loaded = context.with(|calls| {
            let mut handle = ptr::null_mut();
            // SAFETY: it points at a handle of ours; the file is whole, so what the driver reads is there.
            unsafe { calls.cuModuleLoadData(&raw mut handle, cubin.as_ptr().cast()) }?;
            let entry = context.open(Kind::Module);
            Ok(Module { inner: Arc::new(Inner { context: context.clone(), handle: Shared(handle), entry }) })
        });
        loaded.map_err(|f| refused_image(context, f))
    }

    /// A kernel of it, loaded into the GPU: otherwise its first launch would do that, which can wait for a resident kernel.
    ///
    /// # Errors
    /// [`Error::NoKernel`]; [`Error::Image`], [`Error::Call`].
    pub fn kernel(&self, name: &str) -> Result<Kernel, Error> {
        let context = &self.inner.context;
        let no_kernel = || Error::NoKernel { name: name.into() };
        let text = CString::new(name).map_err(|_| no_kernel())?;
        let found = context.with(|calls| {
            let mut function = ptr::null_mut();
            // SAFETY: it points at a handle of ours; the module lives; a C string.
            unsafe {
                calls.cuModuleGetFunction(&raw mut function, self.inner.handle.0, text.as_ptr())?;
                calls.cuFuncLoad(function)?;
            }
            Ok((Shared(function), kernel_facts(context, function)?))
        });
        match found {
            Ok((function, facts)) => Ok(Kernel { module: self.clone(), function, name: name.into(), facts }),
            Err(f) if f.code == code::NOT_FOUND => Err(no_kernel()),
            Err(f) => Err(refused_image(context, f)),
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:?})", self.inner.context)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: loaded in `load`, and not unloaded yet; kernels hold `self`.
        self.context.release(&self.entry, |calls| unsafe { calls.cuModuleUnload(self.handle.0) });
    }
}

fn refused_image(context: &Context, failure: Failure) -> Error {
    let refusals = [code::INVALID_IMAGE, code::NO_BINARY_FOR_GPU, code::INVALID_PTX, code::INVALID_SOURCE];
    let device = context.device();
    if refusals.contains(&failure.code) {
        let [major, minor] = device.facts().capability;
        let capability = format!("{major}.{minor}");
        return Error::Image { device: device.to_string(), capability, failure };
    }
    context.memory_refused("a module", 0, failure)
}

/// What a kernel uses, as the driver tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KernelFacts {
    /// Registers of a thread.
    pub registers: u32,
    /// Local memory of a thread, in bytes: its stack, and registers that were spilled.
    pub local_bytes: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Most threads of a block.
    pub threads: u32,
    /// The architecture that the machine code is for, times ten.
    pub binary: u32,
    /// Size of its first parameter, in bytes; 0 if it has none.
    pub parameter_bytes: u64,
}

fn kernel_facts(context: &Context, function: sys::CUfunction) -> Result<KernelFacts, Failure> {
    let calls = context.driver().calls();
    let number = |attribute| {
        let mut value: c_int = 0;
        // SAFETY: it points at an int of ours; the function lives.
        unsafe { calls.cuFuncGetAttribute(&raw mut value, attribute, function) }?;
        Ok::<u32, Failure>(u32::try_from(value).unwrap_or(0))
    };
    let (mut offset, mut parameter_bytes) = (0, 0);
    // SAFETY: both point at sizes of ours; the function lives.
    let parameter =
        unsafe { calls.cuFuncGetParamInfo(function, 0, &raw mut offset, &raw mut parameter_bytes) };
    match parameter {
        // It has no such parameter.
        Err(f) if f.code == code::INVALID_VALUE => parameter_bytes = 0,
        other => other?,
    }
    Ok(KernelFacts {
        registers: number(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
        local_bytes: number(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        shared_bytes: number(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        threads: number(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        binary: number(Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        parameter_bytes: parameter_bytes as u64,
    })
}

/// The size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Blocks 0 and 1, 2 and 3, ... run on neighbouring multiprocessors and reach each other's shared memory.
    pub pairs: bool,
    /// Its blocks may begin while those of the kernel before it on the stream leave: what they do before they execute
    /// `griddepcontrol.wait` must not depend on it.
    pub early: bool,
}

impl Launch {
    fn attributes(&self) -> Vec<sys::CUlaunchAttribute> {
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let dim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 2, y: 1, z: 1 };
        let pairs = attribute(
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            sys::CUlaunchAttributeValue { clusterDim: dim },
        );
        let early = attribute(
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        );
        let all = [(self.pairs, pairs), (self.early, early)];
        all.into_iter().filter(|(set, _)| *set).map(|(_, attribute)| attribute).collect()
    }

    /// What the driver is told; it reads the attributes.
    fn config(
        &self,
        stream: sys::CUstream,
        attributes: &mut [sys::CUlaunchAttribute],
    ) -> sys::CUlaunchConfig {
        sys::CUlaunchConfig {
            gridDimX: self.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as c_uint,
        }
    }
}

/// A kernel, loaded into a GPU.
pub struct Kernel {
    module: Module,
    function: Shared<sys::CUfunc_st>,
    name: String,
    facts: KernelFacts,
}

impl Kernel {
    /// What it uses.
    pub fn facts(&self) -> &KernelFacts {
        &self.facts
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Allows it so much dynamic shared memory, in bytes: without being asked, the driver gives 48 KB.
    ///
    /// # Errors
    /// [`Error::Lacks`] if a block of this GPU does not have as much; [`Error::Call`].
    pub fn allow_shared(&self, bytes: u32) -> Result<(), Error> {
        let device = self.context().device();
        let needed = u64::from(bytes) + u64::from(self.facts.shared_bytes);
        if needed > device.facts().shared_bytes {
            return Err(Error::Lacks {
                device: device.to_string(),
                what: "bytes of shared memory for a block".into(),
                found: device.facts().shared_bytes.to_string(),
                needed: needed.to_string(),
            });
        }
        let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function lives.
        self.context().call(|calls| unsafe { calls.cuFuncSetAttribute(self.function.0, attribute, value) })
    }

    /// How many blocks of so many threads and bytes of dynamic shared memory can be resident.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn residency(&self, threads: u32, shared_bytes: u32) -> Result<Residency, Error> {
        let device = self.context().device();
        let mut blocks: c_int = 0;
        let (count, bytes) = (c_int::try_from(threads).unwrap_or(c_int::MAX), shared_bytes as usize);
        self.context().call(|calls| {
            // SAFETY: it points at an int of ours; the function lives.
            unsafe {
                calls.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &raw mut blocks,
                    self.function.0,
                    count,
                    bytes,
                )
            }
        })?;
        let facts = device.facts();
        let needs = Needs {
            registers: self.facts.registers.saturating_mul(threads),
            registers_found: facts.registers,
            shared: u64::from(shared_bytes) + u64::from(self.facts.shared_bytes),
            shared_found: facts.shared_bytes,
        };
        let share = std::env::var(MPS_SHARE).ok().and_then(|s| s.trim().parse::<f32>().ok());
        Ok(Residency {
            device: device.to_string(),
            blocks_per_multiprocessor: u32::try_from(blocks).unwrap_or(0),
            multiprocessors: facts.multiprocessors,
            needs,
            // A share of nothing is not one.
            share: share.filter(|s| (0.0..100.0).contains(s)).map(|s| s as u32),
        })
    }

    /// How many pairs of blocks of so many threads and bytes of dynamic shared memory can be resident: the blocks of a pair reach
    /// each other's shared memory.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn pairs(&self, threads: u32, shared_bytes: u32) -> Result<u32, Error> {
        let size = Launch { blocks: 2, threads, shared_bytes, pairs: true, early: false };
        let mut attributes = size.attributes();
        let config = size.config(ptr::null_mut(), &mut attributes);
        let mut clusters: c_int = 0;
        self.context().call(|calls| {
            // SAFETY: it points at an int of ours; the function lives, and the attribute outlives the call.
            unsafe {
                calls.cuOccupancyMaxActiveClusters(&raw mut clusters, self.function.0, &raw const config)
            }
        })?;
        Ok(u32::try_from(clusters).unwrap_or(0))
    }

    /// Starts it, with its one parameter. Does not wait for it.
    ///
    /// # Errors
    /// [`Error::Parameter`]; [`Error::ContextLost`], [`Error::Call`].
    ///
    /// # Safety
    /// The kernel is given what it expects: every address in the parameter is one that it may use as it does, for as long as it
    /// runs.
    pub unsafe fn launch<P: Copy>(&self, stream: &Stream, size: Launch, parameter: &P) -> Result<(), Error> {
        let given = size_of::<P>() as u64;
        if given != self.facts.parameter_bytes {
            let needed = self.facts.parameter_bytes;
            return Err(Error::Parameter { name: self.name.clone(), given, needed });
        }
        let mut parameters: [*mut c_void; 1] = [ptr::from_ref(parameter).cast_mut().cast()];
        let mut attributes = size.attributes();
        let config = size.config(stream.handle(), &mut attributes);
        self.context().call(|calls| {
            // SAFETY: function and stream live; the attributes outlive the call; the parameter has the size that the function
            // takes, and is copied by the call; what the kernel does with it is the caller's promise.
            unsafe {
                calls.cuLaunchKernelEx(
                    &raw const config,
                    self.function.0,
                    parameters.as_mut_ptr(),
                    ptr::null_mut(),
                )
            }
        })
    }

    fn context(&self) -> &Context {
        &self.module.inner.context
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({}, {:?})", self.name, self.facts)
    }
}

/// How many blocks of a kernel can be resident at the same time. More lanes than that would wait for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    device: String,
    blocks_per_multiprocessor: u32,
    multiprocessors: u32,
    needs: Needs,
    /// What MPS gives, in percent, if it is less than all.
    share: Option<u32>,
}

/// What a block needs, and what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Needs {
    registers: u32,
    registers_found: u32,
    shared: u64,
    shared_found: u64,
}

impl Residency {
    /// Blocks that can be resident, with `left_free` multiprocessors left for other kernels.
    pub fn blocks(&self, left_free: u32) -> u32 {
        let used = self.multiprocessors.saturating_sub(left_free);
        self.blocks_per_multiprocessor.saturating_mul(used)
    }

    /// Whether so many lanes can be resident, with `left_free` multiprocessors left for other kernels.
    ///
    /// # Errors
    /// [`Error::Resident`] says both numbers and what is used up.
    pub fn check(&self, lanes: u32, left_free: u32) -> Result<(), Error> {
        let resident = self.blocks(left_free);
        if lanes <= resident {
            return Ok(());
        }
        Err(Error::Resident {
            device: self.device.clone(),
            lanes,
            resident,
            blocks_per_multiprocessor: self.blocks_per_multiprocessor,
            multiprocessors: self.multiprocessors,
            left_free,
            limit: self.limit(lanes),
        })
    }

    fn limit(&self, lanes: u32) -> Limit {
        let Needs { registers, registers_found, shared, shared_found } = self.needs;
        match (self.blocks_per_multiprocessor, self.share) {
            _ if lanes <= self.blocks(0) => Limit::LeftFree,
            (1.., Some(percent)) => Limit::ProcessShare { percent },
            (1.., None) => Limit::Multiprocessors,
            _ if shared > shared_found => Limit::SharedMemory { needed: shared, found: shared_found },
            _ if registers > registers_found => {
                Limit::Registers { needed: registers, found: registers_found }
            }
            (0, Some(percent)) => Limit::ProcessShare { percent },
            (0, None) => Limit::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn residency(blocks_per_multiprocessor: u32, share: Option<u32>) -> Residency {
        let needs =
            Needs { registers: 168 * 384, registers_found: 65_536, shared: 231_168, shared_found: 232_448 };
        Residency { device: "GPU 0".into(), blocks_per_multiprocessor, multiprocessors: 132, needs, share }
    }

    fn limit(r: &Residency, lanes: u32, left_free: u32) -> Limit {
        match r.check(lanes, left_free) {
            Err(Error::Resident { limit, .. }) => limit,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_reason_is_what_is_used_up() {
        let r = residency(1, None);
        assert!(r.check(132, 0).is_ok() && r.check(128, 4).is_ok());
        assert_eq!(limit(&r, 133, 0), Limit::Multiprocessors);
        assert_eq!(limit(&r, 129, 4), Limit::LeftFree);
        assert_eq!(limit(&r, 1, 500), Limit::LeftFree);
        assert_eq!(limit(&residency(1, Some(50)), 133, 0), Limit::ProcessShare { percent: 50 });
        let mut r = residency(0, None);
        assert_eq!(limit(&r, 1, 0), Limit::Unknown);
        r.needs.registers = 70_000;
        assert_eq!(limit(&r, 1, 0), Limit::Registers { needed: 70_000, found: 65_536 });
        r.needs.shared = 300_000;
        assert_eq!(limit(&r, 1, 0), Limit::SharedMemory { needed: 300_000, found: 232_448 });
    }
}
