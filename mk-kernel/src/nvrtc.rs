//! NVRTC, CUDA's compiler as a library. All that is `unsafe` about it is here.
//!
//! Bound here and not through cudarc, which cannot be told which file to load, and panics where a function is missing.
#![allow(unsafe_code, reason = "a C library can be called in no other way")]

use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

/// `nvrtcProgram`.
type Handle = *mut c_void;

/// `NVRTC_ERROR_COMPILATION`: the source is at fault, and the log says why.
const COMPILATION: c_int = 6;

type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type ArchCount = unsafe extern "C" fn(*mut c_int) -> c_int;
type Archs = unsafe extern "C" fn(*mut c_int) -> c_int;
type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// A loaded NVRTC. It is never unloaded: not every library survives that.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    error_string: ErrorString,
    create: Create,
    compile: Compile,
    destroy: Destroy,
    log: (Size, Get),
    ptx: (Size, Get),
    cubin: (Size, Get),
    /// Major, minor.
    pub(crate) version: [u32; 2],
    /// Compute capabilities that it compiles for, times ten.
    pub(crate) archs: Vec<u32>,
}

/// Text and includes of one program.
pub(crate) struct Input<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// Names and texts.
    pub(crate) headers: Vec<(&'a str, &'a str)>,
    pub(crate) options: &'a [String],
}

/// What a compilation gives.
pub(crate) struct Output {
    pub(crate) cubin: Vec<u8>,
    pub(crate) ptx: String,
    pub(crate) log: String,
}

/// Why there is no output.
pub(crate) enum Failure {
    /// The source is at fault: the log.
    Source(String),
    /// Anything else, such as an option that this NVRTC does not know.
    Other(String),
}

impl Nvrtc {
    /// Loads the library from this file, or by this name from where the loader looks.
    ///
    /// Its builtins are loaded first where they lie beside it: NVRTC looks for them by name only, and finds them if they
    /// are loaded already.
    pub(crate) fn load(file: &Path) -> Result<Nvrtc, String> {
        for builtins in builtins_beside(file) {
            // SAFETY: initialisers run; this is NVRTC's own library, which NVRTC would load itself.
            let loaded = unsafe { Library::new(&builtins) };
            std::mem::forget(loaded.map_err(|e| reason(&e))?);
        }
        // SAFETY: initialisers run; a program that compiles with NVRTC cannot do without.
        let library = unsafe { Library::new(file) }.map_err(|e| reason(&e))?;
        let nvrtc = Nvrtc::bind(&library);
        std::mem::forget(library);
        nvrtc
    }

    /// The functions. Their signatures are those of `nvrtc.h`, which have not changed since CUDA 11.2.
    fn bind(library: &Library) -> Result<Nvrtc, String> {
        let version: Version = function(library, "nvrtcVersion")?;
        let count: ArchCount = function(library, "nvrtcGetNumSupportedArchs")?;
        let archs: Archs = function(library, "nvrtcGetSupportedArchs")?;
        let mut nvrtc = Nvrtc {
            error_string: function(library, "nvrtcGetErrorString")?,
            create: function(library, "nvrtcCreateProgram")?,
            compile: function(library, "nvrtcCompileProgram")?,
            destroy: function(library, "nvrtcDestroyProgram")?,
            log: (function(library, "nvrtcGetProgramLogSize")?, function(library, "nvrtcGetProgramLog")?),
            ptx: (function(library, "nvrtcGetPTXSize")?, function(library, "nvrtcGetPTX")?),
            cubin: (function(library, "nvrtcGetCUBINSize")?, function(library, "nvrtcGetCUBIN")?),
            version: [0; 2],
            archs: Vec::new(),
        };
        let (mut major, mut minor, mut n) = (0, 0, 0);
        // SAFETY: both point at an int of ours.
        nvrtc.check("nvrtcVersion", unsafe { version(&raw mut major, &raw mut minor) })?;
        nvrtc.version = [major, minor].map(|n| u32::try_from(n).unwrap_or(0));
        // SAFETY: it points at an int of ours.
        nvrtc.check("nvrtcGetNumSupportedArchs", unsafe { count(&raw mut n) })?;
        let mut list: Vec<c_int> = vec![0; usize::try_from(n).unwrap_or(0)];
        // SAFETY: it has room for as many ints as the library just said.
        nvrtc.check("nvrtcGetSupportedArchs", unsafe { archs(list.as_mut_ptr()) })?;
        nvrtc.archs = list.into_iter().filter_map(|a| u32::try_from(a).ok()).collect();
        Ok(nvrtc)
    }

