//! From CUDA text to machine code.

use crate::codegen::Source;
use crate::nvrtc::{Failure, Input, Nvrtc};
use crate::report::{Report, diagnostic};
use crate::search::{self, Candidates, NVRTC_VARIABLE};
use crate::{Error, abi, driver};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Errors that are told; the log has all.
const ERRORS_TOLD: usize = 5;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arch {
    /// Compute capability, times ten.
    pub capability: u16,
    /// `a`: with the instructions that only this very architecture has; `f`: its family; none: any later one runs it.
    pub suffix: Option<char>,
}

impl Arch {
    /// Hopper, with its own instructions: wgmma, setmaxnreg.
    pub const SM_90A: Arch = Arch { capability: 90, suffix: Some('a') };

    /// What a kernel of this crate needs of a GPU, compiled for this.
    pub fn needs(self) -> driver::Requirements {
        driver::Requirements {
            arch: self.to_string(),
            capability: [u32::from(self.capability) / 10, u32::from(self.capability) % 10],
            // Machine code runs on later chips of its major version, but for the instructions of one very architecture.
            later: self.suffix != Some('a'),
            shared_bytes: abi::Geometry::SHARED_BYTES.into(),
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.capability)?;
        self.suffix.map_or(Ok(()), |s| write!(f, "{s}"))
    }
}

impl FromStr for Arch {
    type Err = Error;

    /// Reads `sm_90a`.
    fn from_str(s: &str) -> Result<Arch, Error> {
        let parse = || {
            let rest = s.strip_prefix("sm_")?;
            let digits = rest.trim_end_matches(['a', 'f']);
            let suffix = rest.strip_prefix(digits)?;
            let legal = suffix.len() <= 1 && digits.bytes().all(|b| b.is_ascii_digit());
            let capability = digits.parse().ok().filter(|_| legal)?;
            Some(Arch { capability, suffix: suffix.chars().next() })
        };
        parse().ok_or_else(|| Error::Arch { arch: s.into(), allowed: "sm_90a, sm_100a and the like".into() })
    }
}

/// How a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// For which GPU.
    pub arch: Arch,
    /// With a trace ring for each role. Costs time.
    pub trace: bool,
    /// Whether what comm tasks move waits for a link that is not there.
    pub pace: Option<Pace>,
}

/// A link that is not there, for measuring on one GPU what another one's rows would hide behind: what the comm tasks of all
/// lanes move passes through it one after the other, and comes so much later, and so does what is posted behind it. For
/// programs in which one rank of the GPU moves anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes a nanosecond.
    pub gb_per_s: u32,
    /// Nanoseconds.
    pub latency_ns: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { arch: Arch::SM_90A, trace: false, pace: None }
    }
}

impl Options {
    /// The compiler's options.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut list = vec![
            format!("--gpu-architecture={}", self.arch),
            "-std=c++17".into(),
            // Registers and spills go into the log.
            "--ptxas-options=-v".into(),
        ];
        if self.trace {
            list.push("--define-macro=MK_TRACE=1".into());
        }
        if let Some(Pace { gb_per_s, latency_ns }) = self.pace {
            list.push(format!("--define-macro=MK_PACE_GB_PER_S={gb_per_s}"));
            list.push(format!("--define-macro=MK_PACE_LATENCY_NS={latency_ns}"));
        }
        list
    }
}

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code, as the driver loads it.
    pub cubin: Vec<u8>,
    /// What it was assembled from.
    pub ptx: String,
    /// What the compiler said.
    pub log: String,
    /// The same, understood.
    pub report: Report,
}

/// NVRTC, found and loaded.
#[derive(Debug)]
pub struct Compiler {
    nvrtc: Nvrtc,
    file: PathBuf,
}

impl Compiler {
    /// The major version of NVRTC that is needed: version 12 serialises the wgmma of the GEMM handler.
    pub const MAJOR: u32 = 13;

    /// The NVRTC that the variable `MK_NVRTC` names; without it, the first of the usual places: where the loader looks,
    /// PyPI wheels, conda, CUDA toolkits.
    ///
    /// # Errors
    /// [`Error::NvrtcMissing`] says where it was looked for; [`Error::NvrtcUnusable`] what is wrong with what was found.
    pub fn find() -> Result<Compiler, Error> {
        match std::env::var_os(NVRTC_VARIABLE).filter(|v| !v.is_empty()) {
            Some(place) => Compiler::at(Path::new(&place)),
            None => {
                Compiler::first(search::usual(Path::new("/"), &|name| std::env::var_os(name).map(Into::into)))
            }
        }
    }

