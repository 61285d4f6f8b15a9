//! From the registry to CUDA text: what Rust and CUDA share, and one table of the handlers.

mod structs;
mod table;

use crate::abi::Geometry;
use crate::{Error, device};
use mk_core::{Access, HandlerRef, Phase, PostAt, Program, Registry, Spec, Task, Verified, WaitAt, Walk};

/// Name of the generated header with all that Rust and CUDA share.
pub const ABI_HEADER: &str = "mk/abi.cuh";
/// Name of the generated header with the table of handlers.
pub const TABLE_HEADER: &str = "mk/table.cuh";

/// The file that is compiled. The role loops include all else.
const ENTRY_TEXT: &str = "#include \"mk/kernel.cuh\"\n";

/// A header: how it is included, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What stands in `#include "..."`, and in the compiler's messages.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// All the text of one kernel. The same registry gives the same bytes, on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file that is compiled: nothing but an include.
    pub entry: String,
    /// What it includes: generated headers, the device library, the handlers' own files; each once.
    pub headers: Vec<Header>,
    /// The handlers in the table, in the order of their opcodes.
    pub handlers: Vec<TableEntry>,
    /// Registered handlers without a CUDA side, as `name@version`.
    pub without_device: Vec<String>,
}

/// A handler in the table.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TableEntry {
    /// Its opcode.
    pub opcode: u16,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// The stream that it runs in.
    pub stream: mk_core::Stream,
    /// Its struct in CUDA.
    pub device_struct: String,
    /// The file that has it.
    pub file: String,
    /// Pages of one of its groups.
    pub pages: u8,
    /// Least compute capability, times ten.
    pub min_arch: u16,
}

impl TableEntry {
    /// `name@version`.
    pub fn id(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }
}

impl Source {
    /// The kernel of all registered handlers that have a CUDA side.
    ///
    /// ```
    /// use mk_core::{Registry, World};
    /// let registry = Registry::builder().handlers(mk_compute::handlers()).build(&World::local(1)?)?;
    /// let source = mk_kernel::Source::of(&registry)?;
    /// assert!(source.header("mk/abi.cuh").is_some_and(|text| text.contains("struct GemmArgs {")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Handler`]: two different files or structs of one name, a name that is none in C, more pages or registers
    /// than a block has.
    pub fn of(registry: &Registry) -> Result<Source, Error> {
        let with_device = |h: &&HandlerRef| h.device().is_some();
        let without: Vec<String> = registry.handlers().iter().filter(|h| !with_device(h)).map(id).collect();
        let handlers = table::entries(registry)?;
        let header = |name: &str, text: String| Header { name: name.into(), text };
        let mut headers = vec![
            header(ABI_HEADER, structs::abi(registry)?),
            header(TABLE_HEADER, table::text(registry, &handlers, &without)?),
        ];
        headers.extend(device::LIBRARY.iter().map(|&(name, text)| header(name, text.into())));
        table::add_files(registry, &mut headers)?;
        Ok(Source { entry: ENTRY_TEXT.into(), headers, handlers, without_device: without })
    }

    /// The text of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|h| h.name == name).map(|h| h.text.as_str())
    }

    /// Whether the kernel has every handler that `program` uses, in its version.
    ///
    /// # Errors
    /// [`Error::NotInKernel`] names those that it does not have.
    pub fn check_program(&self, program: &Program) -> Result<(), Error> {
        let known: Vec<String> = self.handlers.iter().map(TableEntry::id).collect();
        let used = program.handlers.iter().map(|h| format!("{}@{}", h.name, h.version));
        let handlers: Vec<String> = used.filter(|h| !known.contains(h)).collect();
        if handlers.is_empty() {
            return Ok(());
        }
        Err(Error::NotInKernel { program: program.name.clone(), handlers, known })
    }

    /// Whether the kernel can run a proved program: it has every handler, and no task holds itself up.
    ///
    /// A task that works block by block loads no more than the ring holds before it stores. If it may store only when a peer has
    /// seen that it has loaded everything, it must fit into the ring. A proof says nothing of that: what it holds for has no ring.
    ///
    /// # Errors
    /// As [`Source::check_program`]; and [`Error::LargerThanRing`] names the task.
    pub fn check(&self, verified: &Verified) -> Result<(), Error> {
        let program = verified.program();
        self.check_program(program)?;
        for stream in &program.streams {
            for id in stream.tasks().filter(|id| stores_late(program.task(*id))) {
                let task = program.task(id);
                let opcode = verified.opcodes()[task.op.index()];
                // All specs of a proved program are legal.
                let spec = program.spec(verified.registry(), opcode, stream.rank, task);
                let pages = spec.map_or(0, |spec| self.pages_of(opcode, &spec, program));
                if pages > u64::from(Geometry::RING_PAGES) {
                    return Err(Error::LargerThanRing { task: program.task_name(id), pages });
                }
            }
        }
        Ok(())
    }

    /// Pages that a task takes from the ring before it stores; 0 where it stores as a whole, for then they are freed as they are
    /// read.
    fn pages_of(&self, opcode: u16, spec: &Spec, program: &Program) -> u64 {
        let walks = spec.accesses.iter().any(|a| a.at == Phase::Store && a.walk != Walk::Whole);
        let Some(entry) = self.handlers.iter().find(|h| h.opcode == opcode).filter(|_| walks) else {
            return 0;
        };
        // A row that is wider than a page takes several groups.
        let element = |a: &Access| program.regions.get(a.region.index()).map_or(0, |r| r.dtype.bytes());
        let widest = spec.accesses.iter().map(element).max().unwrap_or(0);
        let cols = spec.accesses.iter().map(|a| a.rect.cols).max().unwrap_or(0);
        let groups = cols.saturating_mul(widest).div_ceil(Geometry::PAGE_BYTES.into()).max(1);
        u64::from(spec.blocks).saturating_mul(groups).saturating_mul(entry.pages.into())
    }
}

/// Whether a task may store only when something has happened, and posts that it has loaded.
fn stores_late(task: &Task) -> bool {
    task.waits().any(|w| w.at() == WaitAt::Store) && task.posts().any(|p| p.at() == PostAt::Loaded)
}

/// `name@version`.
fn id(handler: &HandlerRef) -> String {
    format!("{}@{}", handler.name(), handler.version())
}

#[cfg(test)]
mod tests;
