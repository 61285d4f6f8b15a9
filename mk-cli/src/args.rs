//! The command line.

use crate::timeline::RankList;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use mk_core::DType;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Plans, proves and runs fused multi-GPU programs.
///
/// An operator such as `ag-gemm` becomes a program: a graph of tasks for every GPU of a world. `mk` proves that the program
/// can neither deadlock nor race, and runs it in a simulator, on your own matrices.
#[derive(Parser, Debug)]
#[command(name = "mk", version, after_help = EXAMPLES, after_long_help = LONG_EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print one JSON object to stdout, errors included.
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  mk run ag-gemm                                 random matrices, 4 simulated GPUs
  mk run ag-gemm --a a.safetensors --b b.npy --out c.safetensors
  mk plan ag-gemm --ranks 8 --out program.json   plan only
  mk verify program.json                         prove a program file
  mk doctor                                      what this machine has, and what it lacks
  mk selftest                                    whether programs run right on it";

const LONG_EXAMPLES: &str = "\
Examples:
  Multiply two random 1024 x 1024 matrices on 4 simulated GPUs, and check the result:
      mk run ag-gemm

  Your own matrices, the result into a file:
      mk run ag-gemm --ranks 8 --a a.safetensors --b b.npy --out c.safetensors

  Plan only, look at the program, prove it on another machine:
      mk plan ag-gemm --ranks 8 --out program.json
      mk verify program.json

Exit codes:
  0  it did what was asked
  1  a fault of mk itself
  2  the input or the usage is wrong
  3  a proof, the comparison with the reference, or the selftest failed
  4  the run ended in a fault: a time-out, a lost rank, a NIC
  5  hardware or a library is missing
  130  interrupted";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Plan an operator, prove the plan, run it, and check the result.
    Run(RunArgs),
    /// Plan an operator and say what the plan needs; nothing is run.
    Plan(PlanArgs),
    /// Prove that a program file can neither deadlock nor race.
    Verify(VerifyArgs),
    /// Look at what a run did when: exposed communication in one number, and a timeline.
    Trace(TraceArgs),
    /// Measure this build on this machine, and write the samples to a file.
    Bench(BenchArgs),
    /// Print the CUDA source of the kernel that the registered handlers make, or compile it and say what came out.
    Codegen(CodegenArgs),
    /// Look what this machine has for simulator, GPUs, network and launcher, and say what to do about the rest.
    Doctor(DoctorArgs),
    /// Run every handler and operator on this machine, in the simulator and on a GPU, and compare what they give.
    Selftest(SelftestArgs),
    /// Print a script with which a shell completes the commands and options of mk.
    Completions(CompletionsArgs),
    /// Print the manual page of mk, or write the pages of all commands to a folder.
    Man(ManArgs),
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  mk codegen                    what is generated: shared structs, and the table of handlers
  mk codegen --out kernel       all of the source, in files
  mk codegen --report           registers, shared memory, and facts of the machine code
  mk codegen --report --nvrtc ~/venv

Nothing of this needs a GPU. --report needs CUDA's compiler library NVRTC: pip install nvidia-cuda-nvrtc, or the CUDA
toolkit. It is looked for in --nvrtc, else in the variable MK_NVRTC, else where the loader looks, in Python's
site-packages, in conda, and in /usr/local/cuda. Compiled kernels are kept in ~/.cache/mkernel.")]
pub(crate) struct CodegenArgs {
    /// Compile the kernel, and say what the compiler says of it
    #[arg(long)]
    pub(crate) report: bool,
    /// Write all of the source to this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// The GPU to compile for
    #[arg(long, value_name = "ARCH", default_value = "sm_90a")]
    pub(crate) arch: String,
    /// NVRTC's file, or a folder, toolkit or virtual environment that has it [default: MK_NVRTC, or the usual places]
    #[arg(long, value_name = "PATH")]
    pub(crate) nvrtc: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  mk doctor                     what is there, and what to do about what is not
  mk doctor --require gpu       for scripts: exit code 5 if something is missing for GPUs
  srun mk doctor                the variables and limits that ranks get from their launcher

This build runs programs in the simulator, which needs nothing of what may be missing.")]
pub(crate) struct DoctorArgs {
    /// Fail with exit code 5 if something is missing for this
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) require: Vec<Requirement>,
}

