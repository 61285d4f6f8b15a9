//! `mk plan`: plans an operator and says what the plan needs.

use super::problem::{Files, Planned, Product};
use crate::args::PlanAgGemm;
use crate::console::Console;
use crate::error::Failure;
use crate::memory::human;
use crate::target;
use mk_core::Program;
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct PlanResult<'a> {
    command: &'static str,
    #[serde(flatten)]
    planned: &'a Planned,
    /// Hash of the program, as its file holds it.
    blake3: String,
    out: Option<String>,
}

/// `mk plan ag-gemm`.
pub(crate) fn ag_gemm(args: &PlanAgGemm, console: &mut Console<'_>) -> Result<(), Failure> {
    target::check_all(&[("--out", args.out.as_deref())], &args.world.inputs())?;
    let product = Product::new(&args.problem, &args.world, &Files::default())?;
    let program = {
        let _step = console.step("planning");
        product.plan()?
    };
    let planned = Planned::of(&product, &program)?;
    console.say("planned", planned.text());
    let m = &planned.memory;
    console.say(
        "a rank",
        format!(
            "{} heap, {} tensors, {} staging, {} signals, {} tasks",
            human(m.heap.into()),
            human(m.bound.into()),
            human(m.staging.into()),
            human(m.signals.into()),
            human(m.tasks.into())
        ),
    );
    let blake3 = program.hash(&product.registry)?;
    console.say("blake3", &blake3);
    if let Some(out) = &args.out {
        write_program(&program, &product, out)?;
        console.say("wrote", out.display().to_string());
    }
    let out = args.out.as_ref().map(|p| p.display().to_string());
    console.object(&PlanResult { command: "plan", planned: &planned, blake3, out });
    Ok(())
}

fn write_program(program: &Program, product: &Product, out: &Path) -> Result<(), Failure> {
    let mut file = Vec::new();
    program.write(&product.registry, &mut file)?;
    target::write(out, |to| to.write_all(&file))
}
