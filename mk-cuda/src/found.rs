//! The driver's library: found, old enough or not, whole or not.

use crate::calls::{self, Calls};
use crate::device::Device;
use crate::error::{CudaVersion, Error, Failure, code};
use crate::ledger::{Ledger, Live};
use crate::loaded::loaded_file;
use libloading::Library;
use std::ffi::c_int;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The library's name. `libcuda.so` is a stub for linking where a toolkit is installed.
const NAME: &str = "libcuda.so.1";

/// NVIDIA's driver, loaded and initialised. Clones are the same driver.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
}

/// The answer of [`Driver::probe`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Probe {
    /// The CUDA version that it is for, if it tells.
    pub version: Option<CudaVersion>,
    /// Its file, where the system tells.
    pub file: Option<PathBuf>,
    /// Its GPUs.
    pub devices: Result<Vec<Device>, Error>,
}

struct Inner {
    calls: Calls,
    version: CudaVersion,
    file: Option<PathBuf>,
    ledger: Arc<Ledger>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver(CUDA {}, {:?})", self.version(), self.file())
    }
}

impl Driver {
    /// The CUDA version that a driver must be for, at least: kernels are compiled by NVRTC 13, and machine code of one major
    /// version is not promised to load in a driver of an older one.
    pub const NEEDED: CudaVersion = CudaVersion { major: 13, minor: 0 };

    /// The driver of this machine, from where the loader looks for `libcuda.so.1`. Whoever in this process asks gets the same
    /// one, with one count of what is open.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Unusable`], [`Error::TooOld`], [`Error::NoDevice`].
    pub fn find() -> Result<Driver, Error> {
        static FOUND: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = FOUND.get() {
            return Ok(driver.clone());
        }
        let driver = Driver::at(Path::new(NAME))?;
        Ok(FOUND.get_or_init(|| driver).clone())
    }

    /// The driver in this file, with a count of its own.
    ///
    /// # Errors
    /// As [`Driver::find`].
    pub fn at(file: &Path) -> Result<Driver, Error> {
        let library = load(file)?;
        let name = file.display().to_string();
        // Asked first, since an old driver also lacks functions, and that would be the lesser reason.
        let version = version(library, &name)?;
        if version < Driver::NEEDED {
            return Err(Error::TooOld { found: version, needed: Driver::NEEDED });
        }
        let calls = Calls::bind(library).map_err(|lacking| lacks(&name, &lacking))?;
        // SAFETY: flags must be 0.
        unsafe { calls.cuInit(0) }.map_err(|failure| not_initialised(&name, failure))?;
        Ok(Driver { inner: Arc::new(Inner { calls, version, file: mapped(), ledger: Arc::default() }) })
    }

    /// What can be found out about the driver in this file, wherever it goes wrong.
    pub fn probe(file: &Path) -> Probe {
        let version = load(file).and_then(|library| version(library, &file.display().to_string()));
        let devices = Driver::at(file).and_then(|driver| driver.devices());
        Probe { version: version.ok(), file: mapped(), devices }
    }

    /// The CUDA version that it is for.
    pub fn version(&self) -> CudaVersion {
        self.inner.version
    }

    /// Its file, where the system tells.
    pub fn file(&self) -> Option<&Path> {
        self.inner.file.as_deref()
    }

    /// All GPUs that this process may use.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; [`Error::Call`] if the driver does not answer.
    pub fn devices(&self) -> Result<Vec<Device>, Error> {
        let mut count: c_int = 0;
        // SAFETY: it points at an int of ours.
        unsafe { self.calls().cuDeviceGetCount(&raw mut count) }.map_err(|f| self.refused(f))?;
        if count <= 0 {
            return Err(no_device());
        }
        (0..count).map(|ordinal| Device::open(self, ordinal)).collect()
    }

