//! The world as launchers describe it in environment variables.

use crate::{Error, Limits, Rank, Topology, World};

/// The variables of one launcher.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
    /// Where the number of ranks of a node is not given, the number of nodes.
    nodes: Option<&'static str>,
    /// Whether the size alone may stand in an environment that launched nothing (`salloc` sets it in its shell).
    size_alone: bool,
}

/// In the order in which they are asked.
const LAUNCHERS: [Launcher; 3] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
        nodes: None,
        size_alone: false,
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        nodes: None,
        size_alone: false,
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_NTASKS_PER_NODE",
        nodes: Some("SLURM_NNODES"),
        size_alone: true,
    },
];

/// A number, and the variables that it comes from.
#[derive(Clone)]
struct Value {
    from: String,
    n: u64,
}

/// What one launcher says.
struct Launched {
    name: &'static str,
    rank: Value,
    size: Value,
    local_rank: Option<Value>,
    local_size: Value,
}

impl World {
    /// The world of a process that torchrun, Open MPI or Slurm has started, from its environment variables.
    ///
    /// # Errors
    /// As [`World::from_vars`].
    pub fn from_env() -> Result<World, Error> {
        World::from_vars(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// As [`World::from_env`], with `get` in place of the environment. Ranks of a launched world have one NIC each
    /// as soon as there is more than one node.
    ///
    /// ```
    /// use mk_core::{Rank, World};
    /// let vars = [("RANK", "9"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "8")];
    /// let world = World::from_vars(|n| vars.iter().find(|v| v.0 == n).map(|v| v.1.to_string()))?;
    /// assert_eq!((world.rank, world.topology.nodes().len()), (Some(Rank(9)), 2));
    /// # Ok::<(), mk_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// No launcher, a variable that is missing or not a number, ranks that are not numbered node by node, or two
    /// launchers that disagree. The error names the variables and their values.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Result<World, Error> {
        let mut found: Vec<Launched> = Vec::new();
        for launcher in &LAUNCHERS {
            found.extend(launcher.read(&get)?);
        }
        let Some((first, others)) = found.split_first() else {
            return Err(Error::input(
                "no launcher has started this process",
                "none of RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID",
                "the variables of torchrun, Open MPI or Slurm",
                "start it with a launcher, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; where one \
                 process holds all ranks, use World::local",
            ));
        };
        others.iter().try_for_each(|o| first.agrees(o))?;
        first.world()
    }
}

impl Launcher {
    fn read(&self, get: &impl Fn(&str) -> Option<String>) -> Result<Option<Launched>, Error> {
        let (rank, size) = match (number(get, self.rank)?, number(get, self.size)?) {
            (Some(rank), Some(size)) => (rank, size),
            (None, None) => return Ok(None),
            (None, Some(_)) if self.size_alone => return Ok(None),
            (Some(v), None) => return Err(missing(self.name, &v, self.size)),
            (None, Some(v)) => return Err(missing(self.name, &v, self.rank)),
        };
        let local_size = self.local_size(get, &size)?;
        let local_rank = number(get, self.local_rank)?;
        Ok(Some(Launched { name: self.name, rank, size, local_rank, local_size }))
    }

    fn local_size(&self, get: &impl Fn(&str) -> Option<String>, size: &Value) -> Result<Value, Error> {
        let given = number(get, self.local_size)?;
        let nodes = self.nodes.map_or(Ok(None), |n| number(get, n))?;
        let of_nodes = match nodes {
            None => None,
            Some(nodes) => match size.n.checked_div(nodes.n).filter(|n| n * nodes.n == size.n) {
                Some(n) => Some(Value { from: format!("{} / {}", size.from, nodes.from), n }),
                None => return Err(clash("the ranks do not divide evenly over the nodes", size, &nodes)),
            },
        };
        match (given, of_nodes) {
            (Some(a), Some(b)) if a.n != b.n => Err(clash("ranks of a node are counted differently", &a, &b)),
            (Some(v), _) | (None, Some(v)) => Ok(v),
            (None, None) if size.n == 1 => Ok(size.clone()),
            (None, None) => Err(missing(self.name, size, self.local_size)),
        }
    }
}

impl Launched {
    /// Two launchers may both be there (`mpirun` inside a Slurm job), as long as they describe the same world.
    fn agrees(&self, other: &Launched) -> Result<(), Error> {
        let pairs =
            [(&self.rank, &other.rank), (&self.size, &other.size), (&self.local_size, &other.local_size)];
        match pairs.into_iter().find(|(a, b)| a.n != b.n) {
            Some((a, b)) => Err(clash(&format!("{} and {} disagree", self.name, other.name), a, b)),
            None => Ok(()),
        }
    }

