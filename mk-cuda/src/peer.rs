//! One GPU at another one's memory.

use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Failure, code};
use crate::ledger::{Entry, Kind};
use cudarc::driver::sys;
use serde::Serialize;
use std::ffi::c_int;
use std::fmt;

/// What the driver says of one GPU at another one's memory. What it says is not always so: the mapping itself decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Whether it can reach it at all.
    pub access: bool,
    /// Whether its atomics work there, which signals need.
    pub atomics: bool,
    /// The smaller, the faster the link.
    pub rank: u32,
}

impl Device {
    /// What the driver says of this GPU at the memory of `owner`.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn peer(&self, owner: &Device) -> Result<Peer, Error> {
        use sys::CUdevice_P2PAttribute as Attribute;
        if self.facts() == owner.facts() {
            return Ok(Peer { access: true, atomics: true, rank: 0 });
        }
        let calls = self.driver().calls();
        let ask = || {
            let mut can: c_int = 0;
            // SAFETY: it points at an int of ours; both are GPUs of the driver.
            unsafe { calls.cuDeviceCanAccessPeer(&raw mut can, self.handle(), owner.handle()) }?;
            let number = |attribute| {
                let mut value: c_int = 0;
                // SAFETY: as above; the attribute is one of the header's.
                unsafe {
                    calls.cuDeviceGetP2PAttribute(&raw mut value, attribute, self.handle(), owner.handle())
                }?;
                Ok::<u32, Failure>(u32::try_from(value).unwrap_or(0))
            };
            Ok(Peer {
                access: can != 0,
                atomics: number(Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
                rank: number(Attribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
            })
        };
        ask().map_err(|failure| self.refused(failure))
    }
}

/// Lets a GPU reach all [`DeviceMemory`](crate::DeviceMemory) of another one, until it is dropped. (A
/// [`Mapping`](crate::Mapping) needs no such thing: it says by itself who reaches it.)
pub struct PeerAccess {
    from: Context,
    to: Context,
    /// None if somebody else in this process had switched it on, and has it still.
    entry: Option<Entry>,
}

impl PeerAccess {
    /// Switches it on for `from` at the memory of `to`.
    ///
    /// # Errors
    /// [`Error::PeerRefused`].
    pub fn new(from: &Context, to: &Context) -> Result<PeerAccess, Error> {
        let refused = |failure| {
            let [from, to] = [from, to].map(|c| c.device().to_string());
            Error::PeerRefused { from, to, failure }
        };
        if !from.device().peer(to.device())?.access {
            return Err(refused(None));
        }
        let access = |entry| PeerAccess { from: from.clone(), to: to.clone(), entry };
        let enabled = from.with(|calls| {
            // SAFETY: the peer's context is held; flags must be 0.
            unsafe { calls.cuCtxEnablePeerAccess(to.handle(), 0) }?;
            Ok(access(Some(from.open(Kind::PeerAccess))))
        });
        match enabled {
            Err(f) if f.code == code::PEER_ACCESS_ALREADY_ENABLED => Ok(access(None)),
            Err(f) if f.is_sticky() => Err(from.device().refused(f)),
            other => other.map_err(|f| refused(Some(f))),
        }
    }
}

impl fmt::Debug for PeerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerAccess({} to {})", self.from.device(), self.to.device())
    }
}

impl Drop for PeerAccess {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            // SAFETY: switched on in `new`; the peer's context is held.
            self.from.release(entry, |calls| unsafe { calls.cuCtxDisablePeerAccess(self.to.handle()) });
        }
    }
}