    /// The GPU of this number.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], and those of [`Driver::devices`].
    pub fn device(&self, ordinal: usize) -> Result<Device, Error> {
        let mut devices = self.devices()?;
        let count = devices.len();
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, devices: count });
        }
        Ok(devices.swap_remove(ordinal))
    }

    /// What is open.
    pub fn live(&self) -> Live {
        self.inner.ledger.live()
    }

    /// What could not be closed since this was last asked, the first of it first.
    pub fn take_failures(&self) -> Vec<Failure> {
        self.inner.ledger.take_failures()
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.inner.calls
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.inner.ledger
    }

    /// A call that failed before there was a device to name.
    fn refused(&self, failure: Failure) -> Error {
        Error::Call { device: format!("the driver for CUDA {}", self.version()), failure }
    }
}

/// Loads the library. It stays loaded: not every driver survives being unloaded.
fn load(file: &Path) -> Result<&'static Library, Error> {
    // SAFETY: initialisers run; a program that uses a GPU cannot do without.
    match unsafe { Library::new(file) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(e) => Err(not_loaded(file, &e)),
    }
}

/// The file that is loaded. Its name has the driver's release in it, not the 1 by which the loader found it.
fn mapped() -> Option<PathBuf> {
    loaded_file(Path::new("libcuda.so"))
}

/// It is not there, or the loader does not take it.
fn not_loaded(file: &Path, e: &libloading::Error) -> Error {
    let library = file.display().to_string();
    let message = std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string);
    // The loader says the same of a library that the driver needs, but then by that one's name.
    if message.starts_with(&format!("{library}:")) && message.contains("No such file") {
        return Error::Missing { library };
    }
    let hint = "install NVIDIA's driver again, with what it depends on".into();
    Error::Unusable { library, message, hint }
}

fn version(library: &Library, name: &str) -> Result<CudaVersion, Error> {
    // The only function that is asked for by itself: an old driver has it, too.
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> u32;
    // SAFETY: `CUresult cuDriverGetVersion(int *)`.
    let get = unsafe { library.get::<GetVersion>("cuDriverGetVersion") }
        .map_err(|_| lacks(name, &["cuDriverGetVersion".into()]))?;
    let mut number: c_int = 0;
    // SAFETY: it points at an int of ours.
    let code = unsafe { get(&raw mut number) };
    if code == 0 {
        return Ok(CudaVersion::from_number(u32::try_from(number).unwrap_or(0)));
    }
    let failure = Failure { call: "cuDriverGetVersion", code, name: calls::name_of(library, code) };
    Err(not_initialised(name, failure))
}

fn lacks(name: &str, functions: &[String]) -> Error {
    Error::Unusable {
        library: name.into(),
        message: format!("it has no function {}", functions.join(", no ")),
        hint: "this is not the library of a driver for CUDA 13: look for another file of its name".into(),
    }
}

fn no_device() -> Error {
    Error::NoDevice { visible: std::env::var("CUDA_VISIBLE_DEVICES").ok() }
}

/// `cuInit` says what is wrong with a machine by its code.
fn not_initialised(name: &str, failure: Failure) -> Error {
    let hint = match failure.code {
        code::NO_DEVICE => return no_device(),
        code::STUB_LIBRARY => {
            "the stub in a toolkit's lib64/stubs is for linking only: take it out of LD_LIBRARY_PATH"
        }
        code::SYSTEM_DRIVER_MISMATCH | code::COMPAT_NOT_SUPPORTED => {
            "the driver's library must be of the same release as its kernel module: restart after an update, and take \
             cuda-compat out of LD_LIBRARY_PATH"
        }
        code::SYSTEM_NOT_READY => "start the NVLink switches' service: systemctl start nvidia-fabricmanager",
        code::UNKNOWN => {
            "look at the permissions of /dev/nvidia*; nvidia-modprobe -u -c 0 makes nvidia-uvm; dmesg says more"
        }
        _ => "look at nvidia-smi and dmesg",
    };
    Error::Unusable { library: name.into(), message: failure.to_string(), hint: hint.into() }
}
