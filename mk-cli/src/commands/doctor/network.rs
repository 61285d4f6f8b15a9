//! What RDMA needs: a library, devices, ports that are up, memory that may be locked.

use super::check::{Check, Group, Status};
use super::gpu::{in_file, told};
use super::library::{Library, Outcome};
use super::machine::Machine;
use super::search;
use crate::memory::human;

/// What a NIC reads and writes has to be locked. Without GPUDirect that is a rank's heap, staged in host memory: for
/// AllGather+GEMM all of A, which is 1 GiB where A is 65536 x 8192 in bf16. Queue pairs and rings come to a few MiB.
const LOCKED_BYTES: u64 = 1 << 30;
/// UCX and NCCL keep the buffers through which processes of a node talk in `/dev/shm`. Docker gives a container 64 MiB; 1 GiB
/// is what NCCL's documentation asks for (Troubleshooting, "Docker").
const SHM_BYTES: u64 = 1 << 30;
/// `CAP_IPC_LOCK`: a process that has it may lock what it likes.
const IPC_LOCK: u32 = 14;

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let [verbs, ucp] = either(verbs(machine), ucp(machine));
    let nccl = nccl(machine);
    vec![verbs, ucp, devices(machine), ports(machine), locked(machine), shm(machine), peermem(machine), nccl]
}

/// One of the two libraries is enough.
fn either(verbs: Check, ucp: Check) -> [Check; 2] {
    let enough = verbs.status != Status::Missing || ucp.status != Status::Missing;
    [verbs, ucp].map(|c| {
        if enough && c.status == Status::Missing { Check { status: Status::Warning, ..c } } else { c }
    })
}

fn verbs(machine: &Machine) -> Check {
    let check = Check::new(Group::Network, "libibverbs.so.1", "this or libucp.so.0");
    library(
        check,
        Library::Verbs,
        machine,
        "install it: apt install libibverbs1 ibverbs-providers, or dnf install libibverbs",
    )
}

fn ucp(machine: &Machine) -> Check {
    let check = Check::new(Group::Network, "libucp.so.0", "this or libibverbs.so.1");
    library(check, Library::Ucp, machine, "install it: apt install libucx0, or dnf install ucx")
}

fn nccl(machine: &Machine) -> Check {
    let check = Check::new(Group::Network, "libnccl.so.2", "only for benchmarks that compare with NCCL");
    let check = library(check, Library::Nccl, machine, "to compare with it: pip install nvidia-nccl-cu13");
    if check.status == Status::Missing { Check { status: Status::Warning, ..check } } else { check }
}

fn library(check: Check, library: Library, machine: &Machine, install: &str) -> Check {
    let found = search::find(library, machine);
    match found.outcome {
        Outcome::Loaded { file, version, .. } => {
            let version = version.map_or("there".into(), |[a, b, c]| format!("{a}.{b}.{c}"));
            told(check, format!("{version}{}", in_file(file.as_deref())), found.folder.as_deref())
        }
        Outcome::Absent => check.missing("not found", install),
        Outcome::Broken(why) => check
            .missing(format!("there, but not usable: {why}"), "install it again, with what it depends on"),
    }
}

fn devices(machine: &Machine) -> Check {
    let check = Check::new(Group::Network, "/dev/infiniband", "a device uverbsN for each NIC");
    let names = machine.names("/dev/infiniband");
    let verbs: Vec<_> = names.iter().filter(|n| n.starts_with("uverbs")).map(String::as_str).collect();
    if verbs.is_empty() {
        let hint = "load the NIC's driver (modprobe mlx5_ib ib_uverbs); in a container, pass the devices in (docker run --device /dev/infiniband)";
        return check.missing("no NIC for RDMA", hint);
    }
    check.ok(verbs.join(", "))
}

