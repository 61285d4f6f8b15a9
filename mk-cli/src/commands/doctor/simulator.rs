//! What always has to work: planning, proving and running a program on the CPU; and how much of it fits.

use super::check::{Check, Group};
use super::machine::Machine;
use crate::memory::{self, human};
use crate::setup;
use mk_compute::AllGatherGemm;
use mk_core::{Bindings, DType, Hardware, RunError, Session as _, Tensor};
use mk_sim::Simulator;
use std::path::Path;
use std::thread::available_parallelism;

const RANKS: u32 = 2;
/// Rows, columns and depth of the product that is tried: cut between ranks, and small enough that every sum is exact.
const SIDE: u64 = 32;
/// The small operators of the examples need a fraction; below it, not even they run well.
const MEMORY_BYTES: u64 = 1 << 30;
/// Control groups without a limit name the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    vec![programs(), cpus(), memory(machine)]
}

fn programs() -> Check {
    let check = Check::new(Group::Simulator, "programs", "a small product that is planned, proved and right");
    let hint = "this is a fault of mk: please report it";
    match product() {
        Ok(true) => {
            check.ok(format!("{SIDE} x {SIDE} x {SIDE} on {RANKS} ranks: planned, proved, and right"))
        }
        Ok(false) => check.missing("a product is wrong", hint),
        Err(e) => check.missing(e.to_string(), hint),
    }
}

/// Whether a product of small integers, of which every sum is exact, is right.
fn product() -> Result<bool, RunError> {
    let world = mk_core::World::local(RANKS.into())?;
    let registry = setup::registry(&world).map_err(|e| mk_core::Error::input(e.says.message, "", "", ""))?;
    let op = AllGatherGemm::new(SIDE, SIDE, SIDE, DType::Bf16);
    let program = op.plan(&registry)?.verify(&registry, &Hardware::h200())?;
    let numbers = |step: u64| (0..SIDE * SIDE).map(|i| (i * step % 7) as f32 - 3.0).collect::<Vec<_>>();
    let (a, b) = (numbers(3), numbers(5));
    let whole = |x: &[f32]| Tensor::from_f32(DType::Bf16, SIDE, SIDE, x);
    let mut bindings = Bindings::new();
    for rank in world.topology.ranks() {
        let (rows, cols) = (op.rows(RANKS, rank.0.into()), op.cols(RANKS, rank.0.into()));
        bindings.set(rank, AllGatherGemm::A, whole(&a).slice(rows.start, rows.end - rows.start, 0, SIDE));
        bindings.set(rank, AllGatherGemm::B, whole(&b).slice(0, SIDE, cols.start, cols.end - cols.start));
    }
    let out = Simulator::builder(&registry).build().run(&program, &bindings)?;
    let mut c = Tensor::zeros(DType::Bf16, SIDE, SIDE);
    for rank in world.topology.ranks() {
        let Some(part) = out.get(rank, AllGatherGemm::C) else { return Ok(false) };
        c.paste(0, op.cols(RANKS, rank.0.into()).start, part);
    }
    let side = SIDE as usize;
    let want: Vec<f32> = reference::matmul(&a, &b, side, side, side).into_iter().map(|x| x as f32).collect();
    Ok(c == whole(&want))
}

fn cpus() -> Check {
    let check =
        Check::new(Group::Simulator, "CPUs", "one; a simulation runs on one, several run side by side");
    match available_parallelism() {
        Ok(n) => check.ok(format!("{n} for this process")),
        Err(e) => check.warning(format!("the system does not say: {e}"), "nothing: one is assumed"),
    }
}

fn memory(machine: &Machine) -> Check {
    let needed = format!("{}, and what mk plan says of larger plans", human(MEMORY_BYTES.into()));
    let check = Check::new(Group::Simulator, "memory", needed);
    let free = memory::available();
    let group = group_limit(machine);
    let of_group = group
        .map_or(String::new(), |n| format!("; this process's control group may have {}", human(n.into())));
    let found = format!("{} available{of_group}", human(free.into()));
    if group.unwrap_or(free).min(free) < MEMORY_BYTES {
        return check.warning(found, "end other programs, or give the container more (docker run --memory)");
    }
    check.ok(found)
}

/// The least limit of the control groups that this process is in.
fn group_limit(machine: &Machine) -> Option<u64> {
    let groups = machine.text("/proc/self/cgroup")?;
    let limits = groups.lines().flat_map(|line| {
        // Version 2 is `0::/path`; version 1 is `4:memory:/path`.
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or("/"));
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        };
        let counts = controllers.is_empty() || controllers.split(',').any(|c| c == "memory");
        let below = |group: &Path| {
            machine.text(Path::new(mount).join(group.strip_prefix("/").unwrap_or(group)).join(file))
        };
        let read = |group: &Path| below(group)?.parse::<u64>().ok();
        Path::new(path).ancestors().filter_map(read).filter(|_| counts).min()
    });
    limits.min().filter(|&n| n < NO_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        group_limit(&Machine::under(root.path()))
    }

    #[test]
    fn the_least_limit_of_all_control_groups_above_counts() {
        let v2 = ("proc/self/cgroup", "0::/pods/mine\n");
        let (above, own) = ("sys/fs/cgroup/pods/memory.max", "sys/fs/cgroup/pods/mine/memory.max");
        assert_eq!(limit(&[v2, (above, "2000\n"), (own, "3000\n")]), Some(2000));
        assert_eq!(limit(&[v2, (above, "max\n"), (own, "3000\n")]), Some(3000));
        assert_eq!(limit(&[v2, (own, "max\n")]), None);
        // Seen from inside a container, its own group is the root.
        assert_eq!(limit(&[v2, ("sys/fs/cgroup/memory.max", "4000\n")]), Some(4000));
    }

    #[test]
    fn version_1_names_a_huge_number_where_there_is_no_limit() {
        let v1 = ("proc/self/cgroup", "5:devices:/\n4:cpu,memory:/job\n0::/\n");
        let own = "sys/fs/cgroup/memory/job/memory.limit_in_bytes";
        assert_eq!(limit(&[v1, (own, "5000\n")]), Some(5000));
        assert_eq!(limit(&[v1, (own, "9223372036854771712\n")]), None);
        assert_eq!(limit(&[]), None);
    }
}