/// What a machine can be required to be ready for.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// Programs on GPUs
    Gpu,
    /// Programs on several servers
    Rdma,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  mk selftest                   the simulator, and a GPU where there is one
  mk selftest --require gpu     for scripts: exit code 5 if the part for GPUs was skipped

Each check runs random programs with random legal arguments, and compares every byte with a
reference in f64: integers bit for bit; on a GPU also other numbers, within a bound of rounding.
Exit code 3 says that one failed; its reason names the seed.")]
pub(crate) struct SelftestArgs {
    /// Fail with exit code 5 if the part for this was skipped
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) require: Vec<SelftestRequirement>,
}

/// What a selftest can be required not to skip.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelftestRequirement {
    /// Programs on a GPU
    Gpu,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  source <(mk completions bash)                                      this shell
  mk completions bash > ~/.local/share/bash-completion/completions/mk    every shell
  mk completions zsh > \"${fpath[1]}/_mk\"
  mk completions fish > ~/.config/fish/completions/mk.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  mk man | man -l -
  mk man --out ~/.local/share/man/man1 && man mk-run-ag-gemm")]
pub(crate) struct ManArgs {
    /// Write one page for each command to this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
#[command(
    after_help = "\
Examples:
  mk bench sim                      planner, verifier and simulator, up to two million tasks
  mk bench sim --out docs/results   a file for the record, and its picture
  mk bench gpu                      tasks, signals, launches and start-up on the first GPU
  mk bench list                     what can be measured
  mk bench plot r.json --out r.svg  the picture of a record, drawn again",
    subcommand_value_name = "NAME",
    subcommand_help_heading = "Benchmarks, and what belongs to them",
    disable_help_subcommand = true
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) name: BenchName,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BenchName {
    /// Planner, verifier and simulator: tasks a second on one node, seconds and memory for a thousand GPUs.
    Sim(BenchOptions),
    /// The kernel on the first GPU: nanoseconds a task and a signal, launches, small all-reduces, start-up, time-outs.
    Gpu(BenchOptions),
    /// GEMMs on the first GPU, through the whole product, against cuBLAS.
    Gemm(BenchOptions),
    /// AllGather+GEMM on the first GPU, with rows that come over a paced link: what of their way is hidden.
    Overlap(BenchOptions),
    /// Say what can be measured.
    List,
    /// Draw the picture of a record again.
    Plot(BenchPlot),
}

/// How any benchmark is run.
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  --samples 3 --of-bar 0.33    a quick look: a third of each bar is enough
  --out docs/results           a file for the record, and its picture")]
pub(crate) struct BenchOptions {
    /// Measurements of each case; the median counts. Cases that take seconds are measured a third as often, those of a GPU
    /// that take microseconds five times as often
    #[arg(long, value_name = "NUMBER", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000), allow_negative_numbers = true)]
    pub(crate) samples: u16,
    /// The share of each bar that is enough to pass
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share, allow_negative_numbers = true)]
    pub(crate) of_bar: f64,
    /// Write NAME-DATE-COMMIT.json to this folder, and its picture beside it: NAME-DATE-COMMIT.svg
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  mk bench plot docs/results/sim-2026-01-31-0123456789.json --out sim.svg")]
pub(crate) struct BenchPlot {
    /// A record, as `mk bench NAME --out` writes it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Write the picture to this .svg file
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

/// A whole number; what is too large or negative is said to be out of range.
fn whole(s: &str) -> Result<u64, String> {
    let digits = s.strip_prefix('-').unwrap_or(s);
    s.parse().map_err(|_| {
        let number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let wrong = if number { "out of range" } else { "not a whole number" };
        format!("{wrong}: allowed are 0 to {}", u64::MAX)
    })
}

fn share(s: &str) -> Result<f64, String> {
    s.parse().ok().filter(|x| *x > 0.0 && *x <= 1.0).ok_or_else(|| "a number above 0, at most 1".into())
}

/// A span of time.
fn duration(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(x) if x > 0.0 && x.is_finite() => Ok(x),
        Ok(_) => Err("out of range: allowed is a number above 0".into()),
        Err(_) => Err("not a number: allowed is a number above 0".into()),
    }
}