fn ports(machine: &Machine) -> Check {
    let check = Check::new(Group::Network, "RDMA ports", "a port that is ACTIVE");
    let class = "/sys/class/infiniband";
    let (mut active, mut down) = (Vec::new(), Vec::new());
    for nic in machine.names(class) {
        for port in machine.names(format!("{class}/{nic}/ports")) {
            let read =
                |what: &str| machine.text(format!("{class}/{nic}/ports/{port}/{what}")).unwrap_or_default();
            // 4: ACTIVE
            let state = read("state");
            let state = state.split_once(": ").map_or(state.as_str(), |(_, word)| word);
            let text = format!("{nic}/{port} {state}, {}, {}", read("link_layer"), read("rate"));
            if state == "ACTIVE" { active.push(text) } else { down.push(text) }
        }
    }
    match (active.is_empty(), down.is_empty()) {
        (false, _) => check.ok(active.join("; ")),
        (true, true) => check.missing("none", "install a NIC for RDMA and its driver"),
        (true, false) => {
            check.missing(down.join("; "), "check cable, switch and, for InfiniBand, the subnet manager")
        }
    }
}

/// The limit of memory that may be locked. Registering more than that fails late, and the message seldom says why.
fn locked(machine: &Machine) -> Check {
    let needed = format!("unlimited, or at least {}", human(LOCKED_BYTES.into()));
    let check = Check::new(Group::Network, "locked memory", needed);
    let Some([soft, hard]) = machine.text("/proc/self/limits").as_deref().and_then(locked_limits) else {
        return check.warning("the system does not say", "look at ulimit -l");
    };
    let found = format!("limit {}, which may be raised to {}", limit(soft), limit(hard));
    if soft.is_none_or(|soft| soft >= LOCKED_BYTES) {
        return check.ok(found);
    }
    let hint = "ulimit -l unlimited, where ranks are started; for good: memlock in /etc/security/limits.conf, \
                LimitMEMLOCK=infinity for a systemd service (slurmd), docker run --ulimit memlock=-1";
    if exempt(machine) {
        // Ranks may be started without the capability that this process has.
        return check.warning(format!("{found}; this process is exempt (CAP_IPC_LOCK)"), hint);
    }
    check.missing(found, hint)
}

/// Soft and hard limit in bytes; `None` is unlimited.
fn locked_limits(text: &str) -> Option<[Option<u64>; 2]> {
    let mut words = text.lines().find_map(|l| l.strip_prefix("Max locked memory"))?.split_whitespace();
    let mut next = || match words.next()? {
        "unlimited" => Some(None),
        n => n.parse().ok().map(Some),
    };
    Some([next()?, next()?])
}

fn limit(bytes: Option<u64>) -> String {
    bytes.map_or("unlimited".into(), |b| human(b.into()))
}

fn exempt(machine: &Machine) -> bool {
    let status = machine.text("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|l| l.strip_prefix("CapEff:")).map(str::trim);
    bits.and_then(|b| u64::from_str_radix(b, 16).ok()).is_some_and(|b| b >> IPC_LOCK & 1 == 1)
}

fn shm(machine: &Machine) -> Check {
    let needed = format!("{} for processes of a node that talk through UCX or NCCL", human(SHM_BYTES.into()));
    let check = Check::new(Group::Network, "/dev/shm", needed);
    let mounts = machine.text("/proc/mounts").unwrap_or_default();
    let mut options = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        (words.next()? == "/dev/shm").then(|| words.nth(1).unwrap_or_default())
    });
    let hint = "mount -o remount,size=1g /dev/shm; in a container: docker run --shm-size=1g, or --ipc=host";
    match options.next_back().map(|o| o.split(',').find_map(|o| o.strip_prefix("size=")).map(bytes)) {
        None => check.warning("not mounted", "mount -t tmpfs shm /dev/shm"),
        Some(None) => check.ok("half of the memory"),
        Some(Some(None)) => check.warning("of unknown size", hint),
        Some(Some(Some(n))) if n < SHM_BYTES => check.warning(human(n.into()), hint),
        Some(Some(Some(n))) => check.ok(human(n.into())),
    }
}

