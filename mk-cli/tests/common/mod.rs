//! Running the command, and writing files that it reads, without any of its own code.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::Path;
use std::process::Command;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Mk {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs it without a GPU, so that it simulates on every machine.
pub(crate) fn mk(args: &[&str]) -> Mk {
    let mut mk = Command::new(env!("CARGO_BIN_EXE_mk"));
    mk.args(args).env_remove("COLUMNS").env("CUDA_VISIBLE_DEVICES", "");
    let done = mk.output().expect("mk starts");
    let text = |bytes| String::from_utf8(bytes).expect("mk prints UTF-8");
    Mk { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
}

/// A `.safetensors` file: length of the header, header, data.
pub(crate) fn safetensors(tensors: &[(&str, &str, &[u64], &[u8])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let (from, to) = (data.len(), data.len() + bytes.len());
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}"#
        ));
        data.extend_from_slice(bytes);
    }
    let header = format!("{{{}}}", entries.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// A `.npy` file of version 1.
pub(crate) fn npy(descr: &str, fortran: bool, shape: &[u64], data: &[u8]) -> Vec<u8> {
    let fortran = if fortran { "True" } else { "False" };
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({shape}), }}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// bf16 is the upper half of f32; these numbers have no lower half.
pub(crate) fn bf16(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|x| {
            let bits = x.to_bits();
            assert_eq!(bits & 0xffff, 0, "{x} is not a bf16 number");
            ((bits >> 16) as u16).to_le_bytes()
        })
        .collect()
}

pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The driver for tests, as `libcuda.so.1`. Cargo builds it beside these tests, which depend on its crate.
pub(crate) fn fake_driver(folder: &Path) {
    let tests = std::env::current_exe().expect("a test has a file");
    std::fs::copy(tests.with_file_name("libfake_cuda.so"), folder.join("libcuda.so.1"))
        .expect("it is copied");
}