#[derive(ClapArgs, Debug)]
#[command(
    after_help = "See `mk run ag-gemm --help` for its options and examples.",
    subcommand_value_name = "OPERATOR",
    subcommand_help_heading = "Operators",
    disable_help_subcommand = true
)]
pub(crate) struct RunArgs {
    #[command(subcommand)]
    pub(crate) operator: RunOperator,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RunOperator {
    /// C = A x B: each GPU gathers the rows of A that the others hold while it multiplies them with its columns of B.
    AgGemm(RunAgGemm),
}

#[derive(ClapArgs, Debug)]
#[command(
    after_help = "See `mk plan ag-gemm --help` for its options and examples.",
    subcommand_value_name = "OPERATOR",
    subcommand_help_heading = "Operators",
    disable_help_subcommand = true
)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    pub(crate) operator: PlanOperator,
}

#[derive(Subcommand, Debug)]
pub(crate) enum PlanOperator {
    /// C = A x B: each GPU gathers the rows of A that the others hold while it multiplies them with its columns of B.
    AgGemm(PlanAgGemm),
}

/// What is multiplied, and how.
#[derive(ClapArgs, Debug, Clone)]
#[command(next_help_heading = "Problem")]
pub(crate) struct Problem {
    /// Rows of A and C [default: 1024, or what the file says]
    #[arg(long, value_name = "ROWS", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) m: Option<u64>,
    /// Columns of B and C, a multiple of 8 [default: 1024, or what the file says]
    #[arg(long, value_name = "COLUMNS", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) n: Option<u64>,
    /// Columns of A, rows of B, a multiple of 8 [default: 1024, or what the file says]
    #[arg(long, value_name = "DEPTH", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) k: Option<u64>,
    /// Type of A, B and C; sums are f32 [default: bf16, or what the file says]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) dtype: Option<Float>,
    /// fused: tiles start as slices of A arrive; unfused: when all of A has arrived [default: the faster one]
    #[arg(long, value_enum, value_name = "PLAN")]
    pub(crate) plan: Option<PlanKind>,
    /// Inside a node, push: ranks write their rows into their peers' memory; pull: peers read them [default: the faster one]
    #[arg(long, value_enum, value_name = "GATHER")]
    pub(crate) gather: Option<GatherKind>,
    /// The most lanes (SMs) of each GPU that the plan may use; it takes no more than it has work for [default: all]
    #[arg(long, value_name = "LANES", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) lanes: Option<u64>,
}

/// On what.
#[derive(ClapArgs, Debug, Clone)]
#[command(next_help_heading = "World")]
pub(crate) struct WorldArgs {
    /// GPUs in all, at most 65536
    #[arg(long, value_name = "RANKS", default_value_t = 4, value_parser = whole, allow_negative_numbers = true)]
    pub(crate) ranks: u64,
    /// Servers that the GPUs are evenly spread over, with a NIC for each GPU
    #[arg(long, value_name = "NODES", default_value_t = 1, value_parser = whole, allow_negative_numbers = true)]
    pub(crate) nodes: u64,
    /// A TOML file that describes the servers, in place of --ranks and --nodes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ranks", "nodes"])]
    pub(crate) topology: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hardware: HardwareArgs,
}

