//! Loads a library and asks what it is: the only file of this crate with `unsafe` in it.
//!
//! The driver and NVRTC are loaded as kernels load them, by the same code.
#![allow(unsafe_code, reason = "libraries can be loaded and called in no other way")]

use super::links::Link;
use crate::memory::human;
use libloading::{Library as Loaded, Symbol};
use mk_core::Explanation;
use mk_kernel::driver::{self, CudaVersion, Device, Driver, Probe};
use mk_kernel::{Arch, Compiler};
use serde::{Deserialize, Serialize};
use std::ffi::{c_int, c_uint};
use std::path::Path;

/// A library that mKernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Cuda,
    Nvrtc,
    Verbs,
    Ucp,
    Nccl,
}

/// What became of loading a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// There is none.
    Absent,
    /// It cannot be used, and why.
    Broken(String),
    /// It is there.
    Loaded {
        /// The file, where the system tells.
        file: Option<String>,
        /// Its version, where it can tell one.
        version: Option<[u32; 3]>,
        /// Of the driver: the GPUs that it has.
        gpus: Option<Gpus>,
    },
}

/// The GPUs of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gpus {
    /// Each in words.
    pub(super) list: Vec<String>,
    /// Why kernels do not run on one of them, or on none: what was found, and what to do.
    pub(super) wrong: Option<(String, String)>,
    /// What connects each two of them, or why the driver does not tell.
    pub(super) links: Result<Vec<Link>, String>,
}

impl Library {
    const ALL: [Library; 5] = [Library::Cuda, Library::Nvrtc, Library::Verbs, Library::Ucp, Library::Nccl];

    /// The names of its files, the preferred one first.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Library::Cuda => &["libcuda.so.1"],
            // Only the name by which it is asked for: where it is looked for is the compiler's own affair.
            Library::Nvrtc => &["libnvrtc"],
            Library::Verbs => &["libibverbs.so.1"],
            Library::Ucp => &["libucp.so.0"],
            Library::Nccl => &["libnccl.so.2"],
        }
    }

    /// The library that a file of this name is.
    pub(super) fn named(path: &Path) -> Option<Library> {
        let name = path.file_name()?.to_str()?;
        Library::ALL.into_iter().find(|l| l.names().contains(&name))
    }

    /// Loads it in this process. A library's initialisers may do anything, so [`probe`](super::probe) does this in a
    /// process of its own.
    pub(super) fn load(self, path: &Path) -> Outcome {
        match self {
            Library::Cuda => driver(Driver::probe(path)),
            Library::Nvrtc => nvrtc(Compiler::find()),
            _ => self.load_plain(path),
        }
    }

    fn load_plain(self, path: &Path) -> Outcome {
        // SAFETY: initialisers run. That is what a program that uses the library does, too, and the file has the name of
        // a library that we know; whatever they break, they break in the process of the probe.
        let loaded = match unsafe { Loaded::new(path) } {
            Ok(loaded) => loaded,
            Err(e) => return refused(path, &e),
        };
        let version = self.version(&loaded);
        let file = self.file();
        // Not every library survives being unloaded.
        std::mem::forget(loaded);
        version.map_or_else(Outcome::Broken, |version| Outcome::Loaded { file, version, gpus: None })
    }

    /// What it says of itself. The signatures are those of `ucp/api/ucp.h` and `nccl.h`; they have not changed since the
    /// first version of each library. libibverbs has no such function, and the driver and NVRTC are not asked here.
    fn version(self, lib: &Loaded) -> Result<Option<[u32; 3]>, String> {
        let number = |n: c_int| u32::try_from(n).unwrap_or(0);
        match self {
            Library::Verbs | Library::Cuda | Library::Nvrtc => Ok(None),
            Library::Nccl => {
                let n = number(one_int(lib, "ncclGetVersion")?);
                // 2.8.4 was 2804, 2.9.6 is 20906.
                let [major, minor] = if n < 10_000 { [1000, 100] } else { [10_000, 100] };
                Ok(Some([n / major, n % major / minor, n % minor]))
            }
            Library::Ucp => {
                let f: Symbol<'_, unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint)> =
                    symbol(lib, "ucp_get_version")?;
                let mut v: [c_uint; 3] = [0; 3];
                let [major, minor, release] = &mut v;
                // SAFETY: `void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)`; all three point at
                // an unsigned of ours.
                unsafe { f(&raw mut *major, &raw mut *minor, &raw mut *release) };
                Ok(Some(v))
            }
        }
    }

    /// The file that was loaded, from the list of what is mapped into this process.
    fn file(self) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let stem = self.names()[0].split_inclusive(".so").next()?;
        let ours =
            |path: &&str| Path::new(path).file_name().is_some_and(|n| n.to_string_lossy().starts_with(stem));
        maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])).find(ours).map(Into::into)
    }
}

