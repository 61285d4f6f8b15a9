//! What a driver refuses, and how it is said.

use super::fake::{run, run_with};
use super::setup::{self, Parameter};
use mk_cuda::{
    Allocation, Context, DeviceMemory, Driver, Error, HostMemory, Launch, Module, Stream, try_multicast,
};
use serde_json::{Value, json};
use std::os::fd::AsFd as _;

fn contexts(driver: &Driver) -> Result<Vec<Context>, Error> {
    driver.devices()?.iter().map(|d| d.context()).collect()
}

#[test]
fn regress_pytorch_185216() {
    // A driver that is too old: it is not called any further.
    let done = run("set-up", "driver=12020");
    let error = done.error("TooOld");
    assert_eq!(error["found"], json!({"major": 12, "minor": 2}));
    assert_eq!(error["needed"], json!({"major": 13, "minor": 0}));
    assert_eq!(done.says("message"), "the driver is for CUDA 12.2, and CUDA 13.0 is needed");
    assert_eq!((done.says("kind"), done.says("given")), ("missing", "CUDA 12.2"));
    assert_eq!(done.says("allowed"), "a driver for CUDA 13.0 or newer");
    let names: Vec<&str> = done.calls.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["cuDriverGetVersion"]);
}

#[test]
fn regress_nccl_tests_98() {
    // GPUs that nothing joins.
    let done = run("set-up", "peers=0");
    let error = done.error("PeerRefused");
    assert_eq!((&error["from"], &error["to"]), (&json!("GPU 1 (Fake H200)"), &json!("GPU 0 (Fake H200)")));
    // The mapping said no, before anybody asked whether the driver thinks that it can.
    assert_eq!(
        (&error["failure"]["call"], &error["failure"]["code"]),
        (&json!("cuMemSetAccess"), &json!(101))
    );
    assert!(done.says("hint").contains("topo -p2p"));
    done.assert_clean();
}

#[test]
fn regress_vllm_42609() {
    // Asked, the driver says that all is well; the handle of another process it does not take.
    let done = run("set-up", "fail=cuMemImportFromShareableHandle:101");
    let error = done.error("ImportRefused");
    let failure =
        json!({"call": "cuMemImportFromShareableHandle", "code": 101, "name": "CUDA_ERROR_INVALID_DEVICE"});
    assert_eq!((&error["device"], &error["failure"]), (&json!("GPU 1 (Fake H200)"), &failure));
    assert_eq!(done.says("kind"), "import-refused");
    assert!(done.says("hint").contains("CUDA_VISIBLE_DEVICES"));
    done.assert_clean();
}

#[test]
fn regress_tensorrt_llm_17034() {
    // A driver that takes the handle, and then does not let it be mapped, or reached.
    for step in ["cuMemMap:1@2", "cuMemSetAccess:101@3"] {
        let done = run("set-up", &format!("fail={step}"));
        let failure = &done.error("ImportRefused")["failure"];
        assert!(step.starts_with(failure["call"].as_str().unwrap()), "{failure}");
        done.assert_clean();
    }
    // The other side of it, and peer access that is promised and not given.
    let done = run("set-up", "fail=cuMemExportToShareableHandle:800");
    assert_eq!(done.error("ExportRefused")["failure"]["code"], 800);
    assert!(done.says("message").contains("CUDA_ERROR_NOT_PERMITTED"));
    done.assert_clean();
    let done = run("set-up", "fail=cuCtxEnablePeerAccess:217");
    assert_eq!(done.error("PeerRefused")["failure"]["name"], "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED");
    done.assert_clean();
    // A GPU that says so before it is tried.
    let done = run("set-up", "posix=0");
    assert_eq!(done.error("ExportRefused")["failure"], Value::Null);
    done.assert_clean();
}

/// Tries multicast; whatever comes of it, peers still reach each other.
pub(crate) fn multicast(driver: &Driver) -> Result<Value, Error> {
    let contexts = contexts(driver)?;
    let tried = try_multicast(&contexts);
    assert!(driver.live().contexts == 2 && driver.live().multicasts == 0);
    Allocation::new(&contexts[0], 1)?.map(&[&contexts[0], &contexts[1]])?;
    tried.map(|()| Value::Null)
}

#[test]
fn regress_nccl_1788() {
    // One GPU of two cannot bind: one verdict, nobody waits, and peer access is there to fall back to.
    let done = run("multicast", "fail=cuMulticastBindMem:401@2");
    let error = done.error("MulticastRefused");
    assert_eq!(error["device"], "GPU 1 (Fake H200)");
    assert_eq!(error["failure"]["name"], "CUDA_ERROR_ILLEGAL_STATE");
    assert_eq!(
        (done.says("kind"), done.answer["live"]["multicasts"].as_u64()),
        ("multicast-refused", Some(0))
    );
    assert!(done.calls.iter().any(|c| c.name == "cuMemSetAccess" && c.code == 0));
    done.assert_clean();
}

