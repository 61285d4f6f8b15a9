//! Compiled kernels, kept on disk by the hash of all that went into them.
//!
//! An entry is a file. Whoever makes one writes it under a temporary name and renames it, so that several processes need
//! no lock: a reader sees a whole file or none. Each entry carries the hash of its own bytes; one that does not match is
//! made again. The cache never fails: what goes wrong with it is a warning, and the kernel is compiled.

use crate::codegen::Source;
use crate::compile::{Compiled, Compiler, Options};
use crate::{Error, Report};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How large the cache may grow: some hundred kernels.
const LIMIT_BYTES: u64 = 256 << 20;
/// Temporary files of this age are of processes that died.
const STALE: Duration = Duration::from_secs(3600);
/// How an entry's file name ends.
const EXTENSION: &str = "mkcubin";
/// How a temporary file's name begins.
const TEMPORARY: &str = ".mk-";
/// Raised when entries change their form.
const FORMAT: u32 = 1;

/// A folder of compiled kernels, or none.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
    limit_bytes: u64,
}

/// A kernel, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Machine code, as the driver loads it.
    pub cubin: Vec<u8>,
    /// What the compiler said of it.
    pub report: Report,
    /// Whether it was in the cache.
    pub cached: bool,
    /// What is wrong with the cache; the kernel is good nevertheless.
    pub warning: Option<String>,
}

/// The line before the machine code.
#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    key: String,
    report: Report,
}

impl Cache {
    /// The user's cache: `mkernel` in `XDG_CACHE_HOME`, else in `~/.cache`. Without either, nothing is kept.
    pub fn user() -> Cache {
        Cache {
            folder: user_folder(&|name| std::env::var_os(name).map(Into::into)),
            limit_bytes: LIMIT_BYTES,
        }
    }

    /// A cache in this folder, which is created when it is first written to.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: Some(folder.into()), limit_bytes: LIMIT_BYTES }
    }

    /// No cache: everything is compiled.
    pub fn none() -> Cache {
        Cache { folder: None, limit_bytes: 0 }
    }

    /// The same cache with another bound; the oldest entries are removed beyond it.
    #[must_use]
    pub fn limit_bytes(self, limit_bytes: u64) -> Cache {
        Cache { limit_bytes, ..self }
    }

    /// Its folder.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The kernel, from the cache if it is there, else compiled, checked and kept.
    ///
    /// # Errors
    /// Those of [`Compiler::compile`]; never one of the cache's own.
    pub fn build(&self, compiler: &Compiler, source: &Source, options: &Options) -> Result<Built, Error> {
        let compile = || compiler.compile(source, options);
        let Some(folder) = &self.folder else { return compile().map(|c| built(c, None)) };
        let key = key(compiler, source, options);
        let file = folder.join(&key).with_extension(EXTENSION);
        if let Some((report, cubin)) = read(&file, &key) {
            return Ok(Built { cubin, report, cached: true, warning: None });
        }
        let compiled = compile()?;
        let kept = write(folder, &file, &key, &compiled).and_then(|()| self.trim(folder, &file));
        let warning =
            kept.err().map(|e| format!("the kernel cache {} cannot be used: {e}", folder.display()));
        Ok(built(compiled, warning))
    }

    /// Removes the entries that were used longest ago until the rest is within the bound; never `newest`.
    fn trim(&self, folder: &Path, newest: &Path) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)?.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Ok(meta) = entry.metadata() else { continue };
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if path.extension().is_some_and(|e| e == EXTENSION) {
                entries.push((used, path, meta.len()));
            } else if name.to_string_lossy().starts_with(TEMPORARY)
                && used.elapsed().is_ok_and(|age| age > STALE)
            {
                remove(&path)?;
            }
        }
        entries.sort();
        let mut bytes: u64 = entries.iter().map(|(_, _, len)| len).sum();
        for (_, path, len) in entries.iter().filter(|(_, path, _)| path != newest) {
            if bytes <= self.limit_bytes {
                break;
            }
            remove(path)?;
            bytes -= len;
        }
        Ok(())
    }
}

/// Another process may have removed it already.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn built(compiled: Compiled, warning: Option<String>) -> Built {
    Built { cubin: compiled.cubin, report: compiled.report, cached: false, warning }
}

/// The hash of all that the machine code follows from.
fn key(compiler: &Compiler, source: &Source, options: &Options) -> String {
    let mut hash = blake3::Hasher::new();
    // Each text after its length, so that no two lists of texts run into the same bytes.
    let mut add = |text: &str| {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    add(&FORMAT.to_string());
    // Releases of one version are told apart by their size only.
    add(&format!("{:?} {:?}", compiler.version(), fs::metadata(compiler.file()).map(|m| m.len()).ok()));
    options.arguments().iter().for_each(|option| add(option));
    add(&source.entry);
    for header in &source.headers {
        add(&header.name);
        add(&header.text);
    }
    hash.finalize().to_hex().to_string()
}

/// An entry that is whole and the right one. Using it makes it young.
fn read(file: &Path, key: &str) -> Option<(Report, Vec<u8>)> {
    let bytes = fs::read(file).ok()?;
    let (hash, rest) = bytes.split_first_chunk::<{ blake3::OUT_LEN }>()?;
    if blake3::hash(rest) != *hash {
        return None;
    }
    let end = rest.iter().position(|&b| b == b'\n')?;
    let head: Head = serde_json::from_slice(&rest[..end]).ok()?;
    if head.format != FORMAT || head.key != key {
        return None;
    }
    // In a folder that cannot be written, entries just do not get younger.
    let _ = File::options().write(true).open(file).and_then(|f| f.set_modified(SystemTime::now()));
    Some((head.report, rest[end + 1..].to_vec()))
}

fn write(folder: &Path, file: &Path, key: &str, compiled: &Compiled) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let head = Head { format: FORMAT, key: key.into(), report: compiled.report.clone() };
    let mut rest = serde_json::to_vec(&head)?;
    rest.push(b'\n');
    rest.extend_from_slice(&compiled.cubin);
    let mut temporary = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
    temporary.write_all(blake3::hash(&rest).as_bytes())?;
    temporary.write_all(&rest)?;
    temporary.persist(file).map(drop).map_err(|e| e.error)
}

fn user_folder(var: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // By the XDG base directory specification a relative path is no path.
    let var = |name: &str| var(name).filter(|path| path.is_absolute());
    let caches = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("mkernel"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_cache_is_where_xdg_says() {
        let folder = |vars: &'static [(&str, &str)]| {
            user_folder(&|name| vars.iter().find(|v| v.0 == name).map(|v| v.1.into()))
        };
        assert_eq!(folder(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]), Some("/c/mkernel".into()));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "c"), ("HOME", "/h")]), Some("/h/.cache/mkernel".into()));
        assert_eq!(folder(&[]), None);
    }
}