impl WorldArgs {
    /// The options that name files, and the files.
    pub(crate) fn inputs(&self) -> [(&'static str, Option<&Path>); 2] {
        [("--topology", self.topology.as_deref()), ("--hardware", Some(&self.hardware.hardware))]
    }
}

#[derive(ClapArgs, Debug, Clone)]
pub(crate) struct HardwareArgs {
    /// A built-in hardware profile, or a TOML file with one
    #[arg(long, value_name = "NAME|FILE", default_value = "h200")]
    pub(crate) hardware: PathBuf,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct RunAgGemm {
    #[command(flatten)]
    pub(crate) problem: Problem,
    #[command(flatten)]
    pub(crate) world: WorldArgs,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    #[command(flatten)]
    pub(crate) execution: ExecutionArgs,
}

const RUN_EXAMPLES: &str = "\
Examples:
  mk run ag-gemm
      Random 1024 x 1024 matrices on 4 GPUs, compared with a product in f64.
  mk run ag-gemm --ranks 8 --a a.safetensors --b b.npy --out c.safetensors
      Your own matrices: A is [M, K], B is [K, N], C is [M, N], row-major.
  mk run ag-gemm --a w.safetensors:layers.0.x --b w.safetensors:layers.0.w
      Two tensors of one file, by name.
  mk run ag-gemm --m 65536 --n 8192 --k 8192 --ranks 8 --timing
      Only the time: no data is moved, so any size fits.
  mk run ag-gemm --backend gpu --ranks 2
      On a GPU: two ranks, each with half of its SMs.
  mk run ag-gemm --plan unfused --trace trace.json
      The baseline. https://ui.perfetto.dev shows who waits for what.

Worlds:
  --ranks 64 --nodes 8 is eight servers of eight GPUs, with a NIC for each GPU.
  Anything else (uneven nodes, NICs that GPUs share, groups that NVLink does not
  connect) is described in a --topology file.

Files:
  .safetensors  bf16 or fp16. A file with one matrix may name it anything;
                otherwise it is called a or b, or named as FILE:NAME.
  .npy          2-byte or 4-byte floats in C order. 4-byte floats are rounded
                to --dtype; a bf16 result is written as 4-byte floats.";

/// Matrices in and out.
#[derive(ClapArgs, Debug, Clone)]
#[command(next_help_heading = "Data")]
pub(crate) struct DataArgs {
    /// A, a .safetensors or .npy file [default: random numbers]
    #[arg(long, value_name = "FILE[:NAME]", value_parser = tensor_path())]
    pub(crate) a: Option<TensorPath>,
    /// B, a .safetensors or .npy file [default: random numbers]
    #[arg(long, value_name = "FILE[:NAME]", value_parser = tensor_path())]
    pub(crate) b: Option<TensorPath>,
    /// Write C to this .safetensors or .npy file
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Seed of random matrices, uniform in [-1, 1): the same for every number of GPUs
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = whole, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Compare C with a product in f64 on the CPU, however long it takes [default: below 2*M*N*K = 10^10]
    #[arg(long, overrides_with = "no_check")]
    pub(crate) check: bool,
    /// Do not compare
    #[arg(long)]
    pub(crate) no_check: bool,
}

/// How it is run.
#[derive(ClapArgs, Debug, Clone)]
#[command(next_help_heading = "Execution")]
pub(crate) struct ExecutionArgs {
    /// What runs the program
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t = Backend::Auto)]
    pub(crate) backend: Backend,
    /// Only the simulated time: no data is moved, so no result
    #[arg(long, conflicts_with_all = ["a", "b", "out", "check"])]
    pub(crate) timing: bool,
    /// Order of simulated events that happen at once: any seed gives the same C [default: 0]
    #[arg(long, value_name = "SEED", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) schedule_seed: Option<u64>,
    /// A TOML file with faults for the simulator to inject: delay, jitter, reordering, lost ranks
    #[arg(long, value_name = "FILE")]
    pub(crate) faults: Option<PathBuf>,
    /// The longest that a task may wait, in milliseconds, such as 0.5 [default: 5000 simulated ones, or 2000 on a GPU]
    #[arg(long, value_name = "MS", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) timeout_ms: Option<f64>,
    /// Write what happened when as Chrome JSON, for https://ui.perfetto.dev; on a GPU, keeping it takes time
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  mk plan ag-gemm --m 65536 --n 8192 --k 8192 --ranks 8
  mk plan ag-gemm --ranks 2 --lanes 4 --out program.json && less program.json")]
pub(crate) struct PlanAgGemm {
    #[command(flatten)]
    pub(crate) problem: Problem,
    #[command(flatten)]
    pub(crate) world: WorldArgs,
    /// Write the program to this file, one task a line
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  mk verify program.json
  mk verify program.json --nodes 2          its ranks are spread over two servers")]
pub(crate) struct VerifyArgs {
    /// A program file, as `mk plan --out` writes it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Servers that its ranks are evenly spread over
    #[arg(long, value_name = "NODES", default_value_t = 1, value_parser = whole, allow_negative_numbers = true)]
    pub(crate) nodes: u64,
    /// A TOML file that describes the servers, in place of --nodes
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    pub(crate) topology: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hardware: HardwareArgs,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  mk run ag-gemm --trace t.json && mk trace t.json
  mk trace t.json --out t.html                  a page to zoom, for a browser
  mk trace t.json --out t.svg --ranks 0-3,8     a picture of these ranks

The numbers:
  The run is from the first start to the last end in the trace. In it, a compute
  lane is at every moment one of
    waiting              in a task, waiting for a signal;
    busy                 in a task, not waiting;
    communication alone  no compute lane of its rank is in a task, but a comm
                         stream of the rank is;
    idle                 anything else: no task yet, at the moment, or any more.
  Exposed communication is waiting + communication alone: the mean over a rank's
  compute lanes, then over ranks. It is what could be saved at most if
  communication took no time. A lane that has finished early is idle, which is
  not exposed communication.")]
pub(crate) struct TraceArgs {
    /// A trace, as `mk run --trace` writes it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Write a timeline (.html, .svg), or the trace sorted and with known fields only (.json)
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Ranks that a timeline shows, such as 0-3,8 [default: the first ones, as many as fit]
    #[arg(long, value_name = "RANKS")]
    pub(crate) ranks: Option<RankList>,
}

/// Types that a matrix product takes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    Fp16,
}

impl From<Float> for DType {
    fn from(f: Float) -> DType {
        match f {
            Float::Bf16 => DType::Bf16,
            Float::Fp16 => DType::F16,
        }
    }
}

/// When tiles start.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanKind {
    Fused,
    Unfused,
}

impl From<PlanKind> for mk_compute::Plan {
    fn from(kind: PlanKind) -> mk_compute::Plan {
        match kind {
            PlanKind::Fused => mk_compute::Plan::Fused,
            PlanKind::Unfused => mk_compute::Plan::Unfused,
        }
    }
}

/// Who moves rows inside a node.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GatherKind {
    Push,
    Pull,
}