#[test]
fn regress_torchcomms_3130() {
    for step in ["cuMulticastGetGranularity:801", "cuMulticastCreate:802", "cuMulticastAddDevice:802@2"] {
        let done = run("multicast", &format!("fail={step}"));
        let (call, rest) = step.split_once(':').unwrap();
        let failure = &done.error("MulticastRefused")["failure"];
        assert_eq!(failure["call"], call);
        assert!(rest.starts_with(&failure["code"].to_string()));
        done.assert_clean();
    }
    // GPUs that say that they have none are not asked to make one.
    let done = run("multicast", "multicast=0");
    assert_eq!(done.error("MulticastRefused")["failure"], Value::Null);
    assert!(!done.calls.iter().any(|c| c.name.starts_with("cuMulticast")));
    done.assert_clean();
    // Where it works, it leaves nothing, either; and no set-up makes one unasked.
    let done = run("multicast", "");
    assert!(done.answer["error"].is_null() && done.calls.iter().any(|c| c.name == "cuMulticastCreate"));
    done.assert_clean();
    assert!(!run("set-up", "").calls.iter().any(|c| c.name.starts_with("cuMulticast")));
}

#[test]
fn without_a_gpu_the_variable_that_hides_them_is_named() {
    let done = run("set-up", "devices=0");
    assert_eq!((done.error("NoDevice"), done.says("kind")), (&json!({"visible": null}), "missing"));
    let done = run_with("set-up", "devices=0", &[("CUDA_VISIBLE_DEVICES", "7")]);
    assert_eq!(done.says("given"), "no GPU, with CUDA_VISIBLE_DEVICES=7");
    assert!(done.says("hint").contains("CUDA_VISIBLE_DEVICES"));
}

#[test]
fn a_driver_that_does_not_start_says_what_to_do() {
    for (code, word) in [(803, "kernel module"), (802, "fabricmanager"), (34, "stub"), (999, "permissions")] {
        let done = run("set-up", &format!("fail=cuInit:{code}"));
        assert!(done.error("Unusable")["hint"].as_str().unwrap().contains(word), "{code}: {}", done.answer);
        assert!(done.says("message").contains(&format!("cuInit returned {code}")));
    }
    // A code that the driver itself has no name for.
    let done = run("set-up", "fail=cuDeviceGetCount:12345");
    assert_eq!(done.error("Call")["failure"]["name"], "an error without a name");
}

#[test]
fn a_gpu_that_the_kernel_is_not_for_is_refused_with_both_capabilities() {
    for (capability, found) in [(89, "8.9"), (100, "10.0"), (75, "7.5")] {
        let done = run("set-up", &format!("capability={capability}"));
        let error = done.error("Capability");
        assert_eq!((&error["found"], &error["needed"]), (&json!(found), &json!("9.0 (sm_90a)")));
        done.assert_clean();
    }
    let done = run("set-up", "shared=101376");
    assert_eq!(done.error("Lacks")["found"], "101376");
    let done = run("set-up", "vmm=0");
    assert!(done.error("Lacks")["what"].as_str().unwrap().contains("virtual memory"));
}

/// More than there is, of each kind.
pub(crate) fn memory(driver: &Driver) -> Result<Value, Error> {
    let context = driver.device(0)?.context()?;
    let held = DeviceMemory::new(&context, 1 << 20)?;
    let refused = |e: Result<(), Error>| e.unwrap_err();
    let errors = [
        refused(DeviceMemory::new(&context, 8 << 20).map(drop)),
        refused(Allocation::new(&context, 1 << 40).map(drop)),
        refused(Allocation::new(&context, u64::MAX).map(drop)),
        refused(DeviceMemory::new(&context, u64::MAX).map(drop)),
        refused(HostMemory::new(&context, u64::MAX).map(drop)),
    ];
    drop(held);
    Ok(json!(errors))
}

#[test]
fn out_of_memory_says_what_was_asked_for_and_what_is_free() {
    let done = run("memory", "memory=8388608");
    done.assert_clean();
    let errors = done.answer["value"].as_array().unwrap();
    let first = &errors[0]["OutOfMemory"];
    assert_eq!((&first["asked_bytes"], &first["free_bytes"]), (&json!(8 << 20), &json!(7 << 20)));
    assert_eq!((&first["device"], &first["what"]), (&json!("GPU 0 (Fake H200)"), &json!("device memory")));
    assert_eq!(errors[1]["OutOfMemory"]["asked_bytes"], json!(1u64 << 40));
    // The fake driver, as the real one, may call what is beyond all bounds an invalid value.
    assert!(errors.iter().all(|e| !e["OutOfMemory"].is_null() || !e["Call"].is_null()), "{errors:?}");
}

/// Memory that was not made to be given away.
pub(crate) fn private_export(driver: &Driver) -> Result<Value, Error> {
    let context = driver.device(0)?.context()?;
    Allocation::new(&context, 1)?.export().map(|_| Value::Null)
}

