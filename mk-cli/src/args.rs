//! The command line.

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
  mk verify program.json                         prove a program file";

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
  3  a proof, or the comparison with the reference, failed
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
    /// Measure this build on this machine, and write the samples to a file.
    Bench(BenchArgs),
}

#[derive(ClapArgs, Debug)]
#[command(
    after_help = "See `mk bench sim --help` for its options and examples.",
    subcommand_value_name = "NAME",
    subcommand_help_heading = "Benchmarks",
    disable_help_subcommand = true
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) name: BenchName,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BenchName {
    /// Planner, verifier and simulator, in tasks a second, on AllGather+GEMM plans of growing size.
    Sim(BenchSim),
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  mk bench sim                              three sizes, up to a million tasks
  mk bench sim --samples 3 --of-bar 0.33    a quick look: a third of each bar is enough
  mk bench sim --out docs/results           a file for the record")]
pub(crate) struct BenchSim {
    /// Measurements of each case; the median counts
    #[arg(long, value_name = "NUMBER", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000), allow_negative_numbers = true)]
    pub(crate) samples: u16,
    /// The share of each bar that is enough to pass
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share, allow_negative_numbers = true)]
    pub(crate) of_bar: f64,
    /// Write NAME-DATE-COMMIT.json to this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
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
    /// fused: tiles start as slices of A arrive; unfused: when all of A has arrived
    #[arg(long, value_enum, value_name = "PLAN", default_value_t = PlanKind::Fused)]
    pub(crate) plan: PlanKind,
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
    /// Servers that the GPUs are evenly spread over; ag-gemm runs inside one so far, so 1 for it
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
  mk run ag-gemm --plan unfused --trace trace.json
      The baseline. https://ui.perfetto.dev shows who waits for what.

Worlds:
  ag-gemm runs inside one node so far: all ranks in one NVLink group, which is
  --nodes 1, or one nvlink group of all ranks in the --topology file.

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
    /// Only the time: no data is moved, so no result
    #[arg(long, conflicts_with_all = ["a", "b", "out", "check"])]
    pub(crate) timing: bool,
    /// Order of events that happen at once: any seed gives the same C
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = whole, allow_negative_numbers = true)]
    pub(crate) schedule_seed: u64,
    /// A TOML file with faults to inject: delay, jitter, reordering, lost ranks
    #[arg(long, value_name = "FILE")]
    pub(crate) faults: Option<PathBuf>,
    /// The longest that a task may wait, in simulated milliseconds, such as 0.5 [default: 5000]
    #[arg(long, value_name = "MS", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) timeout_ms: Option<f64>,
    /// Write what happened when as Chrome JSON, for https://ui.perfetto.dev
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

/// What runs a program.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The best that this machine has
    Auto,
    /// The simulator
    Sim,
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