    /// The NVRTC in this place: its file, its folder, a toolkit, a virtual environment, or the target of
    /// `pip install --target`.
    ///
    /// # Errors
    /// As [`Compiler::find`].
    pub fn at(place: &Path) -> Result<Compiler, Error> {
        Compiler::first(search::in_place(place))
    }

    /// The first that loads; else what was wrong with the first that is there.
    fn first(candidates: Candidates) -> Result<Compiler, Error> {
        let mut unusable = None;
        for file in candidates.files {
            match Nvrtc::load(&file) {
                Ok(nvrtc) if by_name(&file) => {
                    let file = driver::loaded_file(&file).unwrap_or(file);
                    return Ok(Compiler { nvrtc, file });
                }
                Ok(nvrtc) => return Ok(Compiler { nvrtc, file }),
                // Most of the time the loader has none, which is no fault.
                Err(_) if by_name(&file) => {}
                Err(message) => {
                    unusable.get_or_insert(Error::NvrtcUnusable { path: file, message });
                }
            }
        }
        Err(unusable.unwrap_or(Error::NvrtcMissing { looked: candidates.looked }))
    }

    /// Its major and minor version.
    pub fn version(&self) -> [u32; 2] {
        self.nvrtc.version
    }

    /// Its file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Compiles, and checks the machine code.
    ///
    /// # Errors
    /// [`Error::Arch`], [`Error::Compile`], [`Error::Rejected`].
    pub fn compile(&self, source: &Source, options: &Options) -> Result<Compiled, Error> {
        let compiled = self.compile_unchecked(source, options)?;
        let violations = compiled.report.violations();
        if violations.is_empty() {
            return Ok(compiled);
        }
        Err(Error::Rejected { violations, report: Box::new(compiled.report), log: compiled.log })
    }

    /// Compiles, and leaves it to the caller to look at [`Report::violations`].
    ///
    /// # Errors
    /// [`Error::Arch`], [`Error::Compile`].
    pub fn compile_unchecked(&self, source: &Source, options: &Options) -> Result<Compiled, Error> {
        self.check_arch(source, options.arch)?;
        let arguments = options.arguments();
        let name = format!("{}.cu", abi::ENTRY);
        let input = Input {
            name: &name,
            text: &source.entry,
            headers: source.headers.iter().map(|h| (h.name.as_str(), h.text.as_str())).collect(),
            options: &arguments,
        };
        let output = self.nvrtc.compile(&input).map_err(|failure| self.refused(failure))?;
        let report = Report::parse(&output.log, &output.ptx);
        Ok(Compiled { cubin: output.cubin, ptx: output.ptx, log: output.log, report })
    }

    fn refused(&self, failure: Failure) -> Error {
        match failure {
            Failure::Source(log) => {
                let errors = log.lines().filter_map(|l| diagnostic(l, "error"));
                let mut errors: Vec<String> = errors.take(ERRORS_TOLD).collect();
                // The assembler's errors name no file of ours.
                errors.extend(
                    log.lines().filter(|l| l.starts_with("ptxas") && l.contains("error")).map(Into::into),
                );
                errors.truncate(ERRORS_TOLD);
                Error::Compile { errors, log }
            }
            Failure::Other(message) => Error::NvrtcUnusable { path: self.file.clone(), message },
        }
    }

    /// The architecture is one of this NVRTC's, and has what every handler needs.
    fn check_arch(&self, source: &Source, arch: Arch) -> Result<(), Error> {
        if !self.nvrtc.archs.contains(&u32::from(arch.capability)) {
            let allowed: Vec<String> = self.nvrtc.archs.iter().map(|a| format!("sm_{a}")).collect();
            let [major, minor] = self.nvrtc.version;
            let allowed = format!("{} (NVRTC {major}.{minor})", allowed.join(", "));
            return Err(Error::Arch { arch: arch.to_string(), allowed });
        }
        match source.handlers.iter().find(|h| h.min_arch > arch.capability) {
            Some(h) => {
                let allowed = format!("sm_{} or later: handler '{}' needs it", h.min_arch, h.name);
                Err(Error::Arch { arch: arch.to_string(), allowed })
            }
            None => Ok(()),
        }
    }
}

/// The loader is asked by name only.
fn by_name(file: &Path) -> bool {
    file.parent() == Some(Path::new(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_is_read_as_the_compiler_writes_it() {
        for s in ["sm_90a", "sm_90", "sm_100f", "sm_120"] {
            assert_eq!(s.parse::<Arch>().unwrap().to_string(), s);
        }
        for s in ["90a", "sm_", "sm_a", "sm_90aa", "sm_9x", "sm_+90", "compute_90a", "sm_999999"] {
            assert!(matches!(s.parse::<Arch>(), Err(Error::Arch { .. })), "{s}");
        }
    }
}
