//! What a GPU needs: device files, the driver, GPUs that kernels run on, NVRTC; and MPS, where processes share a GPU.

use super::check::{Check, Group};
use super::library::{Gpus, Library, Outcome};
use super::links;
use super::machine::Machine;
use super::probe;
use super::search::{self, Found};
use crate::console::count;
use mk_kernel::driver::{CudaVersion, Driver};
use mk_kernel::{Compiler, NVRTC_VARIABLE};
use std::path::Path;

const NEEDS_DRIVER: &str =
    "install NVIDIA's driver; in a container, start it with the GPUs (docker run --gpus all)";

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let (driver, [gpus, links]) = driver(search::find(Library::Cuda, machine));
    let nvrtc = nvrtc(probe::load(Library::Nvrtc, Path::new("libnvrtc")), machine.var(NVRTC_VARIABLE));
    vec![devices(machine), module(machine), driver, gpus, links, nvrtc, mps(machine)]
}

fn devices(machine: &Machine) -> Check {
    let check = Check::new(Group::Gpu, "/dev/nvidia*", "nvidia0 and on, nvidiactl, nvidia-uvm");
    let names = machine.names("/dev");
    let gpus = names.iter().filter(|n| {
        n.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    });
    let gpus = gpus.count();
    let lacking: Vec<&str> =
        ["nvidiactl", "nvidia-uvm"].into_iter().filter(|n| !names.iter().any(|have| have == n)).collect();
    match (gpus, lacking.as_slice()) {
        (0, _) => check.missing("no GPU", NEEDS_DRIVER),
        (n, []) => check.ok(count(n as u64, "GPU")),
        (n, lacking) => check.missing(
            format!("{}, but no {}", count(n as u64, "GPU"), lacking.join(", no ")),
            "run nvidia-modprobe -u -c 0; in a container, pass these devices in",
        ),
    }
}

fn module(machine: &Machine) -> Check {
    let check =
        Check::new(Group::Gpu, "kernel module", "the module nvidia, of the same release as libcuda.so.1");
    match release(machine) {
        Some(release) => check.ok(release),
        None => {
            check.missing("not loaded", "install NVIDIA's driver on the host, or load it: modprobe nvidia")
        }
    }
}

/// The release of the module that is loaded.
pub(super) fn release(machine: &Machine) -> Option<String> {
    // NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:02:37 UTC 2025
    let text = machine.text("/proc/driver/nvidia/version")?;
    let line = text.lines().next().unwrap_or_default();
    let number = |w: &&str| w.starts_with(|c: char| c.is_ascii_digit()) && w.contains('.');
    Some(line.split_whitespace().find(number).unwrap_or(line).into())
}

/// The check of the driver, and those of its GPUs.
fn driver(found: Found) -> (Check, [Check; 2]) {
    let CudaVersion { major, minor } = Driver::NEEDED;
    let needed = [major, minor, 0];
    let check =
        Check::new(Group::Gpu, "libcuda.so.1", format!("a driver for CUDA {} or newer", short(needed)));
    match found.outcome {
        Outcome::Loaded { file, version: Some(version), .. } if version < needed => {
            let found = format!("CUDA {}: too old{}", short(version), in_file(file.as_deref()));
            (check.missing(found, "install a newer driver of NVIDIA's"), of_gpus(None))
        }
        Outcome::Loaded { file, version, gpus: list } => {
            let text = format!("CUDA {}{}", short(version.unwrap_or_default()), in_file(file.as_deref()));
            (told(check, text, found.folder.as_deref()), of_gpus(list))
        }
        Outcome::Absent => (check.missing("not found", NEEDS_DRIVER), of_gpus(None)),
        Outcome::Broken(why) => {
            let found = format!("there, but not usable: {why}");
            let hint = "the driver's library must be of the same release as its kernel module; the stub in a toolkit's \
                        lib64/stubs is for linking only: take it out of LD_LIBRARY_PATH";
            (check.missing(found, hint), of_gpus(None))
        }
    }
}

