//! What works.

use super::fake::{run, run_with};
use super::setup::{self, TEXT};
use mk_cuda::{Allocation, Driver, Error, HostMemory, Live, Memory as _, Stream};
use serde_json::{Value, json};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

/// Moves bytes on every path that there is.
#[allow(unsafe_code, reason = "asynchronous copies are a promise of the caller's")]
pub(crate) fn everything(driver: &Driver) -> Result<Value, Error> {
    let mut s = setup::open(driver)?;
    let open = driver.live();
    let mut moved = vec![0; TEXT.len()];
    s.stream.download(&s.memory, 8, &mut moved)?;
    assert_eq!(moved, TEXT);

    // Through the heap: written at its own addresses, read by the other GPU at those of the import.
    s.stream.upload(&s.heap, 1 << 20, TEXT)?;
    let second = Stream::new(&s.contexts[1])?;
    second.download(&s.imported, 1 << 20, &mut moved)?;
    assert_eq!(moved, TEXT);
    assert_ne!(s.heap.address(), s.imported.address());

    // Through pinned memory, and from one GPU's memory to the other's.
    s.host.write(16, TEXT)?;
    let bytes = TEXT.len() as u64;
    // SAFETY: all of it lives until the stream is waited for.
    unsafe {
        s.stream.upload_async((&s.memory, 100), (&s.host, 16), bytes)?;
        second.copy_async((&s.imported, 64), (&s.memory, 100), bytes)?;
        second.fill_async(&s.imported, 64, 3, b'x')?;
        s.stream.download_async((&s.host, 512), (&s.heap, 64), bytes)?;
    }
    s.stream.synchronize()?;
    let mut out = vec![0; TEXT.len()];
    s.host.read(512, &mut out)?;
    assert_eq!(out, b"xxx byte follows the other");

    // A word that host and GPU share; new memory is all zeros.
    let word = s.host.word(1024)?;
    assert_eq!(word.swap(7, Ordering::Release), 0);
    let mut seen = [0; 8];
    s.host.read(1024, &mut seen)?;
    assert_eq!(u64::from_le_bytes(seen), 7);

    setup::run(&s)?;
    let [begin, end] = &s.events;
    s.stream.wait(begin)?;
    assert!(s.stream.is_done()? && begin.is_done()? && !s.stream.is_capturing()?);
    end.synchronize()?;
    assert!(end.milliseconds_since(begin)? > 0.0);

    // Bytes that are not there.
    for (offset, n) in [(4096, 1), (4095, 2), (u64::MAX, 1)] {
        let e = s.host.write(offset, &vec![0; n]).unwrap_err();
        assert_eq!(
            e,
            Error::OutOfRange { offset, count: if offset == u64::MAX { 0 } else { n as u64 }, bytes: 4096 }
        );
        assert!(s.stream.upload(&s.memory, offset, &vec![0; n]).is_err());
    }
    assert!(s.host.word(4).is_err() && s.host.word(4096).is_err());

    let (free, total) = s.contexts[0].memory()?;
    s.contexts[0].synchronize()?;
    Ok(json!({
        "open": open, "devices": driver.devices()?.iter().map(|d| d.facts().clone()).collect::<Vec<_>>(),
        "kernel": s.kernel.facts(), "used": total - free, "peer": s.contexts[1].device().peer(s.contexts[0].device())?,
        "version": driver.version().to_string(), "file": driver.file(),
    }))
}