/// A size as mount options give it: `65536k`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn peermem(machine: &Machine) -> Check {
    let check = Check::new(
        Group::Network,
        "nvidia_peermem",
        "for GPUDirect RDMA, where NIC and kernel do not share memory by dma-buf",
    );
    if machine.has("/sys/module/nvidia_peermem") {
        return check.ok("loaded");
    }
    check.warning(
        "not loaded",
        "modprobe nvidia_peermem, if GPU and NIC are there; without either, data goes through host memory",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn locked_with(limits: &str, capabilities: &str) -> Check {
        let root = tempfile::tempdir().unwrap();
        let header = "Limit                     Soft Limit           Hard Limit           Units     \n";
        put(
            root.path(),
            "proc/self/limits",
            &format!("{header}Max locked memory         {limits} bytes     \n"),
        );
        put(root.path(), "proc/self/status", &format!("Name:\tmk\nCapEff:\t{capabilities}\n"));
        locked(&Machine::under(root.path()))
    }

    #[test]
    fn too_little_lockable_memory_is_missing_unless_the_process_is_exempt() {
        let (nobody, lock) = ("0000000000000000", "0000000000004000");
        let too_small = locked_with("65536 8388608", nobody);
        assert_eq!(too_small.status, Status::Missing);
        assert_eq!(too_small.found, "limit 64.0 KiB, which may be raised to 8.0 MiB");
        assert_eq!(too_small.needed, "unlimited, or at least 1.0 GiB");
        assert_eq!(locked_with("65536 unlimited", lock).status, Status::Warning);
        // Every capability but the one that counts.
        assert_eq!(locked_with("65536 unlimited", "000001ffffffbfff").status, Status::Missing);
        assert_eq!(locked_with("unlimited unlimited", nobody).status, Status::Ok);
        assert_eq!(locked_with("1073741824 unlimited", nobody).status, Status::Ok);
        assert_eq!(locked_with("1073741823 unlimited", nobody).status, Status::Missing);
        assert_eq!(locked_with("many unlimited", nobody).status, Status::Warning);
    }

    #[test]
    fn shared_memory_is_as_large_as_the_last_mount_says() {
        let with = |mounts: &str| {
            let root = tempfile::tempdir().unwrap();
            put(root.path(), "proc/mounts", mounts);
            let check = shm(&Machine::under(root.path()));
            (check.status, check.found)
        };
        let docker = "shm /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0\n";
        assert_eq!(with(docker), (Status::Warning, "64.0 MiB".into()));
        let above = format!("{docker}tmpfs /dev/shm tmpfs rw,size=2g 0 0\n");
        assert_eq!(with(&above), (Status::Ok, "2.0 GiB".into()));
        assert_eq!(with("tmpfs /dev/shm tmpfs rw 0 0").0, Status::Ok);
        assert_eq!(with("tmpfs /dev tmpfs rw,size=1k 0 0"), (Status::Warning, "not mounted".into()));
        assert_eq!(with("tmpfs /dev/shm tmpfs rw,size=many 0 0").0, Status::Warning);
    }

    #[test]
    fn one_port_that_is_up_is_enough() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::under(root.path());
        assert_eq!(ports(&machine).found, "none");
        let port = |nic: &str, state: &str| {
            for (name, text) in
                [("state", state), ("link_layer", "InfiniBand\n"), ("rate", "400 Gb/sec (4X NDR)\n")]
            {
                put(root.path(), &format!("sys/class/infiniband/{nic}/ports/1/{name}"), text);
            }
        };
        port("mlx5_0", "1: DOWN\n");
        let down = ports(&machine);
        assert_eq!(
            (down.status, down.found.as_str()),
            (Status::Missing, "mlx5_0/1 DOWN, InfiniBand, 400 Gb/sec (4X NDR)")
        );
        port("mlx5_1", "4: ACTIVE\n");
        assert_eq!(ports(&machine).found, "mlx5_1/1 ACTIVE, InfiniBand, 400 Gb/sec (4X NDR)");
    }

    #[test]
    fn one_of_the_two_libraries_is_enough() {
        let check = || Check::new(Group::Network, "x", "y");
        let [a, b] = either(check().ok(""), check().missing("", ""));
        assert_eq!([a.status, b.status], [Status::Ok, Status::Warning]);
        let [a, b] = either(check().missing("", ""), check().missing("", ""));
        assert_eq!([a.status, b.status], [Status::Missing, Status::Missing]);
    }
}