    fn world(&self) -> Result<World, Error> {
        let Launched { rank, size, local_rank, local_size, .. } = self;
        if size.n == 0 || size.n > Limits::RANKS {
            let given = format!("{}={}", size.from, size.n);
            let allowed = format!("1 to {} ranks", Limits::RANKS);
            return Err(Error::input(
                "no world of this size",
                given,
                allowed,
                "launch another number of ranks",
            ));
        }
        if rank.n >= size.n {
            return Err(clash("the rank is outside the world", rank, size));
        }
        if !size.n.is_multiple_of(local_size.n) {
            return Err(clash("the ranks do not divide evenly over the nodes", size, local_size));
        }
        if let Some(local) = local_rank {
            if local.n >= local_size.n {
                return Err(clash("the local rank is outside its node", local, local_size));
            }
            if local.n != rank.n % local_size.n {
                return Err(clash("ranks are not numbered node by node", rank, local));
            }
        }
        let nodes = size.n / local_size.n;
        let nics = if nodes > 1 { local_size.n as u32 } else { 0 };
        let topology = Topology::uniform(nodes, size.n, nics)?;
        Ok(World { topology, rank: Some(Rank(rank.n as u16)) })
    }
}

fn number(get: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<Value>, Error> {
    let Some(text) = get(name) else { return Ok(None) };
    match text.parse() {
        Ok(n) => Ok(Some(Value { from: name.into(), n })),
        Err(_) => Err(Error::input(
            format!("{name} is not a number"),
            format!("{name}={:?}", text.chars().take(60).collect::<String>()),
            "a whole number from 0 on",
            "correct or unset the variable",
        )),
    }
}

fn missing(launcher: &str, have: &Value, name: &str) -> Error {
    Error::input(
        format!("{} is set but {name} is not", have.from),
        format!("{}={}", have.from, have.n),
        format!("all variables of {launcher}, or none"),
        format!("set {name}, or unset {}", have.from),
    )
}

fn clash(message: &str, a: &Value, b: &Value) -> Error {
    Error::input(
        message,
        format!("{}={}, {}={}", a.from, a.n, b.from, b.n),
        "numbers that describe one world, its ranks numbered node by node",
        format!("unset the variables of the launcher that did not start the ranks, or correct {}", a.from),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(vars: &[(&str, &str)]) -> Result<World, Error> {
        World::from_vars(|name| vars.iter().find(|v| v.0 == name).map(|v| v.1.to_string()))
    }

    const TORCH: [(&str, &str); 4] =
        [("RANK", "9"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "8")];
    const MPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "9"),
        ("OMPI_COMM_WORLD_SIZE", "16"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "8"),
    ];
    const SLURM: [(&str, &str); 4] =
        [("SLURM_PROCID", "9"), ("SLURM_NTASKS", "16"), ("SLURM_LOCALID", "1"), ("SLURM_NNODES", "2")];

    #[test]
    fn each_launcher_and_all_together_describe_the_same_world() {
        let expected = World { topology: Topology::uniform(2, 16, 8).unwrap(), rank: Some(Rank(9)) };
        for vars in [&TORCH[..], &MPI, &SLURM, &[&TORCH[..], &MPI, &SLURM].concat()] {
            assert_eq!(world(vars).unwrap(), expected);
        }
        let per_node = [&SLURM[..3], &[("SLURM_NTASKS_PER_NODE", "8")]].concat();
        assert_eq!(world(&per_node).unwrap(), expected);
    }

    #[test]
    fn one_node_has_no_nics_and_one_rank_needs_no_local_size() {
        let vars = [("RANK", "2"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3")];
        assert_eq!(world(&vars).unwrap().topology, Topology::single_node(3).unwrap());
        assert_eq!(world(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().size(), 1);
    }

    #[test]
    fn a_contradiction_names_the_variables_and_their_values() {
        let with = |base: &[(&'static str, &'static str)], name, value| {
            let mut vars: Vec<_> = base.iter().copied().filter(|v| v.0 != name).collect();
            vars.push((name, value));
            vars
        };
        let both = [&TORCH[..], &MPI].concat();
        type Vars = Vec<(&'static str, &'static str)>;
        let cases: Vec<(Vars, [&str; 2])> = vec![
            (with(&both, "OMPI_COMM_WORLD_RANK", "8"), ["OMPI_COMM_WORLD_RANK", "RANK"]),
            (
                with(&[&TORCH[..], &SLURM].concat(), "SLURM_NTASKS", "32"),
                ["WORLD_SIZE=16", "SLURM_NTASKS=32"],
            ),
            (
                with(&both, "OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
                ["LOCAL_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_SIZE=4"],
            ),
            (with(&TORCH, "RANK", "16"), ["RANK=16", "WORLD_SIZE=16"]),
            (with(&TORCH, "LOCAL_WORLD_SIZE", "5"), ["WORLD_SIZE=16", "LOCAL_WORLD_SIZE=5"]),
            (with(&TORCH, "LOCAL_WORLD_SIZE", "0"), ["WORLD_SIZE=16", "LOCAL_WORLD_SIZE=0"]),
            (with(&TORCH, "LOCAL_RANK", "8"), ["LOCAL_RANK=8", "LOCAL_WORLD_SIZE=8"]),
            (with(&TORCH, "LOCAL_RANK", "2"), ["RANK=9", "LOCAL_RANK=2"]),
            (with(&TORCH, "RANK", "nine"), ["RANK", "nine"]),
            (with(&TORCH, "RANK", "-1"), ["RANK", "-1"]),
            (with(&TORCH, "WORLD_SIZE", ""), ["WORLD_SIZE", "number"]),
            (with(&TORCH, "WORLD_SIZE", "0"), ["WORLD_SIZE=0", "65536"]),
            (with(&TORCH, "WORLD_SIZE", "8589934592"), ["WORLD_SIZE=8589934592", "65536"]),
            (
                with(&with(&SLURM, "SLURM_NTASKS", "0"), "SLURM_NNODES", "0"),
                ["SLURM_NTASKS=0", "SLURM_NNODES=0"],
            ),
            (with(&SLURM, "SLURM_NNODES", "3"), ["SLURM_NTASKS=16", "SLURM_NNODES=3"]),
            (with(&SLURM, "SLURM_NTASKS_PER_NODE", "4"), ["SLURM_NTASKS_PER_NODE=4", "SLURM_NNODES"]),
            (TORCH[..1].to_vec(), ["RANK=9", "WORLD_SIZE"]),
            (TORCH[1..2].to_vec(), ["WORLD_SIZE=16", "RANK"]),
            (TORCH[..2].to_vec(), ["WORLD_SIZE=16", "LOCAL_WORLD_SIZE"]),
            (vec![], ["WORLD_SIZE", "World::local"]),
            (SLURM[1..].to_vec(), ["SLURM_PROCID", "World::local"]),
        ];
        for (vars, words) in cases {
            let e = world(&vars).expect_err(&format!("{vars:?}")).explain();
            let said = format!("{e:?}");
            assert!(words.iter().all(|w| said.contains(w)), "{vars:?}: {said} does not say {words:?}");
        }
    }
}
