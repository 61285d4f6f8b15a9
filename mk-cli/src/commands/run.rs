//! `mk run`: plans, proves, runs and checks.

use super::backend::{self, Runner};
use super::on_gpu::{self, OnGpu};
use super::problem::{Files, Planned, Product, gather, shards};
use super::simulate::{Simulated, faults, simulate};
use super::verify::{ProofResult, proof_text};
use crate::args::{Backend, DataArgs, RunAgGemm, TensorPath};
use crate::check::{Summary, Worst, product as compare};
use crate::console::Console;
use crate::error::{Exit, Failure, internal};
use crate::{memory, target, tensors};
use mk_core::{Bindings, DType, Tensor, Verified};
use mk_sim::Faults;
use serde::Serialize;
use std::time::Instant;

/// Operations up to which a result is compared without being asked: a few seconds.
const CHECK_FLOPS: u128 = 10_000_000_000;

#[derive(Serialize)]
struct RunResult<'a> {
    command: &'static str,
    operator: &'static str,
    backend: &'static str,
    m: u64,
    n: u64,
    k: u64,
    dtype: String,
    plan: &'a Planned,
    proof: ProofResult,
    #[serde(flatten)]
    ran: &'a Ran,
    /// Of C; `None` where only time was simulated.
    result: Option<Summary>,
    /// The element furthest from the f64 reference; `None` where it was not compared, or has no element.
    worst: Option<Worst>,
    /// Whether C was compared with the f64 reference.
    checked: bool,
    out: Option<String>,
    trace: Option<String>,
    /// Seconds that this command took.
    seconds: f64,
}

/// What a run was like, a field of the result named by what ran it.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Ran {
    Simulated(Simulated),
    Gpu(OnGpu),
}

impl Ran {
    /// As `--backend` names it.
    fn backend(&self) -> &'static str {
        match self {
            Ran::Simulated(_) => "sim",
            Ran::Gpu(_) => "gpu",
        }
    }
}

/// `mk run ag-gemm`.
pub(crate) fn ag_gemm(args: &RunAgGemm, console: &mut Console<'_>) -> Result<(), Failure> {
    let start = Instant::now();
    backend::check(&args.execution)?;
    check_targets(args)?;
    let faults = faults(args.execution.faults.as_deref())?;
    let mut files = Files::read(&args.data)?;
    let product = Product::new(&args.problem, &args.world, &files)?;
    let checked = !args.execution.timing && wants_check(&args.data, product.flops());
    if !args.execution.timing {
        check_memory(&product, args.execution.backend, checked)?;
    }
    let rounded = files.round(product.dtype)?;
    let chosen = backend::choose(&args.execution, product.registry.topology())?;
    let product = match &chosen.runner {
        Runner::Gpu(gpu) => product.sharing(gpu.multiprocessors(), args.problem.lanes),
        Runner::Simulator => product,
    };
    let (planned, verified) = prove(args, &product, console)?;
    // Not before: of input that is refused, the error is all that counts.
    for name in rounded {
        console.note(format!("{name} is rounded from {} to {}", DType::F32, product.dtype));
    }
    if let Some(note) = chosen.note() {
        console.note(note);
    }
    let input =
        Input { args, product: &product, verified: &verified, runner: chosen.runner, faults, checked };
    let done = execute(&input, files, console)?;
    let path = |p: &Option<std::path::PathBuf>| p.as_ref().map(|p| p.display().to_string());
    console.object(&RunResult {
        command: "run",
        operator: "ag-gemm",
        backend: done.ran.backend(),
        m: product.m,
        n: product.n,
        k: product.k,
        dtype: product.dtype.to_string(),
        plan: &planned,
        proof: verified.proof().into(),
        ran: &done.ran,
        result: done.summary,
        worst: done.worst,
        checked,
        out: path(&args.data.out),
        trace: path(&args.execution.trace),
        seconds: start.elapsed().as_secs_f64(),
    });
    Ok(())
}

/// Plans it, and proves the plan.
fn prove(
    args: &RunAgGemm,
    product: &Product,
    console: &mut Console<'_>,
) -> Result<(Planned, Verified), Failure> {
    let (choice, program) = {
        let _step = console.step("planning");
        let choice = product.choose()?;
        let program = product.plan_chosen(&choice)?;
        (choice, program)
    };
    let planned = Planned::of(product, &choice, &program)?;
    console.say("planned", planned.text());
    if args.problem.plan.is_none() && choice.alternatives.len() > 1 {
        console.say("chosen", &choice.why);
    }
    let verified = {
        let _step = console.step("proving");
        program.verify(&product.registry, &product.hardware)?
    };
    console.say("proved", proof_text(&verified.proof()));
    Ok((planned, verified))
}

struct Done {
    ran: Ran,
    summary: Option<Summary>,
    worst: Option<Worst>,
}

/// What is run.
struct Input<'a> {
    args: &'a RunAgGemm,
    product: &'a Product,
    verified: &'a Verified,
    runner: Runner,
    faults: Faults,
    checked: bool,
}

