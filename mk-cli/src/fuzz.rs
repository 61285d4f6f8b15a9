//! Entry points for fuzzing: each takes any bytes, and panics only where the crate is wrong.

use crate::tensors::{Place, find_npy, find_safetensors};
use crate::timeline::{self, Shown, Summary, View};
use mk_core::World;
use std::io::Cursor;

/// A `.npy` file.
pub fn npy(bytes: &[u8]) {
    if let Ok(place) = find_npy(&mut &*bytes, bytes.len() as u64) {
        check(&place, bytes);
    }
}

/// A `.safetensors` file.
pub fn safetensors(bytes: &[u8]) {
    for name in [None, Some("a"), Some("")] {
        if let Ok(place) = find_safetensors(&mut &*bytes, bytes.len() as u64, name, "a") {
            check(&place, bytes);
        }
    }
}

/// A trace. Whatever can be read can be shown, and is the same when it has been written and read again.
pub fn trace(bytes: &[u8]) {
    let Ok(trace) = timeline::read(bytes) else { return };
    let summary = Summary::of(&trace);
    let all = &summary.all;
    let parts = all.busy_us + all.waiting_us + all.comm_alone_us + all.idle_us;
    assert!((parts - summary.run_us).abs() <= 1e-6 * summary.run_us, "parts of the run: {summary:?}");
    let shown =
        Shown::choose(&trace, None, timeline::SVG_BUDGET).expect("no rank is wanted that is not there");
    let view = View::new(&trace, &summary, shown, trace.title());
    assert!(timeline::svg(&view).ends_with("</svg>\n"));
    assert!(timeline::html(&view).expect("text and numbers are JSON").ends_with("</html>\n"));
    let mut json = Vec::new();
    timeline::normal(&trace, &mut json).expect("memory can be written");
    let again = timeline::read(&*json).expect("what was written can be read");
    assert_eq!(again.slices.len(), trace.slices.len());
}

/// A file of faults.
pub fn faults_toml(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = mk_sim::Faults::from_toml(text);
}

/// A matrix has the bytes of its shape, no more than the file.
fn check(place: &Place, file: &[u8]) {
    let t = place.read(&mut Cursor::new(file)).expect("a place that was found is in the file");
    assert_eq!(u128::from(t.rows) * u128::from(t.cols) * u128::from(t.dtype.bytes()), t.bytes.len() as u128);
    assert!(t.bytes.len() < file.len());
    assert_eq!(t.to_f32().len() as u64, t.rows * t.cols);
}

/// A program file, for all handlers that this command registers.
pub fn program_file(bytes: &[u8]) {
    let world = World::local(1).expect("a world of one rank");
    let registry = crate::setup::registry(&world).expect("the registry of this command");
    let _ = mk_core::Program::read(bytes, &registry);
}

/// Arguments of every handler that this command registers.
pub fn device_args(bytes: &[u8]) {
    let world = World::local(2).expect("a world of two ranks");
    let registry = crate::setup::registry(&world).expect("the registry of this command");
    registry.handlers().iter().for_each(|h| mk_core::fuzz::handler_args(&**h, bytes));
}
