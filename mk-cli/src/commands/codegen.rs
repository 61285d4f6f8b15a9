//! `mk codegen`: the kernel's source, and what the compiler makes of it.

use crate::args::CodegenArgs;
use crate::console::Console;
use crate::error::Failure;
use crate::{setup, target};
use mk_core::World;
use mk_kernel::abi::Geometry;
use mk_kernel::{
    ABI_HEADER, Arch, Built, Cache, Compiler, Error, MachineCode, Options, Report, Source, TABLE_HEADER,
    TableEntry,
};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Serialize)]
struct CodegenResult<'a> {
    command: &'static str,
    handlers: &'a [TableEntry],
    without_device: &'a [String],
    /// The generated files, where nothing else was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Vec<File<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<Kernel<'a>>,
}

#[derive(Serialize)]
struct File<'a> {
    name: &'a str,
    text: &'a str,
}

/// What the compiler made.
#[derive(Serialize)]
struct Kernel<'a> {
    arch: String,
    nvrtc: String,
    nvrtc_file: &'a Path,
    cubin_bytes: usize,
    cached: bool,
    seconds: f64,
    #[serde(flatten)]
    report: &'a Report,
    /// Where CUDA's disassembler is installed.
    machine_code: Option<MachineCode>,
}

/// `mk codegen`.
pub(crate) fn codegen(args: &CodegenArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let arch: Arch = args.arch.parse()?;
    let source = Source::of(&setup::registry(&World::local(1)?)?)?;
    let out = args.out.as_deref().map(|folder| write(&source, folder)).transpose()?;
    let built = args.report.then(|| build(&source, arch, args.nvrtc.as_deref(), console)).transpose()?;
    let generated = [ABI_HEADER, TABLE_HEADER];
    let shown: Option<Vec<File<'_>>> = (out.is_none() && built.is_none())
        .then(|| generated.map(|name| File { name, text: source.header(name).unwrap_or_default() }).into());
    for file in shown.iter().flatten() {
        console.text(&format!("// ======== {} ========\n{}\n", file.name, file.text));
    }
    if let Some(files) = &out {
        console.say("wrote", files.join(", "));
    }
    if built.is_some() {
        show_handlers(&source, console);
    }
    let kernel = built.as_ref().map(|b| b.kernel(arch));
    if let Some(kernel) = &kernel {
        show(kernel, console);
    }
    console.object(&CodegenResult {
        command: "codegen",
        handlers: &source.handlers,
        without_device: &source.without_device,
        source: shown,
        out,
        kernel,
    });
    Ok(())
}

/// All of the source, below a folder: what the compiler's messages name.
fn write(source: &Source, folder: &Path) -> Result<Vec<String>, Failure> {
    let entry = format!("{}.cu", mk_kernel::abi::ENTRY);
    let headers = source.headers.iter().map(|h| (h.name.as_str(), h.text.as_str()));
    let mut written = Vec::new();
    for (name, text) in [(entry.as_str(), source.entry.as_str())].into_iter().chain(headers) {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|e| {
                let hint = "name a folder that can be written";
                Failure::file(parent, format!("cannot be created: {e}"), hint)
            })?;
        }
        target::write(&path, |to| to.write_all(text.as_bytes()))?;
        written.push(path.display().to_string());
    }
    Ok(written)
}

/// A kernel, and how it came to be.
struct Made {
    built: Built,
    version: [u32; 2],
    file: PathBuf,
    seconds: f64,
}

fn build(
    source: &Source,
    arch: Arch,
    nvrtc: Option<&Path>,
    console: &mut Console<'_>,
) -> Result<Made, Failure> {
    let compiler = nvrtc.map_or_else(Compiler::find, Compiler::at)?;
    let start = Instant::now();
    let built = {
        let _step = console.step("compiling");
        Cache::user().build(&compiler, source, &Options { arch, ..Options::default() })
    };
    if let Err(Error::Rejected { report, .. }) = &built {
        show_report(report, console);
    }
    let built = built?;
    let seconds = start.elapsed().as_secs_f64();
    if let Some(warning) = &built.warning {
        console.note(warning);
    }
    Ok(Made { built, version: compiler.version(), file: compiler.file().into(), seconds })
}

