//! What a GPU needs: device files, the driver, NVRTC; and MPS, where processes share a GPU.

use super::check::{Check, Group};
use super::library::{Library, Outcome};
use super::machine::Machine;
use super::search::{self, Found};
use std::path::Path;

/// The first CUDA that knows Hopper's own instructions (`sm_90a`: wgmma, setmaxnreg), by which GEMM runs.
const CUDA: [u32; 3] = [12, 0, 0];

const NEEDS_DRIVER: &str =
    "install NVIDIA's driver; in a container, start it with the GPUs (docker run --gpus all)";

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let (driver, version) = driver(search::find(Library::Cuda, machine));
    let nvrtc = nvrtc(search::find(Library::Nvrtc, machine), version);
    vec![devices(machine), module(machine), driver, nvrtc, mps(machine)]
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
        (n, []) => check.ok(format!("{n} {}", if n == 1 { "GPU" } else { "GPUs" })),
        (n, lacking) => check.missing(
            format!("{n} GPUs, but no {}", lacking.join(", no ")),
            "run nvidia-modprobe -u -c 0; in a container, pass these devices in",
        ),
    }
}

fn module(machine: &Machine) -> Check {
    let check =
        Check::new(Group::Gpu, "kernel module", "the module nvidia, of the same release as libcuda.so.1");
    match machine.text("/proc/driver/nvidia/version") {
        // NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:02:37 UTC 2025
        Some(text) => {
            let line = text.lines().next().unwrap_or_default();
            let release = line
                .split_whitespace()
                .find(|w| w.starts_with(|c: char| c.is_ascii_digit()) && w.contains('.'));
            check.ok(release.unwrap_or(line))
        }
        None => {
            check.missing("not loaded", "install NVIDIA's driver on the host, or load it: modprobe nvidia")
        }
    }
}

/// The check, and the CUDA version of the driver, if it is good.
fn driver(found: Found) -> (Check, Option<[u32; 3]>) {
    let check = Check::new(Group::Gpu, "libcuda.so.1", format!("a driver for CUDA {} or newer", short(CUDA)));
    match found.outcome {
        Outcome::Loaded { file, version: Some(version) } if version < CUDA => {
            let found = format!("CUDA {}: too old{}", short(version), in_file(file.as_deref()));
            (check.missing(found, "install a newer driver of NVIDIA's"), None)
        }
        Outcome::Loaded { file, version } => {
            let text = format!("CUDA {}{}", short(version.unwrap_or_default()), in_file(file.as_deref()));
            (told(check, text, found.folder.as_deref()), version)
        }
        Outcome::Absent => (check.missing("not found", NEEDS_DRIVER), None),
        Outcome::Broken(why) => (
            check.missing(
                format!("there, but not usable: {why}"),
                "the driver's library must be of the same release as its kernel module; the stub in a toolkit's \
                 lib64/stubs is for linking only: take it out of LD_LIBRARY_PATH",
            ),
            None,
        ),
    }
}

fn nvrtc(found: Found, driver: Option<[u32; 3]>) -> Check {
    let check = Check::new(Group::Gpu, "libnvrtc", "NVRTC 12 or 13, not newer than the driver's CUDA");
    match found.outcome {
        Outcome::Loaded { file, version } => {
            let version = version.unwrap_or_default();
            let text = format!("NVRTC {}{}", short(version), in_file(file.as_deref()));
            match driver {
                // Within a major version, what a newer NVRTC compiles for one GPU runs on an older driver.
                Some(cuda) if version[0] > cuda[0] => check.missing(
                    format!("{text}: too new for a driver for CUDA {}", short(cuda)),
                    format!("install NVRTC {0} (pip install nvidia-cuda-nvrtc-cu{0}), or a newer driver", cuda[0]),
                ),
                _ => told(check, text, found.folder.as_deref()),
            }
        }
        Outcome::Absent => check.missing(
            "not found",
            "install the CUDA toolkit, or only NVRTC: pip install nvidia-cuda-nvrtc (13) or nvidia-cuda-nvrtc-cu12",
        ),
        Outcome::Broken(why) => check.missing(format!("there, but not usable: {why}"), "install it again, with what it depends on"),
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

    fn found(outcome: Outcome) -> Found {
        Found { outcome, folder: None }
    }

    fn loaded(version: [u32; 3]) -> Found {
        found(Outcome::Loaded { file: None, version: Some(version) })
    }

    #[test]
    fn a_driver_has_to_know_hopper() {
        for (version, status) in
            [([11, 8, 0], Status::Missing), ([12, 0, 0], Status::Ok), ([13, 1, 0], Status::Ok)]
        {
            assert_eq!(driver(loaded(version)).0.status, status, "{version:?}");
        }
    }

    #[test]
    fn nvrtc_may_be_newer_than_the_driver_only_within_a_major_version() {
        let status = |nvrtc_version, cuda| nvrtc(loaded(nvrtc_version), cuda).status;
        assert_eq!(status([13, 0, 0], Some([12, 9, 0])), Status::Missing);
        assert_eq!(status([12, 9, 0], Some([12, 4, 0])), Status::Ok);
        assert_eq!(status([12, 9, 0], Some([13, 0, 0])), Status::Ok);
        assert_eq!(status([13, 0, 0], None), Status::Ok);
    }

    #[test]
    fn what_lies_outside_the_loaders_folders_comes_with_the_command_that_tells_it() {
        let outcome = Outcome::Loaded { file: None, version: Some([13, 0, 0]) };
        let check = nvrtc(Found { outcome, folder: Some("/opt/cuda".into()) }, None);
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