/// What became of loading the driver.
fn driver(probe: Probe) -> Outcome {
    let Some(CudaVersion { major, minor }) = probe.version else {
        return match probe.devices {
            Err(driver::Error::Missing { .. }) => Outcome::Absent,
            Err(driver::Error::Unusable { message, .. }) => Outcome::Broken(message),
            Err(e) => Outcome::Broken(e.to_string()),
            Ok(_) => Outcome::Broken("it has GPUs, but no version".into()),
        };
    };
    let file = probe.file.map(|f| f.display().to_string());
    Outcome::Loaded { file, version: Some([major, minor, 0]), gpus: Some(gpus(probe.devices)) }
}

fn gpus(devices: Result<Vec<Device>, driver::Error>) -> Gpus {
    let wrong = |e: driver::Error| {
        let Explanation { message, hint, .. } = e.explain();
        (message, hint)
    };
    match devices {
        Err(e) => Gpus { list: Vec::new(), wrong: Some(wrong(e)), links: Ok(Vec::new()) },
        Ok(devices) => {
            let needed = Arch::SM_90A.needs();
            let refused = devices.iter().find_map(|d| d.check(&needed).err());
            let links = links(&devices).map_err(|e| e.to_string());
            Gpus { list: devices.iter().map(words).collect(), wrong: refused.map(wrong), links }
        }
    }
}

/// What the driver says of each two GPUs. A link is as good as the worse of its directions.
fn links(devices: &[Device]) -> Result<Vec<Link>, driver::Error> {
    let mut links = Vec::new();
    for (i, a) in devices.iter().enumerate() {
        for (j, b) in devices.iter().enumerate().skip(i + 1) {
            let (there, back) = (a.peer(b)?, b.peer(a)?);
            let (access, atomics) = (there.access && back.access, there.atomics && back.atomics);
            links.push(Link { between: [i, j], access, atomics });
        }
    }
    Ok(links)
}

/// `NVIDIA H200, 9.0, 132 multiprocessors, 139.8 GiB`.
fn words(device: &Device) -> String {
    let f = device.facts();
    let [major, minor] = f.capability;
    let memory = human(f.memory_bytes.into());
    format!("{}, {major}.{minor}, {} multiprocessors, {memory}", f.name, f.multiprocessors)
}

/// What became of looking for NVRTC.
fn nvrtc(found: Result<Compiler, mk_kernel::Error>) -> Outcome {
    match found {
        Ok(compiler) => {
            let [major, minor] = compiler.version();
            let file = Some(compiler.file().display().to_string());
            Outcome::Loaded { file, version: Some([major, minor, 0]), gpus: None }
        }
        Err(mk_kernel::Error::NvrtcMissing { .. }) => Outcome::Absent,
        Err(e) => Outcome::Broken(e.to_string()),
    }
}

/// A function of a library.
fn symbol<'lib, T>(lib: &'lib Loaded, name: &str) -> Result<Symbol<'lib, T>, String> {
    // SAFETY: the callers name the type that the library's header gives.
    unsafe { lib.get(name) }.map_err(|_| format!("it has no function {name}"))
}

/// Calls a function that writes one int and returns 0 for success.
fn one_int(lib: &Loaded, name: &str) -> Result<c_int, String> {
    let f: Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> = symbol(lib, name)?;
    let mut n = 0;
    // SAFETY: `ncclResult_t ncclGetVersion(int *)`; it points at an int of ours.
    let code = unsafe { f(&raw mut n) };
    succeeded(name, code).map(|()| n)
}

fn succeeded(name: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{name} failed with code {code}")) }
}

/// Why a library was not loaded: it is not there, or something is wrong with it.
fn refused(path: &Path, e: &libloading::Error) -> Outcome {
    let mut text = e.to_string();
    if let Some(source) = std::error::Error::source(e) {
        text = source.to_string();
    }
    // The loader says the same of a library that the library needs, but then by that one's name.
    let absent = text.starts_with(&format!("{}:", path.display())) && text.contains("No such file");
    if absent { Outcome::Absent } else { Outcome::Broken(text) }
}
