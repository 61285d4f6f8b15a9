//! Which plan is taken: all that are worth a thought are predicted, and of the fastest the simplest wins.

use super::AllGatherGemm;
use super::islands::{PULL, PUSH};
use super::layout::{Layout, slices};
use super::plan::words;
use super::predict::{Prediction, predict};
use super::settings::{Gather, Plan, Settings};
use mk_core::{CommOp, Error, Rank, Registry};

/// What the planner decided, and what else it looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The plan that is made.
    pub settings: Settings,
    /// What it is likely to take.
    pub prediction: Prediction,
    /// The best of each kind (fused or unfused, push or pull) that was looked at: the chosen one, then the others, the fastest
    /// first.
    pub alternatives: Vec<(Settings, Prediction)>,
    /// Why it is this one, in words.
    pub why: String,
    /// Tasks that it has.
    pub tasks: u128,
    /// Signal words of all ranks together.
    pub words: u128,
}

impl Choice {
    /// How many times faster it is than the best unfused plan; `None` if the unfused plan was not to be looked at.
    pub fn speed_up(&self) -> Option<f64> {
        let unfused = self.alternatives.iter().find(|(s, _)| s.plan == Plan::Unfused)?;
        (self.prediction.time_ns > 0.0).then(|| unfused.1.time_ns / self.prediction.time_ns)
    }
}

/// Lanes that send through a NIC: enough that one sends while the others' messages are on their way.
const NETWORK_LANES: u16 = 4;
/// Predictions that differ by less are the same.
const AS_FAST: f64 = 1.01;
/// What a lane moves at a time: slices of a part that have less leave room unused.
const SLOT_BYTES: u64 = 8 << 10;
/// K slices that are looked at.
const SLICES: [u16; 5] = [1, 2, 4, 8, 16];

/// Predicts what is worth a thought, and takes the fastest; of those that are about as fast, the simplest.
///
/// # Errors
/// Ranks that need each other and that no transport connects.
pub(super) fn choose(op: &AllGatherGemm, layout: &Layout, registry: &Registry) -> Result<Choice, Error> {
    let mut kinds: Vec<Vec<(Settings, Prediction)>> = Vec::new();
    for settings in candidates(op, layout, registry) {
        let prediction = predict(op, layout, &settings, registry)?;
        let same = |k: &&mut Vec<(Settings, Prediction)>| {
            let (s, _) = &k[0];
            (s.plan, s.gather) == (settings.plan, settings.gather)
        };
        match kinds.iter_mut().find(same) {
            Some(kind) => kind.push((settings, prediction)),
            None => kinds.push(vec![(settings, prediction)]),
        }
    }
    let mut best: Vec<(Settings, Prediction)> = kinds.iter().map(|kind| kind[simplest(kind)]).collect();
    let chosen = best.remove(simplest(&best));
    best.sort_by(|a, b| a.1.time_ns.total_cmp(&b.1.time_ns));
    best.insert(0, chosen);
    let (settings, prediction) = chosen;
    let why = why(op, layout, &best);
    let tasks = layout.task_count(settings.plan, settings.gather);
    let words = words(layout, &settings, slices(op, &settings));
    Ok(Choice { settings, prediction, alternatives: best, why, tasks, words })
}

/// The first that is about as fast as the fastest: candidates are ordered from the simplest on, fused before unfused, push
/// before pull, fewer slices and fewer lanes first.
fn simplest(candidates: &[(Settings, Prediction)]) -> usize {
    let fastest = candidates.iter().map(|(_, p)| p.time_ns).fold(f64::INFINITY, f64::min);
    candidates.iter().position(|(_, p)| p.time_ns <= fastest * AS_FAST).unwrap_or(0)
}

/// Everything that was not asked for is varied.
fn candidates(op: &AllGatherGemm, layout: &Layout, registry: &Registry) -> Vec<Settings> {
    let lanes = op.lane_count();
    let network_lanes = if layout.crosses() { NETWORK_LANES.min(lanes) } else { 0 };
    let exchanges = layout.exchanges();
    let plans = varied(op.plan, if exchanges { &[Plan::Fused, Plan::Unfused] } else { &[Plan::Fused] });
    let pulls = exchanges && layout.islands.largest() > 1 && can_pull(layout, registry);
    let gathers = varied(op.gather, if pulls { &[Gather::Push, Gather::Pull] } else { &[Gather::Push] });
    // Where nobody has a neighbour, row blocks are sent whole.
    let rows = if layout.islands.largest() > 1 { layout.part_rows } else { layout.tile_rows };
    let unit = |slices: u16| rows * op.k * op.dtype.bytes() / u64::from(slices);
    let some: Vec<u16> =
        SLICES.into_iter().filter(|&s| s == 1 || exchanges && unit(s) >= SLOT_BYTES).collect();
    let slices = varied(op.slices, &some);
    // What a lane sends to other groups holds up what it moves to neighbours.
    let others = if lanes > network_lanes { lanes - network_lanes } else { lanes };
    let comm_lanes = match op.comm_lanes {
        Some(most) => vec![most.min(others)],
        None => comm_lanes(op, layout, registry, others),
    };
    let mut all = Vec::new();
    for &plan in &plans {
        for &gather in &gathers {
            for &slices in &slices {
                for &comm_lanes in &comm_lanes {
                    all.push(Settings { plan, gather, lanes, comm_lanes, network_lanes, slices });
                }
            }
        }
    }
    all
}

