//! A GPU: what it is, and whether a kernel can run on it.

use crate::context::Context;
use crate::error::{Error, Failure, code};
use crate::found::Driver;
use cudarc::driver::sys;
use serde::Serialize;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::sync::Arc;
use sys::CUdevice_attribute as Attribute;

/// Room for a GPU's name; CUDA's own samples use as much.
const NAME_BYTES: usize = 256;

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Its number in this process.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// The same in every process, as `GPU-…` in `nvidia-smi -L`.
    pub uuid: String,
    /// Compute capability, major and minor.
    pub capability: [u32; 2],
    /// Streaming multiprocessors that this process may use.
    pub multiprocessors: u32,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Most shared memory of a block.
    pub shared_bytes: u64,
    /// Registers of a multiprocessor.
    pub registers: u32,
    /// Whether allocations can be mapped to addresses.
    pub maps_memory: bool,
    /// Whether memory can be given to other processes as a file descriptor.
    pub exports_memory: bool,
    /// Whether it says that it can take part in multicast.
    pub multicast: bool,
}

/// What a kernel needs of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// What it is compiled for, by the compiler's name: `sm_90a`.
    pub arch: String,
    /// The same as a compute capability, major and minor.
    pub capability: [u32; 2],
    /// Whether later GPUs of the same major version run it, too.
    pub later: bool,
    /// Static and dynamic shared memory of a block, in bytes.
    pub shared_bytes: u64,
}

impl Requirements {
    /// Whether its machine code runs on a GPU of this capability.
    fn run_on(&self, found: [u32; 2]) -> bool {
        let [major, minor] = self.capability;
        if self.later { found[0] == major && found[1] >= minor } else { found == self.capability }
    }

    /// The capability, in words.
    fn capability(&self) -> String {
        let ([major, minor], arch) = (self.capability, &self.arch);
        if self.later {
            format!("{major}.{minor} or later {major}.x ({arch})")
        } else {
            format!("{major}.{minor} ({arch})")
        }
    }
}

/// A GPU of this machine. Clones are the same GPU. Its text is `GPU 0 (NVIDIA H200)`.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Driver,
    handle: sys::CUdevice,
    facts: Facts,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} ({})", self.inner.facts.ordinal, self.inner.facts.name)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.facts.fmt(f)
    }
}

impl Device {
    pub(crate) fn open(driver: &Driver, ordinal: c_int) -> Result<Device, Error> {
        let read = || {
            let mut handle = 0;
            // SAFETY: it points at a handle of ours.
            unsafe { driver.calls().cuDeviceGet(&raw mut handle, ordinal) }?;
            let facts = facts(driver, handle, ordinal)?;
            Ok(Device { inner: Arc::new(Inner { driver: driver.clone(), handle, facts }) })
        };
        read().map_err(|failure| Error::Call { device: format!("GPU {ordinal}"), failure })
    }

    /// What it is.
    pub fn facts(&self) -> &Facts {
        &self.inner.facts
    }

    /// The driver that it belongs to.
    pub fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// Whether a kernel can run here at all.
    ///
    /// # Errors
    /// [`Error::Capability`], [`Error::Lacks`].
    pub fn check(&self, needed: &Requirements) -> Result<(), Error> {
        let facts = self.facts();
        if !needed.run_on(facts.capability) {
            let [major, minor] = facts.capability;
            return Err(Error::Capability {
                device: self.to_string(),
                found: format!("{major}.{minor}"),
                needed: needed.capability(),
            });
        }
        if facts.shared_bytes < needed.shared_bytes {
            return Err(Error::Lacks {
                device: self.to_string(),
                what: "bytes of shared memory for a block".into(),
                found: facts.shared_bytes.to_string(),
                needed: needed.shared_bytes.to_string(),
            });
        }
        if !facts.maps_memory {
            return Err(Error::Lacks {
                device: self.to_string(),
                what: "management of virtual memory (cuMemMap)".into(),
                found: "no".into(),
                needed: "it".into(),
            });
        }
        Ok(())
    }

    /// Its primary context: the one that the CUDA runtime, PyTorch and others use, too.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Call`].
    pub fn context(&self) -> Result<Context, Error> {
        Context::retain(self)
    }

    pub(crate) fn handle(&self) -> sys::CUdevice {
        self.inner.handle
    }

    /// A call on this GPU that failed.
    pub(crate) fn refused(&self, failure: Failure) -> Error {
        let device = self.to_string();
        if failure.is_sticky() {
            return Error::ContextLost { device, failure };
        }
        Error::Call { device, failure }
    }

    /// The same, of a call that wanted memory.
    pub(crate) fn memory_refused(
        &self,
        what: &'static str,
        asked_bytes: u64,
        free_bytes: Option<u64>,
        failure: Failure,
    ) -> Error {
        if failure.code != code::OUT_OF_MEMORY {
            return self.refused(failure);
        }
        Error::OutOfMemory { device: self.to_string(), what, asked_bytes, free_bytes, failure }
    }
}

fn facts(driver: &Driver, handle: sys::CUdevice, ordinal: c_int) -> Result<Facts, Failure> {
    let calls = driver.calls();
    let number = |attribute| {
        let mut value: c_int = 0;
        // SAFETY: it points at an int of ours, the attribute is one of the header's.
        unsafe { calls.cuDeviceGetAttribute(&raw mut value, attribute, handle) }?;
        Ok::<u32, Failure>(u32::try_from(value).unwrap_or(0))
    };
    let mut name = [0u8; NAME_BYTES];
    // SAFETY: there is room for as many bytes as is said.
    unsafe { calls.cuDeviceGetName(name.as_mut_ptr().cast(), NAME_BYTES as c_int, handle) }?;
    let name =
        CStr::from_bytes_until_nul(&name).map_or_else(|_| "?".into(), |n| n.to_string_lossy().into_owned());
    let mut memory_bytes = 0;
    // SAFETY: it points at a size of ours.
    unsafe { calls.cuDeviceTotalMem_v2(&raw mut memory_bytes, handle) }?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: it points at an identifier of ours.
    unsafe { calls.cuDeviceGetUuid_v2(&raw mut uuid, handle) }?;
    Ok(Facts {
        ordinal: usize::try_from(ordinal).unwrap_or(0),
        name,
        uuid: uuid_text(uuid.bytes.map(|b| b.to_ne_bytes()[0])),
        capability: [
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ],
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory_bytes as u64,
        shared_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?.into(),
        registers: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        maps_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)? != 0,
        exports_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?
            != 0,
        multicast: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)? != 0,
    })
}

/// As `nvidia-smi -L` writes it: `GPU-` and the bytes in hexadecimal, in groups of 4, 2, 2, 2 and 6.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = "GPU".to_string();
    for (i, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&i) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_runs_where_nvidia_says_that_it_does() {
        let runs = |capability, later, found| {
            Requirements { arch: String::new(), capability, later, shared_bytes: 0 }.run_on(found)
        };
        assert!(runs([9, 0], false, [9, 0]));
        assert!(
            !runs([9, 0], false, [10, 0]) && !runs([9, 0], false, [8, 9]) && !runs([10, 0], false, [10, 3])
        );
        assert!(runs([8, 0], true, [8, 9]) && !runs([8, 9], true, [8, 6]) && !runs([8, 0], true, [9, 0]));
        assert!(runs([10, 0], true, [10, 3]) && !runs([10, 0], true, [12, 0]));
    }

    #[test]
    fn an_identifier_is_written_as_nvidia_smi_does() {
        let bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(uuid_text(bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
