//! Why the driver did not do what was asked.

use mk_core::Explanation;
use serde::Serialize;
use std::fmt;

/// A version of CUDA, as the driver tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CudaVersion {
    /// 13 of 13.0.
    pub major: u32,
    /// 0 of 13.0.
    pub minor: u32,
}

impl CudaVersion {
    /// From the number that `cuDriverGetVersion` gives: 13020 is 13.2.
    pub(crate) fn from_number(n: u32) -> CudaVersion {
        CudaVersion { major: n / 1000, minor: n % 1000 / 10 }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A call of the driver that returned an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{call} returned {code} ({name})")]
pub struct Failure {
    /// The function.
    pub call: &'static str,
    /// What it returned: a `CUresult`.
    pub code: u32,
    /// CUDA's name for it.
    pub name: String,
}

/// `CUresult`s that are looked at; CUDA's names without `CUDA_ERROR_`.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const STUB_LIBRARY: u32 = 34;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const INVALID_IMAGE: u32 = 200;
    pub(crate) const NO_BINARY_FOR_GPU: u32 = 209;
    pub(crate) const INVALID_PTX: u32 = 218;
    pub(crate) const INVALID_SOURCE: u32 = 300;
    pub(crate) const NOT_FOUND: u32 = 500;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
    pub(crate) const SYSTEM_NOT_READY: u32 = 802;
    pub(crate) const SYSTEM_DRIVER_MISMATCH: u32 = 803;
    pub(crate) const COMPAT_NOT_SUPPORTED: u32 = 804;
    pub(crate) const UNKNOWN: u32 = 999;

    /// After one of these, every further call in the context fails: `cuda.h` says that the process must be started again.
    pub(crate) const STICKY: [u32; 17] =
        [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 806, 810, 911];
}

impl Failure {
    /// Whether the context is lost with it.
    pub fn is_sticky(&self) -> bool {
        code::STICKY.contains(&self.code)
    }
}

/// What keeps a lane from being resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// There are no more multiprocessors.
    Multiprocessors,
    /// There would be enough multiprocessors, if none were left free for other kernels.
    LeftFree,
    /// Registers: what a block needs, and what a multiprocessor has.
    Registers {
        /// A block's.
        needed: u32,
        /// A multiprocessor's.
        found: u32,
    },
    /// Shared memory in bytes: what a block needs, and what it may have.
    SharedMemory {
        /// Static and dynamic.
        needed: u64,
        /// The most of a block.
        found: u64,
    },
    /// A multi-process service that gives this process only a part of the GPU, in percent.
    ProcessShare {
        /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`.
        percent: u32,
    },
    /// The driver does not say why.
    Unknown,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Multiprocessors => write!(f, "there are no more multiprocessors"),
            Limit::LeftFree => write!(f, "some multiprocessors are left free for other kernels"),
            Limit::Registers { needed, found } => {
                write!(f, "a block needs {needed} registers, a multiprocessor has {found}")
            }
            Limit::SharedMemory { needed, found } => {
                write!(f, "a block needs {needed} bytes of shared memory, and may have {found}")
            }
            Limit::ProcessShare { percent } => {
                write!(f, "MPS gives this process {percent} % of the GPU (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)")
            }
            Limit::Unknown => write!(f, "the driver does not say why"),
        }
    }
}

/// Why the driver did not do what was asked.
///
/// Every variant says what was found, what is needed and what to do: see [`Error::explain`].
#[derive(Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no driver.
    #[error("NVIDIA's driver library {library} was not found")]
    Missing {
        /// The file, or the name that the loader searched for.
        library: String,
    },
    /// There is a driver library, but it cannot be used.
    #[error("{library} cannot be used: {message}")]
    Unusable {
        /// Its file or name.
        library: String,
        /// What is wrong with it.
        message: String,
        /// What to do.
        hint: String,
    },
    /// The driver is older than what kernels are compiled for.
    #[error("the driver is for CUDA {found}, and CUDA {needed} is needed")]
    TooOld {
        /// What it is for.
        found: CudaVersion,
        /// What it has to be for, at least.
        needed: CudaVersion,
    },
    /// There is no GPU, or none is visible.
    #[error("the driver has no GPU")]
    NoDevice {
        /// `CUDA_VISIBLE_DEVICES`, if it is set.
        visible: Option<String>,
    },
    /// There is no GPU of this number.
    #[error("there is no GPU {ordinal}")]
    NoSuchDevice {
        /// The number that was given.
        ordinal: usize,
        /// How many there are.
        devices: usize,
    },
    /// The kernel's machine code does not run on this GPU.
    #[error("{device} has compute capability {found}, and the kernel needs {needed}")]
    Capability {
        /// The GPU.
        device: String,
        /// Of the GPU.
        found: String,
        /// What the kernel is compiled for.
        needed: String,
    },
    /// The GPU cannot do something, or has too little of it.
    #[error("{device} has {found} {what}, and {needed} is needed")]
    Lacks {
        /// The GPU.
        device: String,
        /// What is too little or missing.
        what: String,
        /// How much there is.
        found: String,
        /// How much is needed.
        needed: String,
    },
    /// Memory is used up.
    #[error("{device}: out of memory: {asked_bytes} bytes of {what} were asked for, {} are free", free(*.free_bytes))]
    OutOfMemory {
        /// The GPU.
        device: String,
        /// What kind of memory.
        what: &'static str,
        /// How much was asked for.
        asked_bytes: u64,
        /// How much the GPU has left; unknown for the host's memory.
        free_bytes: Option<u64>,
        /// The call that was refused.
        failure: Failure,
    },
    /// A GPU cannot reach the memory of another one.
    #[error("{from} cannot reach the memory of {to}{}", after(.failure.as_ref()))]
    PeerRefused {
        /// The GPU that wants to.
        from: String,
        /// The GPU whose memory it is.
        to: String,
        /// The call that was refused; none if the driver said no when asked.
        failure: Option<Failure>,
    },
    /// Memory cannot be given to another process.
    #[error("{device}: {bytes} bytes of memory cannot be given to other processes{}", after(.failure.as_ref()))]
    ExportRefused {
        /// The GPU whose memory it is.
        device: String,
        /// How much.
        bytes: u64,
        /// The call that was refused; none if the memory was not made to be given away.
        failure: Option<Failure>,
    },
    /// Memory of another process cannot be taken.
    #[error("{device} cannot take memory of another process: {failure}")]
    ImportRefused {
        /// The GPU that wants to reach it.
        device: String,
        /// How much.
        bytes: u64,
        /// The call that was refused.
        failure: Failure,
    },
    /// Multicast memory is not to be had.
    #[error("{device} cannot take part in multicast{}", after(.failure.as_ref()))]
    MulticastRefused {
        /// The GPU on which it failed.
        device: String,
        /// The call that was refused; none if the GPU says that it has no multicast.
        failure: Option<Failure>,
    },
    /// More lanes than blocks that can run at the same time: some would wait for others for ever.
    #[error(
        "{device} can hold {resident} blocks of this kernel at once, and {lanes} lanes are wanted: {limit}"
    )]
    Resident {
        /// The GPU.
        device: String,
        /// Lanes that are wanted.
        lanes: u32,
        /// Blocks that can run at the same time on what is not left free.
        resident: u32,
        /// Blocks on one multiprocessor.
        blocks_per_multiprocessor: u32,
        /// Multiprocessors of the GPU.
        multiprocessors: u32,
        /// Multiprocessors that are to stay free.
        left_free: u32,
        /// What is used up first.
        limit: Limit,
    },
    /// What was given is not machine code, or not all of it.
    #[error("this is no machine code for a GPU: {message}")]
    NotCubin {
        /// What is wrong with it.
        message: String,
    },
    /// The driver does not load the machine code.
    #[error("{device} does not take the kernel's machine code: {failure}")]
    Image {
        /// The GPU.
        device: String,
        /// Its compute capability.
        capability: String,
        /// The call that was refused.
        failure: Failure,
    },
    /// The machine code has no function of this name.
    #[error("the machine code has no kernel '{name}'")]
    NoKernel {
        /// What was asked for.
        name: String,
    },
    /// The kernel's parameter has another size than the host's.
    #[error("kernel '{name}' takes a parameter of {needed} bytes, and {given} were given")]
    Parameter {
        /// The kernel.
        name: String,
        /// Of the host's struct.
        given: u64,
        /// Of the kernel's.
        needed: u64,
    },
    /// Bytes outside of a piece of memory.
    #[error("bytes {offset}..{} of a piece of memory that has {bytes}", .offset.saturating_add(*.count))]
    OutOfRange {
        /// The first.
        offset: u64,
        /// How many.
        count: u64,
        /// How many there are.
        bytes: u64,
    },
    /// The context is lost: all of its memory, modules and streams are gone.
    #[error("{device}: the CUDA context is lost: {failure}")]
    ContextLost {
        /// The GPU.
        device: String,
        /// The call that told. What caused it may be any earlier one.
        failure: Failure,
    },
    /// Any other call that failed.
    #[error("{device}: {failure}")]
    Call {
        /// The GPU, or the driver.
        device: String,
        /// The call.
        failure: Failure,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = self.explain().hint;
        write!(f, "{self}")?;
        if hint.is_empty() { Ok(()) } else { write!(f, "\n  what to do: {hint}") }
    }
}

impl Error {
    /// The call of the driver that was refused, where it was one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Error::OutOfMemory { failure, .. }
            | Error::ImportRefused { failure, .. }
            | Error::Image { failure, .. }
            | Error::ContextLost { failure, .. }
            | Error::Call { failure, .. } => Some(failure),
            Error::PeerRefused { failure, .. }
            | Error::ExportRefused { failure, .. }
            | Error::MulticastRefused { failure, .. } => failure.as_ref(),
            _ => None,
        }
    }

    /// A stable word for the kind of error.
    fn kind(&self) -> &'static str {
        match self {
            Error::Missing { .. }
            | Error::Unusable { .. }
            | Error::TooOld { .. }
            | Error::NoDevice { .. }
            | Error::Capability { .. }
            | Error::Lacks { .. } => "missing",
            Error::NoSuchDevice { .. } | Error::OutOfRange { .. } => "input",
            Error::OutOfMemory { .. } => "out-of-memory",
            Error::PeerRefused { .. } => "peer-refused",
            Error::ExportRefused { .. } => "export-refused",
            Error::ImportRefused { .. } => "import-refused",
            Error::MulticastRefused { .. } => "multicast-refused",
            Error::Resident { .. } => "not-resident",
            Error::NotCubin { .. }
            | Error::Image { .. }
            | Error::NoKernel { .. }
            | Error::Parameter { .. } => "image",
            Error::ContextLost { .. } => "context-lost",
            Error::Call { .. } => "driver",
        }
    }

    /// The error as given, allowed and hint, for `--json` and for people.
    pub fn explain(&self) -> Explanation {
        let (given, allowed) = self.found_and_needed();
        Explanation { kind: self.kind(), message: self.to_string(), given, allowed, hint: self.hint() }
    }

    fn found_and_needed(&self) -> (String, String) {
        let failed = |f: Option<&Failure>| f.map_or_else(|| "not supported".into(), ToString::to_string);
        match self {
            Error::Missing { library } => (format!("no {library}"), "NVIDIA's driver".into()),
            Error::Unusable { library, .. } => (library.clone(), "a driver library that works".into()),
            Error::TooOld { found, needed } => {
                (format!("CUDA {found}"), format!("a driver for CUDA {needed} or newer"))
            }
            Error::NoDevice { visible: Some(v) } => {
                (format!("no GPU, with CUDA_VISIBLE_DEVICES={v}"), "at least one".into())
            }
            Error::NoDevice { visible: None } => ("no GPU".into(), "at least one".into()),
            Error::NoSuchDevice { ordinal, devices } => {
                (ordinal.to_string(), format!("less than {devices}, the number of GPUs"))
            }
            Error::Capability { found, needed, .. } | Error::Lacks { found, needed, .. } => {
                (found.clone(), needed.clone())
            }
            Error::OutOfMemory { asked_bytes, free_bytes, .. } => {
                (format!("{asked_bytes} bytes"), format!("{} bytes", free(*free_bytes)))
            }
            Error::PeerRefused { failure, .. }
            | Error::ExportRefused { failure, .. }
            | Error::MulticastRefused { failure, .. } => (failed(failure.as_ref()), String::new()),
            Error::ImportRefused { failure, .. }
            | Error::ContextLost { failure, .. }
            | Error::Call { failure, .. } => (failure.to_string(), String::new()),
            Error::Image { failure, capability, .. } => {
                (failure.to_string(), format!("machine code for compute capability {capability}"))
            }
            Error::Resident { lanes, resident, .. } => {
                (format!("{lanes} lanes"), format!("at most {resident}"))
            }
            Error::NotCubin { message } => (message.clone(), "a whole cubin".into()),
            Error::NoKernel { name } => (name.clone(), String::new()),
            Error::Parameter { given, needed, .. } => (format!("{given} bytes"), format!("{needed} bytes")),
            Error::OutOfRange { offset, count, bytes } => {
                (format!("{count} bytes from {offset}"), format!("within {bytes} bytes"))
            }
        }
    }

    fn hint(&self) -> String {
        match self {
            Error::Missing { .. } => {
                "install NVIDIA's driver; in a container, start it with the GPUs (docker run --gpus all); \
                 without one, run in the simulator"
            }
            Error::Unusable { hint, .. } => hint,
            Error::TooOld { .. } => "install a newer driver of NVIDIA's",
            Error::NoDevice { visible: Some(_) } => "unset CUDA_VISIBLE_DEVICES, or name GPUs that exist",
            Error::NoDevice { visible: None } => {
                "look at nvidia-smi; in a container, start it with the GPUs (docker run --gpus all)"
            }
            Error::NoSuchDevice { .. } => "name another GPU, or start fewer ranks on this server",
            Error::Capability { .. } => "compile for this GPU's architecture, or take a GPU of that one",
            Error::Lacks { .. } => "take another GPU, or run in the simulator",
            Error::OutOfMemory { .. } => {
                "make the shapes smaller, use more ranks, or end what else holds memory (nvidia-smi lists it)"
            }
            Error::PeerRefused { .. } => {
                "look at nvidia-smi topo -p2p r; put these ranks on GPUs that NVLink or PCIe joins, or use a network \
                 transport between them"
            }
            Error::ExportRefused { .. } => {
                "run the ranks of this server in one process; in a container, --ipc=host may help"
            }
            Error::ImportRefused { .. } => {
                "both processes must see the GPU (CUDA_VISIBLE_DEVICES, the container's GPUs) and be of one container \
                 or --ipc=host; or run the ranks of this server in one process"
            }
            Error::MulticastRefused { .. } => {
                "do without: nothing but speed depends on it; 802 most often means that nvidia-fabricmanager does not run"
            }
            Error::Resident { limit: Limit::LeftFree, .. } => "leave fewer multiprocessors free, or take fewer lanes",
            Error::Resident { limit: Limit::ProcessShare { .. }, .. } => {
                "raise or unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, or take fewer lanes"
            }
            Error::Resident { .. } => "take fewer lanes",
            Error::Image { .. } => "compile for this GPU's architecture; with a driver that is older than NVRTC, a newer driver",
            Error::NotCubin { .. } => "compile it again",
            Error::NoKernel { .. } | Error::Parameter { .. } => {
                "compile the kernel by the same version of this library that loads it"
            }
            Error::OutOfRange { .. } => "name bytes that exist",
            Error::ContextLost { .. } => {
                "start the process again; look at dmesg for Xid messages of the GPU, and run compute-sanitizer"
            }
            Error::Call { .. } => "look the code up in CUDA's documentation of the call; mk doctor looks at the driver",
        }
        .into()
    }
}

fn free(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "an unknown number of".into(), |b| b.to_string())
}

/// `: why`, where there is a reason.
fn after(failure: Option<&Failure>) -> String {
    failure.map_or_else(String::new, |f| format!(": {f}"))
}