fn varied<T: Copy>(asked: Option<T>, all: &[T]) -> Vec<T> {
    asked.map_or_else(|| all.to_vec(), |one| vec![one])
}

/// As many lanes as fill a port, half as many again, and all of them.
fn comm_lanes(op: &AllGatherGemm, layout: &Layout, registry: &Registry, lanes: u16) -> Vec<u16> {
    let pair = (0..layout.islands.count()).find_map(|i| pair(layout, i)).filter(|_| layout.exchanges());
    let Some(route) = pair.and_then(|[a, b]| registry.route(a, b, PUSH).ok()) else { return vec![lanes] };
    let fill = (route.link(&op.hardware).egress.gb_per_s / op.hardware.sm_copy_gb_per_s).ceil();
    let some = |share: f64| ((fill * share).min(f64::from(lanes)) as u16).max(1);
    let mut all = vec![some(1.0), some(1.5), lanes];
    all.dedup();
    all
}

/// Two neighbours of an island, if it has any.
fn pair(layout: &Layout, island: u32) -> Option<[Rank; 2]> {
    match *layout.islands.members(island) {
        [a, b, ..] => Some([layout.rank(a), layout.rank(b)]),
        _ => None,
    }
}

/// Whether every neighbour can be read from.
fn can_pull(layout: &Layout, registry: &Registry) -> bool {
    let served = |[a, b]: [Rank; 2]| {
        registry.route(a, b, PULL).is_ok_and(|route| {
            [CommOp::Get, CommOp::Signal, CommOp::Wait].iter().all(|&op| route.handler(op).is_ok())
        })
    };
    (0..layout.islands.count()).filter_map(|i| pair(layout, i)).all(served)
}

fn why(op: &AllGatherGemm, layout: &Layout, best: &[(Settings, Prediction)]) -> String {
    if !layout.exchanges() {
        return "no rank needs rows of another, so there is nothing to fuse".into();
    }
    let (settings, prediction) = &best[0];
    let (limit, share) = prediction.limit();
    let other = |differs: &dyn Fn(&Settings) -> bool| best.iter().find(|(s, _)| differs(s)).map(|(_, p)| p);
    let mut why = match other(&|s| s.plan != settings.plan) {
        Some(other) => {
            let reason = match settings.plan {
                Plan::Fused => {
                    format!("tiles start before the last row is there, after {}", us(prediction.gathered_ns))
                }
                Plan::Unfused => tiles(op, layout, prediction, other),
            };
            format!("{}: {reason}", against(prediction, other, &settings.plan))
        }
        None => format!("{} was asked for: {} predicted", settings.plan, us(prediction.time_ns)),
    };
    if let Some(other) = other(&|s| s.plan == settings.plan && s.gather != settings.gather) {
        why += &format!("; {}", against(prediction, other, &settings.gather));
    }
    format!("{why}; {limit} takes {:.0} % of the time", 100.0 * share)
}

fn us(ns: f64) -> String {
    format!("{:.1} us", ns / 1000.0)
}

/// How the chosen one compares with the other one of its kind.
fn against(chosen: &Prediction, other: &Prediction, name: &dyn std::fmt::Display) -> String {
    let (a, b) = (us(chosen.time_ns), us(other.time_ns));
    match chosen.time_ns * AS_FAST < other.time_ns {
        true => format!("{name} is faster, {a} against {b}"),
        false => format!("{name} is as fast and simpler, {a} against {b}"),
    }
}

/// What fused tiles cost.
fn tiles(op: &AllGatherGemm, layout: &Layout, unfused: &Prediction, fused: &Prediction) -> String {
    let rows = op.m.div_ceil(u64::from(layout.world));
    format!(
        "a fused tile ends where a shard does, after at most {rows} rows, so there are {} tiles instead of {}, which take {} instead of {}",
        layout.tile_count(Plan::Fused),
        layout.tile_count(Plan::Unfused),
        us(fused.compute_ns),
        us(unfused.compute_ns)
    )
}