    fn check(&self, function: &str, code: c_int) -> Result<(), String> {
        if code == 0 { Ok(()) } else { Err(format!("{function}: {}", self.words(code))) }
    }

    /// What a code means.
    fn words(&self, code: c_int) -> String {
        // SAFETY: it takes any int, and returns a string that is never freed.
        let text = unsafe { (self.error_string)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: not null, and a C string by its contract.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Compiles one program.
    pub(crate) fn compile(&self, input: &Input<'_>) -> Result<Output, Failure> {
        let c = |s: &str| CString::new(s).map_err(|_| Failure::Other("a source holds a zero byte".into()));
        let all = |texts: &mut dyn Iterator<Item = &str>| texts.map(c).collect::<Result<Vec<_>, _>>();
        let (name, text) = (c(input.name)?, c(input.text)?);
        let names = all(&mut input.headers.iter().map(|h| h.0))?;
        let texts = all(&mut input.headers.iter().map(|h| h.1))?;
        let options = all(&mut input.options.iter().map(String::as_str))?;
        let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (name_list, text_list, option_list) = (pointers(&names), pointers(&texts), pointers(&options));

        let mut program = Program { nvrtc: self, handle: ptr::null_mut() };
        // SAFETY: the lists have as many entries as is said, each a C string that outlives `program`; the handle is ours.
        let code = unsafe {
            (self.create)(
                &raw mut program.handle,
                text.as_ptr(),
                name.as_ptr(),
                count(&name_list),
                text_list.as_ptr(),
                name_list.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", code).map_err(Failure::Other)?;
        // SAFETY: the program was just created; as many options as is said, each a C string.
        let code = unsafe { (self.compile)(program.handle, count(&option_list), option_list.as_ptr()) };
        let log = String::from_utf8_lossy(&program.get("nvrtcGetProgramLog", self.log)?).into_owned();
        match code {
            0 => {}
            COMPILATION => return Err(Failure::Source(log)),
            other => {
                return Err(Failure::Other(format!(
                    "nvrtcCompileProgram: {}: {}",
                    self.words(other),
                    log.trim()
                )));
            }
        }
        let ptx = String::from_utf8_lossy(&program.get("nvrtcGetPTX", self.ptx)?).into_owned();
        let cubin = program.bytes("nvrtcGetCUBIN", self.cubin)?;
        Ok(Output { cubin, ptx, log })
    }
}

/// A created program; destroyed when it is dropped.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl Program<'_> {
    /// Text, without the 0 at its end.
    fn get(&self, what: &str, from: (Size, Get)) -> Result<Vec<u8>, Failure> {
        let mut bytes = self.bytes(what, from)?;
        if bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(bytes)
    }

    fn bytes(&self, what: &str, (size, get): (Size, Get)) -> Result<Vec<u8>, Failure> {
        let mut n = 0;
        // SAFETY: the program was created; it points at a size of ours.
        let code = unsafe { size(self.handle, &raw mut n) };
        self.nvrtc.check(what, code).map_err(Failure::Other)?;
        let mut bytes = vec![0u8; n];
        // SAFETY: the program was created; there is room for as many bytes as it just asked for.
        let code = unsafe { get(self.handle, bytes.as_mut_ptr().cast()) };
        self.nvrtc.check(what, code).map_err(Failure::Other)?;
        Ok(bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: created, and not destroyed yet. A failure leaks memory, which cannot be helped.
            unsafe { (self.nvrtc.destroy)(&raw mut self.handle) };
        }
    }
}

/// A function of the library. `T` must be its type in `nvrtc.h`.
fn function<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: each caller is in `bind`, and names the type of the header. The library is never unloaded.
    let symbol: Symbol<'_, T> =
        unsafe { library.get(name.as_bytes()) }.map_err(|_| format!("it has no function {name}"))?;
    Ok(*symbol)
}

fn count(list: &[*const c_char]) -> c_int {
    // Headers and options are at most a few thousand: one for each handler.
    c_int::try_from(list.len()).unwrap_or(c_int::MAX)
}

/// NVRTC's own headers and intermediate code, in a library of their own, which has to be of the same release.
fn builtins_beside(file: &Path) -> Vec<PathBuf> {
    let Some(folder) = file.parent().filter(|f| !f.as_os_str().is_empty()) else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let is_builtins = |name: &str| name.starts_with("libnvrtc-builtins.so.");
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(is_builtins))
        .map(|e| e.path())
        .collect();
    found.sort();
    found
}

/// What the loader says, without what libloading puts before it.
fn reason(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string)
}
