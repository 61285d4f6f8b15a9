//! All checks, by name: what the tests of [`suite!`](crate::suite) are made of.

use crate::case::Open;
use crate::check::{covered, handler, operator, operator_shapes};
use crate::config::Config;
use crate::network::Network::{self, Mapped, Ordered, Unordered};
use crate::session::*;
use What::{Handler, Operator, Session, Shapes};

/// One check of the suite: what a session is asked to do, many times over, and how it must answer.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Also the name of the test that [`suite!`](crate::suite) makes of it.
    pub name: &'static str,
    what: What,
}

/// What a check runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// Random programs of one handler, on one network.
    Handler(Network, &'static str),
    /// Random shapes of an operator.
    Operator(&'static str),
    /// Shapes of an operator that have gone wrong elsewhere.
    Shapes(&'static str),
    /// Something that belongs to the session itself.
    Session(fn(Config, Open<'_>) -> Result<(), String>),
}

macro_rules! checks {
    ($($name:ident = $what:expr,)*) => { &[$(Check { name: stringify!($name), what: $what }),*] };
}

const ALL: [&[Check]; 5] = [
    crate::listed!(Mapped [checks!]),
    crate::listed!(Ordered [checks!]),
    crate::listed!(Unordered [checks!]),
    crate::listed!(operators [checks!]),
    crate::listed!(session [checks!]),
];

impl Check {
    /// All checks that a suite of this configuration has, in the order in which they are listed.
    pub fn all(config: Config) -> impl Iterator<Item = &'static Check> {
        let asked = move |check: &&Check| match check.what {
            Handler(network, _) => config.networks.contains(&network),
            _ => true,
        };
        ALL.into_iter().flatten().filter(asked)
    }

    /// The check of this name.
    pub fn named(name: &str) -> Option<&'static Check> {
        ALL.into_iter().flatten().find(|c| c.name == name)
    }

    /// Whether sessions pass it that `open` opens.
    ///
    /// # Errors
    /// The first case that fails: what it is, with its seed, and why.
    pub fn run(&self, config: Config, open: Open<'_>) -> Result<(), String> {
        match self.what {
            Handler(network, name) => handler(config, network, name, open),
            Operator(name) => operator(config, name, open),
            Shapes(name) => operator_shapes(config, name, open),
            Session(check) => check(config, open),
        }
    }
}

/// Whether every handler that is registered on these networks has a check.
fn every_handler_is_tested(config: Config, _: Open<'_>) -> Result<(), String> {
    let handler = |check: &Check| match check.what {
        Handler(_, name) => Some(name),
        _ => None,
    };
    let tested: Vec<&str> = Check::all(config).filter_map(handler).collect();
    config.networks.iter().try_for_each(|network| {
        let registry = network.registry(2, 4, 1).map_err(|e| e.to_string())?;
        covered(&registry, &tested)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_check() {
        let all: Vec<&Check> = Check::all(Config::exact()).collect();
        for check in &all {
            assert_eq!(all.iter().filter(|c| c.name == check.name).count(), 1, "{}", check.name);
            assert!(Check::named(check.name).is_some());
        }
        assert!(Check::named("unknown").is_none());
    }

    #[test]
    fn networks_that_are_not_asked_have_no_checks() {
        let names = |config| Check::all(config).map(|c| c.name).collect::<Vec<_>>();
        let mapped = names(Config::exact().networks(&[Mapped]));
        assert!(mapped.contains(&"nvlink_put") && mapped.contains(&"all_gather_gemm"));
        assert!(!mapped.iter().any(|name| name.contains("rdma")));
        assert_eq!(names(Config::exact()).len(), mapped.len() + 12);
    }
}
