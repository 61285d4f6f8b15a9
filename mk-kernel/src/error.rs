//! Why there is no kernel.

use crate::report::{Report, Violation};
use mk_core::Explanation;
use std::path::PathBuf;

/// Why no kernel could be made of the registered handlers.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program uses handlers that have no CUDA side, or that this kernel was made without.
    #[error("program '{program}' cannot run on a GPU: the kernel has no {}", .handlers.join(", no "))]
    NotInKernel {
        /// The program's name.
        program: String,
        /// The handlers, as `name@version`.
        handlers: Vec<String>,
        /// What the kernel has.
        known: Vec<String>,
    },
    /// A task must have loaded all before it stores, and loads more than the ring of pages holds.
    #[error("{task} loads {pages} pages before it may store, more than the ring has")]
    LargerThanRing {
        /// The task, by name.
        task: String,
        /// Pages that it needs.
        pages: u64,
    },
    /// More ranks on one GPU than one launch runs.
    #[error("{ranks} ranks on {device}: one launch has not so many")]
    TooManyRanks {
        /// How many were put there.
        ranks: usize,
        /// The GPU.
        device: String,
        /// How many can be.
        allowed: usize,
    },
    /// What a handler says of its CUDA side cannot be.
    #[error("handler '{handler}': {message}")]
    Handler {
        /// The handler's name.
        handler: String,
        /// What is wrong.
        message: String,
        /// What is allowed.
        allowed: String,
    },
    /// No NVRTC was found.
    #[error("the CUDA compiler library NVRTC was not found")]
    NvrtcMissing {
        /// Where it was looked for.
        looked: Vec<String>,
    },
    /// An NVRTC is there, but not usable.
    #[error("{}: {message}", .path.display())]
    NvrtcUnusable {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// This NVRTC does not compile for this architecture.
    #[error("{arch} cannot be compiled for")]
    Arch {
        /// What was asked for.
        arch: String,
        /// What is possible.
        allowed: String,
    },
    /// The compiler refused the source.
    #[error("the kernel does not compile: {}", .errors.first().map_or("no reason was given", String::as_str))]
    Compile {
        /// The first errors, as `file:line: text`.
        errors: Vec<String>,
        /// All that the compiler said.
        log: String,
    },
    /// The kernel compiles, but not to the machine code that it must be.
    #[error("the kernel compiles to what may not be run: {}", .violations.first().map_or_else(String::new, ToString::to_string))]
    Rejected {
        /// What is wrong with it.
        violations: Vec<Violation>,
        /// Its registers, memory and facts.
        report: Box<Report>,
        /// All that the compiler said.
        log: String,
    },
    /// The driver did not do what was asked.
    #[error(transparent)]
    Driver(#[from] crate::driver::Error),
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hint = self.explain().hint;
        write!(f, "{self}")?;
        if hint.is_empty() { Ok(()) } else { write!(f, "\n  what to do: {hint}") }
    }
}

impl Error {
    /// The error as given, allowed and hint, for `--json` and for people.
    pub fn explain(&self) -> Explanation {
        let (kind, given, allowed, hint) = match self {
            Error::Driver(e) => return e.explain(),
            Error::NotInKernel { handlers, known, .. } => (
                "not-in-kernel",
                handlers.join(", "),
                known.join(", "),
                "plan with handlers that have a CUDA side, run it in the simulator, or give the handler a `device`"
                    .into(),
            ),
            Error::LargerThanRing { pages, .. } => (
                "larger-than-ring",
                format!("{pages} pages"),
                format!("{} pages", crate::abi::Geometry::RING_PAGES),
                "cut the task into smaller ones, or let it wait before it starts instead of before it stores".into(),
            ),
            Error::TooManyRanks { ranks, allowed, .. } => (
                "input",
                format!("{ranks} ranks"),
                format!("at most {allowed} on one GPU"),
                "use a smaller world, more GPUs, or the simulator".into(),
            ),
            Error::Handler { handler, allowed, .. } => {
                ("handler", handler.clone(), allowed.clone(), "change what its `device` returns".into())
            }
            Error::NvrtcMissing { looked } => (
                "missing",
                format!("looked in {}", looked.join(", ")),
                "NVRTC 13".into(),
                "install it (pip install nvidia-cuda-nvrtc, or the CUDA toolkit), or name its file or folder in MK_NVRTC"
                    .into(),
            ),
            Error::NvrtcUnusable { path, .. } => (
                "missing",
                path.display().to_string(),
                "NVRTC 13".into(),
                "name another file or folder in MK_NVRTC, or install it again".into(),
            ),
            Error::Arch { arch, allowed } => (
                "input",
                arch.clone(),
                allowed.clone(),
                "name one of them, or install a newer NVRTC".into(),
            ),
            Error::Compile { errors, .. } => (
                "compile",
                errors.join("; "),
                "CUDA C++17 that NVRTC compiles".into(),
                "mend the named file; `mk codegen --out FOLDER` writes all of the source".into(),
            ),
            Error::Rejected { violations, .. } => (
                "rejected",
                violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
                "no spill, no serialised wgmma, no ignored setmaxnreg, no non-coherent load".into(),
                violations.first().map_or_else(String::new, |v| v.hint().into()),
            ),
        };
        Explanation { kind, message: self.to_string(), given, allowed, hint }
    }
}
