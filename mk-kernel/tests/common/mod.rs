//! What tests of compilation have in common.
#![allow(dead_code, reason = "each test file uses some of it")]

use mk_core::{Registry, World};
use mk_kernel::{Compiler, Header, Source};

/// NVRTC; without it tests are skipped, but where `CI` is set they fail.
pub(crate) fn compiler() -> Option<Compiler> {
    match Compiler::find() {
        Ok(compiler) => Some(compiler),
        Err(e) if std::env::var_os("CI").is_some() => panic!("CI needs NVRTC: {e:?}"),
        Err(e) => {
            eprintln!("skipped: {e:?}");
            None
        }
    }
}

/// A kernel of one file of our own.
pub(crate) fn source(file: &str, text: &str) -> Source {
    let header = Header { name: file.into(), text: text.into() };
    Source {
        entry: format!("#include \"{file}\"\n"),
        headers: vec![header],
        handlers: Vec::new(),
        without_device: Vec::new(),
    }
}

/// All that this project registers.
pub(crate) fn everything() -> Registry {
    Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .transport(mk_rdma::Rdma::ordered())
        .handlers(mk_compute::handlers())
        .build(&World::local(1).unwrap())
        .unwrap()
}
