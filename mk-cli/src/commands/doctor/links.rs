//! What connects the GPUs of a machine.

use super::check::{Check, Group};
use super::library::Gpus;
use serde::{Deserialize, Serialize};

/// What the driver says of two GPUs, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) between: [usize; 2],
    /// Whether each can reach the other one's memory.
    pub(super) access: bool,
    /// Whether its atomics work there.
    pub(super) atomics: bool,
}

impl Link {
    /// The driver names no link. Of those that there are, only NVLink carries native atomics.
    fn text(&self) -> &'static str {
        match (self.access, self.atomics) {
            (true, true) => "NVLink (P2P access, native atomics)",
            (true, false) => "PCIe (P2P access, no native atomics)",
            (false, _) => "no P2P access",
        }
    }
}

/// The links between the GPUs of a driver, if it could be asked.
pub(super) fn check(gpus: Option<&Gpus>) -> Check {
    let needed = "for programs of several GPUs: P2P access and native atomics between them";
    let check = Check::new(Group::Gpu, "links between GPUs", needed);
    let Some(Gpus { list, links, .. }) = gpus.filter(|gpus| !gpus.list.is_empty()) else {
        return check.warning("unknown: no driver tells", "see to libcuda.so.1 and GPUs first");
    };
    let links = match links {
        Ok(links) => links,
        Err(why) => return check.warning(format!("unknown: {why}"), "look at nvidia-smi topo -m and dmesg"),
    };
    if list.len() == 1 {
        return check.ok("one GPU, so none");
    }
    let found = describe(links);
    if links.iter().all(|l| l.access && l.atomics) {
        return check.ok(found);
    }
    let hint = "such GPUs take part in one program by a network only; where there is NVLink (nvidia-smi topo -m), start \
                nvidia-fabricmanager, and see that the container or VM has all GPUs";
    check.warning(found, hint)
}

/// Pairs that are alike, together.
fn describe(links: &[Link]) -> String {
    let mut kinds: Vec<&str> = Vec::new();
    for link in links {
        if !kinds.contains(&link.text()) {
            kinds.push(link.text());
        }
    }
    if let [kind] = kinds[..] {
        return format!("each two: {kind}");
    }
    let of = |kind: &&str| {
        let pairs =
            links.iter().filter(|l| l.text() == *kind).map(|l| format!("{}-{}", l.between[0], l.between[1]));
        format!("{}: {kind}", pairs.collect::<Vec<_>>().join(", "))
    };
    kinds.iter().map(of).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    fn found(gpus: usize, links: Result<Vec<Link>, String>) -> (Status, String) {
        let gpus = Gpus { list: vec!["NVIDIA H200, 9.0".into(); gpus], wrong: None, links };
        let check = check(Some(&gpus));
        (check.status, check.found)
    }

    /// Three GPUs, of which the first two are closer.
    fn mixed(access: bool) -> Vec<Link> {
        let link = |between, near| Link { between, access: access || near, atomics: near };
        vec![link([0, 1], true), link([0, 2], false), link([1, 2], false)]
    }

    #[test]
    fn pairs_that_are_alike_are_told_together() {
        let near = mixed(true)[..1].to_vec();
        assert_eq!(found(2, Ok(near)), (Status::Ok, "each two: NVLink (P2P access, native atomics)".into()));
        let (status, text) = found(3, Ok(mixed(true)));
        assert_eq!(status, Status::Warning);
        assert_eq!(
            text,
            "0-1: NVLink (P2P access, native atomics); 0-2, 1-2: PCIe (P2P access, no native atomics)"
        );
        assert!(found(3, Ok(mixed(false))).1.ends_with("; 0-2, 1-2: no P2P access"));
    }

    #[test]
    fn one_gpu_has_no_links_and_a_driver_that_does_not_tell_is_a_warning() {
        assert_eq!(found(1, Ok(Vec::new())), (Status::Ok, "one GPU, so none".into()));
        assert_eq!(found(2, Err("it returned 1".into())), (Status::Warning, "unknown: it returned 1".into()));
        assert_eq!(found(0, Ok(Vec::new())).1, "unknown: no driver tells");
        assert_eq!(check(None).status, Status::Warning);
    }
}