impl Made {
    fn kernel(&self, arch: Arch) -> Kernel<'_> {
        let [major, minor] = self.version;
        Kernel {
            arch: arch.to_string(),
            nvrtc: format!("{major}.{minor}"),
            nvrtc_file: &self.file,
            cubin_bytes: self.built.cubin.len(),
            cached: self.built.cached,
            seconds: self.seconds,
            report: &self.built.report,
            machine_code: MachineCode::of(&self.built.cubin),
        }
    }
}

fn show_handlers(source: &Source, console: &mut Console<'_>) {
    let pages = |e: &TableEntry| match e.pages {
        0 => e.name.clone(),
        1 => format!("{} (1 page)", e.name),
        n => format!("{} ({n} pages)", e.name),
    };
    let list: Vec<String> = source.handlers.iter().map(pages).collect();
    console.say("handlers", if list.is_empty() { "none".into() } else { list.join(", ") });
    if !source.without_device.is_empty() {
        let list = source.without_device.join(", ");
        console.say("without CUDA side", format!("{list}: programs with them run in the simulator only"));
    }
}

fn show(kernel: &Kernel<'_>, console: &mut Console<'_>) {
    let Kernel { arch, nvrtc, nvrtc_file, .. } = kernel;
    let how = if kernel.cached { "from the cache" } else { "compiled" };
    console.say(
        "kernel",
        format!(
            "{} bytes for {arch}, {how} in {:.3} s, by NVRTC {nvrtc} ({})",
            kernel.cubin_bytes,
            kernel.seconds,
            nvrtc_file.display()
        ),
    );
    show_report(kernel.report, console);
    console.say("machine code", machine_facts(kernel.machine_code));
}

fn show_report(report: &Report, console: &mut Console<'_>) {
    for f in &report.functions {
        let what = format!(
            "{} at entry, {} bytes of stack, {} bytes spilled",
            f.registers,
            f.stack_bytes,
            f.spill_store_bytes.saturating_add(f.spill_load_bytes)
        );
        console.say(&format!("registers of {}", f.name), what);
    }
    let roles: Vec<String> = report.role_registers.iter().map(u32::to_string).collect();
    console.say("registers of roles", if roles.is_empty() { "as at entry".into() } else { roles.join(", ") });
    console.say(
        "pages",
        format!(
            "{} of {} bytes in the ring, {} for results, {} for communication",
            Geometry::RING_PAGES,
            Geometry::PAGE_BYTES,
            Geometry::STAGING_PAGES,
            Geometry::COMM_PAGES
        ),
    );
    let shared: u32 =
        report.functions.iter().map(|f| f.shared_bytes).chain(report.dynamic_shared_bytes).sum();
    console.say("shared memory", format!("{shared} bytes of {}", Geometry::SHARED_BYTES));
    console.say("PTX", ptx_facts(report));
    for warning in report.warnings.iter().chain(&report.advice) {
        console.say("warning", warning);
    }
}

fn ptx_facts(r: &Report) -> String {
    format!(
        "{} wgmma, {} bulk copies, {} non-coherent loads, {} calls, {} barriers of the block, {} of a role",
        r.wgmma, r.bulk_copies, r.non_coherent_loads, r.calls, r.block_barriers, r.role_barriers
    )
}

fn machine_facts(facts: Option<MachineCode>) -> String {
    let Some(m) = facts else { return "not looked at: there is no nvdisasm (it comes with CUDA)".into() };
    format!(
        "{} instructions, {} HGMMA, {} bulk copies, {} non-coherent loads, {} accesses to local memory, {} calls, {} yields",
        m.instructions, m.hgmma, m.bulk_copies, m.non_coherent_loads, m.local_accesses, m.calls, m.yields
    )
}
