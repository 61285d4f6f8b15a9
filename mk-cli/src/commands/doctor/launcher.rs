//! Who started this process, and which rank it is.

use super::check::{Check, Group};
use super::machine::Machine;
use crate::console::count;
use mk_core::World;

/// Launchers, and how their variables begin; torchrun's have no common beginning.
const LAUNCHERS: [(&str, &str); 2] = [("Open MPI", "OMPI_"), ("Slurm", "SLURM_")];

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let get = |name: &str| machine.var(name);
    vec![check(&get)]
}

fn check(get: &dyn Fn(&str) -> Option<String>) -> Check {
    let check = Check::new(Group::Launcher, "ranks", "the variables of torchrun, Open MPI or Slurm, or none");
    let error = match World::from_vars(get) {
        Ok(world) => return check.ok(format!("{}: {}", launchers(get).join(" and "), describe(&world))),
        Err(e) => e.explain(),
    };
    let nobody = World::from_vars(|_| None).err().map(|e| e.explain());
    if Some(&error) == nobody.as_ref() {
        return check.ok("no launcher: one process holds all ranks");
    }
    let check = Check { needed: error.allowed, ..check };
    check.warning(format!("{}: {}", error.message, error.given), error.hint)
}

/// The launchers whose variables describe a world.
fn launchers(get: &dyn Fn(&str) -> Option<String>) -> Vec<&'static str> {
    let begins = |name: &str| LAUNCHERS.iter().find(|l| name.starts_with(l.1)).map_or("torchrun", |l| l.0);
    let alone =
        |launcher: &str| World::from_vars(|name| get(name).filter(|_| begins(name) == launcher)).is_ok();
    ["torchrun", "Open MPI", "Slurm"].into_iter().filter(|l| alone(l)).collect()
}

fn describe(world: &World) -> String {
    let rank = world.rank.map_or("all ranks".into(), |r| format!("rank {}", r.0));
    format!("{rank} of {}, on {}", world.size(), count(world.topology.nodes().len() as u64, "node"))
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    const TORCH: [(&str, &str); 4] =
        [("RANK", "9"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "8")];
    const SLURM: [(&str, &str); 4] =
        [("SLURM_PROCID", "9"), ("SLURM_NTASKS", "16"), ("SLURM_LOCALID", "1"), ("SLURM_NNODES", "2")];

    fn with(vars: &[(&str, &str)]) -> Check {
        check(&|name| vars.iter().find(|v| v.0 == name).map(|v| v.1.into()))
    }

    #[test]
    fn the_launcher_and_the_rank_are_told() {
        assert_eq!(with(&TORCH).found, "torchrun: rank 9 of 16, on 2 nodes");
        assert_eq!(with(&SLURM).found, "Slurm: rank 9 of 16, on 2 nodes");
        assert_eq!(with(&[TORCH, SLURM].concat()).found, "torchrun and Slurm: rank 9 of 16, on 2 nodes");
    }

    #[test]
    fn no_launcher_is_fine_and_so_is_the_shell_of_salloc() {
        for vars in [&[][..], &[("SLURM_NTASKS", "16"), ("SLURM_NNODES", "2")]] {
            let check = with(vars);
            assert_eq!(check.status, Status::Ok);
            assert!(check.found.starts_with("no launcher"), "{check:?}");
        }
    }

    #[test]
    fn half_a_launcher_is_a_warning_that_names_the_variable() {
        let check = with(&TORCH[..2]);
        assert_eq!(check.status, Status::Warning);
        assert!(check.hint.contains("LOCAL_WORLD_SIZE"), "{check:?}");
    }
}