/// What they are, and what connects them.
fn of_gpus(found: Option<Gpus>) -> [Check; 2] {
    let links = links::check(found.as_ref());
    [gpus(found), links]
}

/// The GPUs of a driver, if it could be asked.
fn gpus(gpus: Option<Gpus>) -> Check {
    let check = Check::new(Group::Gpu, "GPUs", "GPUs that kernels are made for: compute capability 9.0");
    let Some(Gpus { list, wrong, .. }) = gpus else {
        return check.missing("unknown: no driver tells", "see to libcuda.so.1 first");
    };
    match wrong {
        Some((found, hint)) => check.missing(found, hint),
        None => match list.as_slice() {
            [first, ..] if list.iter().all(|gpu| gpu == first) => {
                check.ok(format!("{} x {first}", list.len()))
            }
            _ => check.ok(list.join("; ")),
        },
    }
}

/// `named` is what the variable for NVRTC says.
fn nvrtc(outcome: Outcome, named: Option<String>) -> Check {
    let needed = Compiler::MAJOR;
    let check = Check::new(Group::Gpu, "libnvrtc", format!("NVRTC {needed}"));
    let install = format!(
        "install NVRTC {needed} (pip install nvidia-cuda-nvrtc, or the CUDA toolkit), or name its file or folder in \
         {NVRTC_VARIABLE}"
    );
    match outcome {
        Outcome::Loaded { file, version, .. } => {
            let version = version.unwrap_or_default();
            let text = format!("NVRTC {}{}", short(version), in_file(file.as_deref()));
            if version[0] < needed {
                check.missing(format!("{text}: too old"), install)
            } else {
                check.ok(text)
            }
        }
        Outcome::Absent => match named.filter(|v| !v.is_empty()) {
            Some(place) => check.missing(format!("not found in {NVRTC_VARIABLE}={place}"), install),
            None => check.missing("not found", install),
        },
        Outcome::Broken(why) => check.missing(format!("there, but not usable: {why}"), install),
    }
}

fn mps(machine: &Machine) -> Check {
    let check = Check::new(Group::Gpu, "MPS daemon", "only where several processes share a GPU");
    let var = machine.var("CUDA_MPS_PIPE_DIRECTORY");
    let folder = var.clone().unwrap_or_else(|| "/tmp/nvidia-mps".into());
    let folder = Path::new(&folder);
    let pid = machine.text(folder.join("nvidia-cuda-mps-control.pid"));
    let runs = pid.as_ref().is_none_or(|pid| machine.has(Path::new("/proc").join(pid)));
    let start = "start it: nvidia-cuda-mps-control -d";
    match (machine.has(folder.join("control")), var) {
        (true, _) if runs => check.ok(format!("its pipe is in {}", folder.display())),
        (true, _) => {
            let found = format!(
                "its pipe is in {}, but process {} is gone",
                folder.display(),
                pid.unwrap_or_default()
            );
            check.warning(found, format!("remove the folder, or {start}"))
        }
        (false, Some(_)) => {
            let found = format!("CUDA_MPS_PIPE_DIRECTORY={}, but no pipe is there", folder.display());
            check.warning(found, format!("unset the variable, or {start}"))
        }
        (false, None) => check.ok("not running"),
    }
}

/// A library that loads; a warning if the loader has to be told where it is.
pub(super) fn told(check: Check, found: String, folder: Option<&Path>) -> Check {
    match folder {
        None => check.ok(found),
        Some(folder) => {
            let folder = folder.display();
            check.warning(
                format!("{found}, where the loader does not look"),
                format!("tell it: export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH"),
            )
        }
    }
}

/// ` in FILE`.
pub(super) fn in_file(file: Option<&str>) -> String {
    file.map_or(String::new(), |file| format!(" in {file}"))
}