fn execute(input: &Input<'_>, files: Files, console: &mut Console<'_>) -> Result<Done, Failure> {
    let Input { args, product, .. } = input;
    if args.execution.timing {
        let (ran, _) = run(input, &Bindings::new(), console)?;
        return Ok(Done { ran, summary: None, worst: None });
    }
    let [a, b] = product.operands(files, args.data.seed);
    let (ran, outputs) = run(input, &shards(product, &a, &b), console)?;
    let c = gather(product, &outputs).ok_or_else(|| {
        Failure::new(Exit::Internal, internal("the run gave back no C, or one of another shape".into()))
    })?;
    let summary = Summary::of(&c);
    console.say("C", format!("{} x {} {}, {}", c.rows, c.cols, c.dtype, summary.text()));
    let worst = if input.checked { check(&a, &b, &c, console)? } else { None };
    if !input.checked && !args.data.no_check {
        let flops = product.flops() as f64;
        console.say("not checked", format!("{flops:.1e} operations; --check compares anyway"));
    }
    if let Some(out) = &args.data.out {
        tensors::write(out, &c)?;
        console.say("wrote", out.display().to_string());
    }
    Ok(Done { ran, summary: Some(summary), worst })
}

fn run(
    input: &Input<'_>,
    bindings: &Bindings,
    console: &mut Console<'_>,
) -> Result<(Ran, Bindings), Failure> {
    let Input { product, verified, .. } = input;
    let execution = &input.args.execution;
    let ran = match &input.runner {
        Runner::Simulator => run_simulated(input, bindings, console)?,
        Runner::Gpu(gpu) => {
            let (ran, outputs) = on_gpu::run(gpu, product, verified, bindings, execution, console)?;
            console.say("ran", ran.text());
            (Ran::Gpu(ran), outputs)
        }
    };
    if let Some(trace) = &execution.trace {
        console.say("trace", format!("{}: open it in https://ui.perfetto.dev", trace.display()));
    }
    Ok(ran)
}

fn run_simulated(
    input: &Input<'_>,
    bindings: &Bindings,
    console: &mut Console<'_>,
) -> Result<(Ran, Bindings), Failure> {
    let Input { product, verified, faults, .. } = input;
    let execution = &input.args.execution;
    let (simulated, outputs) = {
        let tasks = verified.program().tasks.len();
        let bar = console.bar(format!("simulating {tasks} tasks"), tasks as u64);
        simulate(product, verified, bindings, faults.clone(), execution, bar.listener())?
    };
    console.say("simulated", simulated.text(&product.hardware.name));
    Ok((Ran::Simulated(simulated), outputs))
}

fn check(a: &Tensor, b: &Tensor, c: &Tensor, console: &mut Console<'_>) -> Result<Option<Worst>, Failure> {
    let worst = {
        let _step = console.step("comparing with a product in f64");
        compare(a, b, c)?
    };
    let text = match &worst {
        Some(w) => {
            let percent = 100.0 * w.of_bound;
            format!("the worst error is {percent:.0} % of what rounding allows, at C[{},{}]", w.row, w.col)
        }
        None => "C has no element".into(),
    };
    console.say("right", text);
    Ok(worst)
}

fn wants_check(args: &DataArgs, flops: u128) -> bool {
    args.check || (!args.no_check && flops < CHECK_FLOPS)
}

/// Refuses targets that cannot be written, before any work is done.
fn check_targets(args: &RunAgGemm) -> Result<(), Failure> {
    let RunAgGemm { world, data, execution, .. } = args;
    data.out.as_deref().map_or(Ok(()), tensors::check_name)?;
    let file = |t: &'_ Option<TensorPath>| t.as_ref().map(|t| t.file.clone());
    let (a, b) = (file(&data.a), file(&data.b));
    let mut inputs = world.inputs().to_vec();
    inputs.extend([("--a", a.as_deref()), ("--b", b.as_deref()), ("--faults", execution.faults.as_deref())]);
    target::check_all(&[("--out", data.out.as_deref()), ("--trace", execution.trace.as_deref())], &inputs)
}

/// A, B and C are held by the caller, by the ranks, and once more by what runs them; in the simulator A by every rank when it
/// is gathered.
fn check_memory(product: &Product, backend: Backend, checked: bool) -> Result<(), Failure> {
    let (gathering, hint) = match backend {
        Backend::Gpu => (0, "use smaller matrices"),
        _ => (
            product.registry.world().size(),
            "use --timing, which moves no data, smaller matrices or fewer ranks",
        ),
    };
    let gathered = u128::from(product.m)
        * u128::from(product.k)
        * u128::from(product.dtype.bytes())
        * u128::from(gathering);
    // The comparison holds A and B in f32 and B, C, magnitudes and bounds in f64.
    let compared = if checked { product.bytes() * 12 } else { 0 };
    let bytes = product.bytes() * 4 + gathered + compared;
    memory::check("the run", bytes, hint)
}