/// A descriptor that is no memory of a GPU.
pub(crate) fn stranger_import(driver: &Driver) -> Result<Value, Error> {
    let context = driver.device(0)?.context()?;
    let file = std::fs::File::open("/proc/self/status").unwrap();
    Allocation::import(&context, file.as_fd(), 2 << 20).map(|_| Value::Null)
}

#[test]
fn memory_that_is_not_shared_is_not_exported_and_what_is_no_memory_is_not_imported() {
    let done = run("private export", "");
    assert_eq!(done.error("ExportRefused")["failure"], Value::Null);
    assert!(!done.calls.iter().any(|c| c.name == "cuMemExportToShareableHandle"));
    done.assert_clean();
    let done = run("stranger import", "");
    assert_eq!(done.error("ImportRefused")["failure"]["name"], "CUDA_ERROR_INVALID_VALUE");
    done.assert_clean();
}

/// What is no machine code, and a part of it.
pub(crate) fn image(driver: &Driver) -> Result<Value, Error> {
    let context = driver.device(0)?.context()?;
    let whole = setup::cubin();
    for wrong in [&b"// PTX"[..], &whole[..whole.len() - 1]] {
        let e = Module::load(&context, wrong).unwrap_err();
        assert!(matches!(e, Error::NotCubin { .. }), "{e}");
    }
    Module::load(&context, &whole).map(|_| Value::Null)
}

#[test]
fn machine_code_that_the_gpu_does_not_take_is_said_to_be_for_another_one() {
    let done = run("image", "fail=cuModuleLoadData:209");
    let error = done.error("Image");
    assert_eq!(
        (&error["capability"], &error["failure"]["name"]),
        (&json!("9.0"), &json!("CUDA_ERROR_NO_BINARY_FOR_GPU"))
    );
    // The driver was never given what is not whole.
    assert_eq!(done.calls.iter().filter(|c| c.name == "cuModuleLoadData").count(), 1);
    done.assert_clean();
}

/// A GPU and a kernel that do not exist.
pub(crate) fn no_such(driver: &Driver) -> Result<Value, Error> {
    assert_eq!(driver.device(2).unwrap_err(), Error::NoSuchDevice { ordinal: 2, devices: 2 });
    let module = Module::load(&driver.device(1)?.context()?, &setup::cubin())?;
    for name in ["other", "mk_kernel\0"] {
        assert_eq!(module.kernel(name).unwrap_err(), Error::NoKernel { name: name.into() });
    }
    // The module is held by its kernel.
    let kernel = module.kernel("mk_kernel")?;
    drop(module);
    assert_eq!((driver.live().modules, kernel.name()), (1, "mk_kernel"));
    Ok(Value::Null)
}

#[test]
fn what_does_not_exist_is_named() {
    let done = run("no such", "");
    assert!(done.answer["error"].is_null(), "{}", done.answer);
    done.assert_clean();
}

/// A parameter of another size than the kernel's.
#[allow(unsafe_code, reason = "no kernel can be started otherwise")]
pub(crate) fn parameter(driver: &Driver) -> Result<Value, Error> {
    let context = driver.device(0)?.context()?;
    let (kernel, stream) = (setup::kernel(&context)?, Stream::new(&context)?);
    let parameter: Parameter = [0; 2];
    let size = Launch { blocks: 1, threads: 384, shared_bytes: 0, pairs: false, early: false };
    // SAFETY: the fake driver runs no kernel.
    unsafe { kernel.launch(&stream, size, &parameter) }.map(|()| Value::Null)
}

#[test]
fn a_parameter_of_another_size_is_not_given_to_the_kernel() {
    let done = run("parameter", "parameter=24");
    assert_eq!(done.error("Parameter"), &json!({"name": "mk_kernel", "given": 16, "needed": 24}));
    assert!(!done.calls.iter().any(|c| c.name == "cuLaunchKernelEx"));
    done.assert_clean();
}

#[test]
fn a_lost_context_is_said_to_be_lost_and_is_let_go() {
    for call in ["cuLaunchKernelEx", "cuStreamSynchronize@3"] {
        let (call, at) = call.split_once('@').unwrap_or((call, "1"));
        let done = run("run", &format!("fail={call}:719@{at}"));
        let error = done.error("ContextLost");
        assert_eq!((&error["failure"]["call"], &error["failure"]["code"]), (&json!(call), &json!(719)));
        assert!(done.says("hint").contains("start the process again"));
        // Nothing can be released in it any more, and that is kept; the contexts themselves are.
        let kept = done.answer["kept"].as_array().unwrap();
        assert!(!kept.is_empty() && kept.iter().all(|f| f["code"] == 719), "{kept:?}");
        assert_eq!(done.answer["live"]["contexts"], 0);
        done.assert_tidy_but_for_memory();
    }
}
