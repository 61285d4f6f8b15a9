//! `mk plan`: plans an operator and says what the plan needs.

use super::problem::{Files, Planned, PlannedSettings, Predicted, Product};
use crate::args::PlanAgGemm;
use crate::console::Console;
use crate::error::Failure;
use crate::memory::human;
use crate::target;
use mk_compute::{Choice, Prediction, Settings};
use mk_core::Program;
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct PlanResult<'a> {
    command: &'static str,
    #[serde(flatten)]
    planned: &'a Planned,
    /// Why it is this one, in words.
    why: &'a str,
    /// How many times faster than the best unfused plan it is predicted to be; `None` where that was not looked at.
    speed_up: Option<f64>,
    /// The best plan of each kind, the fastest first.
    alternatives: Vec<Alternative>,
    /// Hash of the program, as its file holds it.
    blake3: String,
    out: Option<String>,
}

#[derive(Serialize)]
struct Alternative {
    settings: PlannedSettings,
    predicted: Predicted,
}

/// `mk plan ag-gemm`.
pub(crate) fn ag_gemm(args: &PlanAgGemm, console: &mut Console<'_>) -> Result<(), Failure> {
    target::check_all(&[("--out", args.out.as_deref())], &args.world.inputs())?;
    let product = Product::new(&args.problem, &args.world, &Files::default())?;
    let (choice, program) = {
        let _step = console.step("planning");
        let choice = product.choose()?;
        let program = product.plan_chosen(&choice)?;
        (choice, program)
    };
    let planned = Planned::of(&product, &choice, &program)?;
    console.say("planned", planned.text());
    say(&planned, &choice, console);
    let blake3 = program.hash(&product.registry)?;
    console.say("blake3", &blake3);
    if let Some(out) = &args.out {
        write_program(&program, &product, out)?;
        console.say("wrote", out.display().to_string());
    }
    let alternative = |(s, p): &(Settings, Prediction)| Alternative {
        settings: PlannedSettings::of(s),
        predicted: Predicted::of(p),
    };
    console.object(&PlanResult {
        command: "plan",
        planned: &planned,
        why: &choice.why,
        speed_up: choice.speed_up(),
        alternatives: choice.alternatives.iter().map(alternative).collect(),
        blake3,
        out: args.out.as_ref().map(|p| p.display().to_string()),
    });
    Ok(())
}

/// What a person wants to know of a plan.
fn say(planned: &Planned, choice: &Choice, console: &mut Console<'_>) {
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
    console.say("how", choice.settings.to_string());
    for l in &planned.links {
        let (all, most) = (human(l.bytes.into()), human(l.most_out_bytes.into()));
        console.say(l.transport, format!("{all} over {} links; at most {most} out of one rank", l.links));
    }
    let (limit, share) = choice.prediction.limit();
    let faster = choice.speed_up().map_or_else(String::new, |x| format!(", {x:.2} times as fast as unfused"));
    let us = |ns: f64| format!("{:.1} us", ns / 1000.0);
    console.say("predicted", format!("{}{faster}", us(choice.prediction.time_ns)));
    console.say("limited by", format!("{limit}, {:.0} % of the time", 100.0 * share));
    console.say("why", &choice.why);
    for (settings, prediction) in choice.alternatives.iter().skip(1) {
        console.say("instead", format!("{}: {settings}", us(prediction.time_ns)));
    }
}

fn write_program(program: &Program, product: &Product, out: &Path) -> Result<(), Failure> {
    let mut file = Vec::new();
    program.write(&product.registry, &mut file)?;
    target::write(out, |to| to.write_all(&file))
}
