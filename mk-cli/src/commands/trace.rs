//! `mk trace`: what a run did when, in numbers and as a picture.

use crate::args::TraceArgs;
use crate::console::{Console, count};
use crate::error::{Exit, Failure, internal};
use crate::timeline::{self, Shown, Summary, Trace, View};
use crate::{input, memory, target};
use mk_core::Error;
use serde::Serialize;
use std::io::BufReader;
use std::path::Path;

/// Ranks whose numbers are printed; `--json` has all.
const PRINTED_RANKS: usize = 16;

#[derive(Serialize)]
struct TraceResult<'a> {
    command: &'static str,
    /// What ran; empty where the trace does not say.
    program: String,
    #[serde(flatten)]
    summary: &'a Summary,
    /// Events of the file that are neither slices nor names.
    left_out: u64,
    out: Option<String>,
    /// Ranks that the picture shows.
    shown: Option<Vec<u16>>,
}

/// What a result is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Html,
    Svg,
    Json,
}

/// `mk trace FILE`.
pub(crate) fn trace(args: &TraceArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let form = args.out.as_deref().map(form).transpose()?;
    if args.ranks.is_some() && !matches!(form, Some(Form::Html | Form::Svg)) {
        return Err(ranks_of_nothing());
    }
    target::check_all(&[("--out", args.out.as_deref())], &[("FILE", Some(&args.file))])?;
    let trace = {
        let _step = console.step("reading");
        read(&args.file)?
    };
    if trace.left_out > 0 {
        console.note(format!("{} events that are neither slices nor names are left out", trace.left_out));
    }
    let summary = Summary::of(&trace);
    let shown = match (&args.out, form) {
        (Some(out), Some(form)) => write(args, out, form, &trace, &summary)?,
        _ => None,
    };
    say(&trace, &summary, console);
    if let Some(out) = &args.out {
        console.say("wrote", out.display().to_string());
    }
    if let Some(folded) = shown.as_ref().and_then(Shown::folded_text) {
        console.note(folded);
    }
    console.object(&TraceResult {
        command: "trace",
        program: trace.title(),
        summary: &summary,
        left_out: trace.left_out,
        out: args.out.as_ref().map(|p| p.display().to_string()),
        shown: shown.map(|s| s.ranks),
    });
    Ok(())
}

fn form(out: &Path) -> Result<Form, Failure> {
    let ending = out.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
    match ending.as_deref() {
        Some("html") => Ok(Form::Html),
        Some("svg") => Ok(Form::Svg),
        Some("json") => Ok(Form::Json),
        _ => Err(Error::input(
            "the ending of --out says what is written",
            out.display(),
            ".html (a page to zoom), .svg (a picture), .json (for Perfetto)",
            "give --out a name with one of these endings",
        )
        .into()),
    }
}

fn ranks_of_nothing() -> Failure {
    Error::input(
        "--ranks chooses what a picture shows",
        "--ranks without a picture",
        "--out with a name that ends in .html or .svg",
        "numbers are printed, and .json is written, for all ranks",
    )
    .into()
}

fn read(path: &Path) -> Result<Trace, Failure> {
    let (file, bytes) = input::open(path, timeline::MAX_FILE_BYTES)?;
    if bytes == 0 {
        return Err(input::empty(path));
    }
    // The shortest slice takes more bytes in a file than in memory.
    let most = u128::from(bytes).min(u128::from(timeline::MAX_BYTES));
    memory::check(&path.display().to_string(), most, "trace a smaller run")?;
    timeline::read(BufReader::with_capacity(1 << 18, file)).map_err(|what| {
        Failure::file(path, what, "give a trace as `mk run --trace` writes it, or write it again")
    })
}

/// Writes the picture or the trace; the ranks that a picture shows.
fn write(
    args: &TraceArgs,
    out: &Path,
    form: Form,
    trace: &Trace,
    summary: &Summary,
) -> Result<Option<Shown>, Failure> {
    let budget = match form {
        Form::Json => {
            target::write(out, |to| timeline::normal(trace, to))?;
            return Ok(None);
        }
        Form::Svg => timeline::SVG_BUDGET,
        Form::Html => timeline::HTML_BUDGET,
    };
    let shown = Shown::choose(trace, args.ranks.as_ref(), budget).map_err(|(given, allowed)| {
        Failure::from(Error::input("the trace has no such rank", given, allowed, "change --ranks"))
    })?;
    let title = match trace.title() {
        title if title.is_empty() => args.file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        title => title,
    };
    let view = View::new(trace, summary, shown, title);
    let text = match form {
        Form::Html => timeline::html(&view).map_err(|e| {
            Failure::new(Exit::Internal, internal(format!("the page cannot be written: {e}")))
        })?,
        _ => timeline::svg(&view),
    };
    target::write(out, |to| to.write_all(text.as_bytes()))?;
    Ok(Some(view.shown))
}

/// The summary, for people.
fn say(trace: &Trace, summary: &Summary, console: &mut Console<'_>) {
    let title = trace.title();
    if !title.is_empty() {
        console.say("program", title);
    }
    let (size, waits) = (summary.size_text(), count(summary.waits, "wait"));
    console.say("run", format!("{}; {size}, {waits}", timeline::us(summary.run_us)));
    let all = &summary.all;
    let share = timeline::percent(all.exposed);
    console.say("exposed communication", format!("{}, {share} of the run", timeline::us(all.exposed_us)));
    console.say("compute lanes", summary.shares_text(all));
    let ranks = &summary.ranks;
    for rank in ranks.iter().take(PRINTED_RANKS) {
        let (exposed, parts) = (timeline::us(rank.shares.exposed_us), summary.shares_text(&rank.shares));
        console.say(&format!("rank {}", rank.rank), format!("exposed communication {exposed}; {parts}"));
    }
    if ranks.len() > PRINTED_RANKS {
        console.say("more", format!("{} ranks; --json has all", ranks.len() - PRINTED_RANKS));
    }
}
