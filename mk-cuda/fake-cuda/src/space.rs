//! Device memory: bytes in files without a name, at addresses that nothing else has.

use crate::state::{Done, INVALID_VALUE};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the file of a piece of memory is called, for [`import`]: a process must not take any other descriptor for one.
const PREFIX: &str = "fake-cuda-memory-";

/// What new memory begins and ends with, and for how many bytes.
const DIRT: u8 = 0xa5;
const DIRTY_BYTES: u64 = 4096;

/// Bytes. A file has room for as much as is said, takes only what is written, and can be given to other processes.
#[derive(Clone)]
pub(crate) struct Bytes {
    pub(crate) file: Arc<File>,
    pub(crate) len: u64,
}

impl Bytes {
    pub(crate) fn new(len: u64) -> io::Result<Bytes> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path: PathBuf = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        file.set_len(len)?;
        // What is in it is undefined: its ends are dirty, so that nobody relies on zeros.
        let dirt = vec![DIRT; len.min(DIRTY_BYTES) as usize];
        file.write_all_at(&dirt, 0)?;
        file.write_all_at(&dirt, len - dirt.len() as u64)?;
        Ok(Bytes { file: Arc::new(file), len })
    }

    /// Memory that another process has exported, behind a descriptor of that number.
    pub(crate) fn import(descriptor: usize) -> Option<Bytes> {
        let link = format!("/proc/self/fd/{descriptor}");
        let target = std::fs::read_link(&link).ok()?;
        target.file_name()?.to_str()?.starts_with(PREFIX).then_some(())?;
        let file = File::options().read(true).write(true).open(&link).ok()?;
        let len = file.metadata().ok()?.len();
        Some(Bytes { file: Arc::new(file), len })
    }
}

/// A piece of memory at its address.
pub(crate) struct Piece {
    pub(crate) bytes: Bytes,
    /// GPUs that may reach it.
    pub(crate) reach: BTreeSet<usize>,
    /// Whose memory it is.
    pub(crate) device: usize,
    /// By `cuMemMap`, not by `cuMemAlloc`.
    pub(crate) mapped: bool,
}

/// All addresses.
#[derive(Default)]
pub(crate) struct Space {
    pub(crate) pieces: BTreeMap<u64, Piece>,
    pub(crate) reserved: BTreeMap<u64, u64>,
    /// Pinned memory of the host, which the GPU sees at the host's own addresses.
    pub(crate) pinned: BTreeMap<u64, u64>,
    used: u64,
}

/// Where device addresses begin; far from those of the host.
const FIRST: u64 = 0x0200_0000_0000;

impl Space {
    /// Addresses that are given out once only, so that a stale one is never good again.
    pub(crate) fn fresh(&mut self, bytes: u64, alignment: u64) -> u64 {
        let address = (FIRST + self.used).next_multiple_of(alignment);
        self.used = address + bytes - FIRST + alignment;
        address
    }

    /// Whether `bytes` from `address` on are within the range that was reserved there.
    pub(crate) fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let before = self.reserved.range(..=address).next_back();
        before.is_some_and(|(start, len)| address + bytes <= start + len)
    }

    /// Whether anything is mapped in these bytes.
    pub(crate) fn is_mapped(&self, address: u64, bytes: u64) -> bool {
        let before = self.pieces.range(..address + bytes).next_back();
        before.is_some_and(|(start, piece)| start + piece.bytes.len > address)
    }

    /// The piece that holds these bytes, if `device` may reach it, and where in it they begin.
    fn at(&self, address: u64, bytes: u64, device: usize) -> Result<(&Piece, u64), u32> {
        let (start, piece) = self.pieces.range(..=address).next_back().ok_or(INVALID_VALUE)?;
        let inside = address + bytes <= start + piece.bytes.len && piece.reach.contains(&device);
        if inside { Ok((piece, address - start)) } else { Err(INVALID_VALUE) }
    }

    pub(crate) fn write(&self, address: u64, from: &[u8], device: usize) -> Done {
        let (piece, offset) = self.at(address, from.len() as u64, device)?;
        piece.bytes.file.write_all_at(from, offset).map_err(|_| INVALID_VALUE)
    }

    pub(crate) fn read(&self, address: u64, to: &mut [u8], device: usize) -> Done {
        let (piece, offset) = self.at(address, to.len() as u64, device)?;
        piece.bytes.file.read_exact_at(to, offset).map_err(|_| INVALID_VALUE)
    }
}