#[test]
fn what_is_asked_for_is_there_bytes_arrive_and_all_of_it_is_closed() {
    // Its launches are in pairs and early.
    assert_eq!(run("everything", "launched=0").error("Call")["failure"]["code"], 1);
    let done = run("everything", "sms=144; memory=67108864; launched=3");
    assert_eq!(done.answer["error"], Value::Null);
    done.assert_clean();
    let value = &done.answer["value"];
    let open = Live {
        contexts: 2,
        modules: 1,
        device_memory: 1,
        host_memory: 1,
        streams: 1,
        events: 2,
        graphs: 2,
        // The heap, and the import of it.
        allocations: 2,
        reservations: 2,
        mappings: 2,
        peer_accesses: 1,
        multicasts: 0,
    };
    assert_eq!(value["open"], json!(open));
    assert_eq!(value["version"], "13.0");
    assert!(value["file"].as_str().unwrap().ends_with("/libcuda.so.1"));
    let device = &value["devices"][1];
    assert_eq!((&device["ordinal"], &device["name"]), (&json!(1), &json!("Fake H200")));
    assert_eq!((&device["capability"], &device["multiprocessors"]), (&json!([9, 0]), &json!(144)));
    assert_eq!((&device["memory_bytes"], &device["shared_bytes"]), (&json!(67_108_864), &json!(232_448)));
    assert_eq!(device["uuid"], "GPU-fafafafa-fafa-fafa-fafa-fafafafafa01");
    let kernel = json!({"registers": 168, "local_bytes": 0, "shared_bytes": 0, "threads": 384, "binary": 90, "parameter_bytes": 16});
    assert_eq!(value["kernel"], kernel);
    // The heap, rounded up to whole pages of 2 MiB, and 4096 bytes.
    assert_eq!(value["used"], (4 << 20) + 4096);
    assert_eq!(value["peer"], json!({"access": true, "atomics": true, "rank": 0}));
}

/// Fifty times.
pub(crate) fn cycles(driver: &Driver) -> Result<Value, Error> {
    for _ in 0..50 {
        setup::open(driver).and_then(|s| setup::run(&s))?;
        assert!(driver.live().is_empty());
    }
    Ok(Value::Null)
}

#[test]
fn fifty_cycles_leave_nothing_open() {
    run("cycles", "sms=132").assert_clean();
}

/// The context that is current in this thread, as the driver tells it to whoever asks.
#[allow(unsafe_code, reason = "a library can be loaded and called in no other way")]
fn current() -> usize {
    let mut context = std::ptr::null_mut::<c_void>();
    // SAFETY: it is loaded already; the function is `CUresult cuCtxGetCurrent(CUcontext*)`, and points at a handle of ours.
    let result = unsafe {
        let library = libloading::Library::new("libcuda.so.1").unwrap();
        let get = library.get::<unsafe extern "C" fn(*mut *mut c_void) -> c_int>("cuCtxGetCurrent").unwrap();
        get(&raw mut context)
    };
    assert_eq!(result, 0);
    context.addr()
}

/// Contexts of the caller's threads.
pub(crate) fn contexts(driver: &Driver) -> Result<Value, Error> {
    let devices = driver.devices()?;
    let [first, second] = [devices[0].context()?, devices[1].context()?];
    // One thread works on both, and others at the same time.
    let here = HostMemory::new(&first, 8)?;
    std::thread::scope(|scope| {
        let threads = [&first, &second].map(|context| {
            scope.spawn(move || {
                (0..20).try_for_each(|_| Allocation::new(context, 1)?.map(&[context]).map(drop))
            })
        });
        threads.into_iter().try_for_each(|t| t.join().unwrap())
    })?;
    // Other libraries find the context that they are to work in, and only while they do.
    let [one, other] = [first.while_current(current)?, second.while_current(current)?];
    assert!(one != 0 && other != 0 && one != other, "{one:#x}, {other:#x}");
    assert_eq!(current(), 0);
    let mapping = Allocation::new(&second, 1)?.map(&[&second])?;
    // Handles keep their context.
    drop((first, second, devices));
    assert_eq!((driver.live().contexts, driver.live().mappings), (2, 1));
    // Whoever asks for the driver of the machine gets this one.
    assert_eq!(Driver::find()?.live(), driver.live());
    drop((here, mapping));
    assert_eq!(driver.live(), Live::default());
    Ok(Value::Null)
}

#[test]
fn handles_keep_their_context_and_threads_keep_theirs() {
    let done = run_with("contexts", "", &[]);
    done.assert_clean();
}