fn short(version: [u32; 3]) -> String {
    format!("{}.{}", version[0], version[1])
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    fn loaded(version: [u32; 3], gpus: Option<Gpus>) -> Outcome {
        Outcome::Loaded { file: None, version: Some(version), gpus }
    }

    fn h200s(n: usize, wrong: Option<(String, String)>) -> Option<Gpus> {
        Some(Gpus { list: vec!["NVIDIA H200, 9.0".into(); n], wrong, links: Ok(Vec::new()) })
    }

    #[test]
    fn a_driver_has_to_be_as_new_as_nvrtc() {
        for (version, status) in
            [([11, 8, 0], Status::Missing), ([12, 9, 0], Status::Missing), ([13, 1, 0], Status::Ok)]
        {
            let found = Found { outcome: loaded(version, h200s(1, None)), folder: None };
            let (driver, [gpus, _]) = driver(found);
            assert_eq!((driver.status, gpus.status), (status, status), "{version:?}");
        }
    }

    #[test]
    fn gpus_are_counted_and_what_keeps_kernels_from_one_is_told() {
        assert_eq!(gpus(h200s(8, None)).found, "8 x NVIDIA H200, 9.0");
        let mixed = Gpus { list: vec!["A".into(), "B".into()], wrong: None, links: Ok(Vec::new()) };
        assert_eq!(gpus(Some(mixed)).found, "A; B");
        let check = gpus(h200s(1, Some(("too small".into(), "take another".into()))));
        assert_eq!((check.status, check.found.as_str()), (Status::Missing, "too small"));
    }

    #[test]
    fn nvrtc_has_to_be_new_enough() {
        let status = |version| nvrtc(loaded(version, None), None).status;
        assert_eq!(status([12, 9, 0]), Status::Missing);
        assert_eq!((status([13, 0, 0]), status([13, 2, 0])), (Status::Ok, Status::Ok));
        let named = nvrtc(Outcome::Absent, Some("/opt/x".into()));
        assert_eq!(named.found, "not found in MK_NVRTC=/opt/x");
    }

    #[test]
    fn what_lies_outside_the_loaders_folders_comes_with_the_command_that_tells_it() {
        let found = Found { outcome: loaded([13, 0, 0], h200s(1, None)), folder: Some("/opt/cuda".into()) };
        let (check, _) = driver(found);
        assert_eq!(check.status, Status::Warning);
        assert!(check.hint.contains("LD_LIBRARY_PATH=/opt/cuda:"), "{check:?}");
    }

    #[test]
    fn devices_are_counted_and_the_one_that_is_missing_is_named() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::under(root.path());
        assert_eq!(devices(&machine).found, "no GPU");
        std::fs::create_dir(root.path().join("dev")).unwrap();
        let add = |name: &str| std::fs::write(root.path().join("dev").join(name), "").unwrap();
        ["nvidia0", "nvidia11", "nvidiactl", "nvidia-caps", "null"].iter().for_each(|n| add(n));
        let check = devices(&machine);
        assert_eq!((check.status, check.found.as_str()), (Status::Missing, "2 GPUs, but no nvidia-uvm"));
        add("nvidia-uvm");
        assert_eq!(devices(&machine).found, "2 GPUs");
    }

    #[test]
    fn the_kernel_modules_release_is_told() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (a@b)\nGCC version:  12";
        std::fs::write(root.path().join("proc/driver/nvidia/version"), text).unwrap();
        assert_eq!(module(&Machine::under(root.path())).found, "580.65.06");
    }

    #[test]
    fn an_mps_pipe_without_its_process_is_a_warning() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::under(root.path());
        assert_eq!(mps(&machine).found, "not running");
        let folder = root.path().join("tmp/nvidia-mps");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("control"), "").unwrap();
        std::fs::write(folder.join("nvidia-cuda-mps-control.pid"), "77\n").unwrap();
        assert_eq!(mps(&machine).status, Status::Warning);
        std::fs::create_dir_all(root.path().join("proc/77")).unwrap();
        assert_eq!(mps(&machine).status, Status::Ok);
    }
}
