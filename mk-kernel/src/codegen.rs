//! From the registry to CUDA text: what Rust and CUDA share, and one table of the handlers.

mod structs;
mod table;

use crate::{Error, device};
use mk_core::{HandlerRef, Program, Registry};

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
}

/// `name@version`.
fn id(handler: &HandlerRef) -> String {
    format!("{}@{}", handler.name(), handler.version())
}

#[cfg(test)]
mod tests;