impl From<GatherKind> for mk_compute::Gather {
    fn from(kind: GatherKind) -> mk_compute::Gather {
        match kind {
            GatherKind::Push => mk_compute::Gather::Push,
            GatherKind::Pull => mk_compute::Gather::Pull,
        }
    }
}

/// What runs a program.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The GPU, if it can run the program; else the simulator
    Auto,
    /// The simulator
    Sim,
    /// The first GPU of this machine, which up to 8 ranks share
    Gpu,
}

/// `FILE` or `FILE:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorPath {
    pub(crate) file: PathBuf,
    pub(crate) name: Option<String>,
}

fn tensor_path() -> impl clap::builder::TypedValueParser<Value = TensorPath> {
    OsStringValueParser::new().map(|s| TensorPath::of(&s))
}

impl TensorPath {
    /// What follows the last `:` is a name, unless a `/` is in it: `C:/a.npy` and `dir:1/a.npy` are files.
    ///
    /// The file's name may be any bytes; a tensor's name is text.
    fn of(s: &OsStr) -> TensorPath {
        TensorPath::split(s).unwrap_or_else(|| TensorPath { file: s.into(), name: None })
    }

    fn split(s: &OsStr) -> Option<TensorPath> {
        let bytes = s.as_encoded_bytes();
        let colon = bytes.iter().rposition(|&b| b == b':')?;
        let file = PathBuf::from(os_string(&bytes[..colon])?);
        let name = std::str::from_utf8(&bytes[colon + 1..]).ok()?;
        (known(&file) && !name.contains('/')).then(|| TensorPath { file, name: Some(name.into()) })
    }
}

#[cfg(unix)]
fn os_string(bytes: &[u8]) -> Option<OsString> {
    Some(std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec()))
}

#[cfg(not(unix))]
fn os_string(bytes: &[u8]) -> Option<OsString> {
    std::str::from_utf8(bytes).ok().map(Into::into)
}

/// Whether a path ends like a tensor file, so that a `:` after it starts a name.
fn known(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    ending.is_some_and(|e| e.eq_ignore_ascii_case("safetensors") || e.eq_ignore_ascii_case("npy"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_name_follows_the_last_colon_of_a_tensor_file() {
        let parse = |s: &str| {
            let t = TensorPath::of(s.as_ref());
            (t.file, t.name)
        };
        assert_eq!(parse("a.safetensors:x.w"), ("a.safetensors".into(), Some("x.w".into())));
        assert_eq!(parse("a.safetensors:"), ("a.safetensors".into(), Some(String::new())));
        assert_eq!(parse("a.npy"), ("a.npy".into(), None));
        assert_eq!(parse("dir:1/a.npy"), ("dir:1/a.npy".into(), None));
        assert_eq!(parse("odd:name"), ("odd:name".into(), None));
    }
}
