//! Compilation: what is refused, and how it is told.

#![allow(clippy::unwrap_used)]

mod common;

use common::{compiler, everything, source};
use mk_kernel::{ABI_HEADER, Arch, Compiler, Error, Header, Options, Source, Violation};
use std::path::Path;
use std::process::Command;

const EMPTY: &str = "extern \"C\" __global__ void mk_kernel() {}\n";

/// What is wrong with a kernel of this text.
fn violations(text: &str) -> Option<Vec<Violation>> {
    match compiler()?.compile(&source("own/kernel.cuh", text), &Options::default()) {
        Ok(compiled) => panic!("nothing was found wrong:\n{}", compiled.ptx),
        Err(Error::Rejected { violations, .. }) => Some(violations),
        Err(e) => panic!("{e:?}"),
    }
}

#[test]
fn a_kernel_becomes_machine_code_and_a_report() {
    let Some(compiler) = compiler() else { return };
    let text = "extern \"C\" { __device__ const unsigned mk_shared_bytes = 4096;
        __global__ void mk_kernel(float* p) { __syncthreads(); p[threadIdx.x] += 1; } }\n";
    let compiled = compiler.compile(&source("own/kernel.cuh", text), &Options::default()).unwrap();
    assert_eq!(compiled.cubin[..4], *b"\x7fELF");
    assert!(compiled.ptx.contains(".target sm_90a"), "{}", compiled.ptx);
    let report = compiled.report;
    assert_eq!(report.functions.len(), 1);
    assert_eq!(report.functions[0].name, "mk_kernel");
    assert!((4..=255).contains(&report.functions[0].registers), "{report:?}");
    assert_eq!((report.block_barriers, report.dynamic_shared_bytes), (1, Some(4096)));
}

#[test]
fn tracing_is_compiled_in_only_where_asked_for() {
    let Some(compiler) = compiler() else { return };
    let text = "#ifdef MK_TRACE\n#error traced\n#endif\nextern \"C\" __global__ void mk_kernel() {}\n";
    let source = source("own/kernel.cuh", text);
    compiler.compile(&source, &Options::default()).unwrap();
    let e = compiler.compile(&source, &Options { trace: true, ..Options::default() }).unwrap_err();
    assert!(e.to_string().contains("own/kernel.cuh:2"), "{e}");
}

#[test]
fn an_error_names_the_file_and_the_line() {
    let Some(compiler) = compiler() else { return };
    let text = "namespace mk {\nstruct A { int x; };\nstatic_assert(sizeof(A) == 8, \"A\");\n}\n__device__ int y() { return z; }\n";
    let e = compiler.compile(&source("own/broken.cuh", text), &Options::default()).unwrap_err();
    let Error::Compile { errors, log } = &e else { panic!("{e:?}") };
    assert_eq!(errors.len(), 2, "{log}");
    assert!(errors[0].starts_with("own/broken.cuh:3: static assertion failed"), "{errors:?}");
    assert!(errors[1].starts_with("own/broken.cuh:5: "), "{errors:?}");
    assert!(e.to_string().contains("own/broken.cuh:3"), "{e}");
}

#[test]
fn a_header_that_is_not_there_is_named() {
    let Some(compiler) = compiler() else { return };
    let source = source("own/kernel.cuh", "#include <cuda_fp16.h>\n");
    let e = compiler.compile(&source, &Options::default()).unwrap_err();
    assert!(e.to_string().contains("cuda_fp16.h"), "{e}");
}

#[test]
fn the_assembler_s_errors_are_told_too() {
    let Some(compiler) = compiler() else { return };
    let text = "extern \"C\" __global__ void mk_kernel() { asm volatile(\"no.such.instruction;\"); }\n";
    let e = compiler.compile(&source("own/kernel.cuh", text), &Options::default()).unwrap_err();
    let Error::Compile { errors, log } = &e else { panic!("{e:?}") };
    assert!(errors.iter().any(|e| e.starts_with("ptxas")), "{log}");
}

#[test]
fn a_spill_is_refused() {
    // Two hundred values that live across a barrier, in a block of a thousand threads: 64 registers each.
    let text = "extern \"C\" __global__ __launch_bounds__(1024, 1) void mk_kernel(volatile float* p) {
        float v[200];
        #pragma unroll
        for (int i = 0; i < 200; i++) v[i] = p[i * 1024 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 200; i++) p[i * 1024 + threadIdx.x] = v[i] * v[(i + 77) % 200];
    }\n";
    let Some(found) = violations(text) else { return };
    assert!(
        matches!(&found[..], [Violation::Spill { function, store_bytes, .. }] if function == "mk_kernel" && *store_bytes > 0),
        "{found:?}"
    );
}

#[test]
fn a_non_coherent_load_is_refused() {
    let text = "extern \"C\" __global__ void mk_kernel(const float* p, float* q) { *q = __ldg(p); }\n";
    let Some(found) = violations(text) else { return };
    assert_eq!(found, [Violation::NonCoherentLoad { found: 1 }]);
}

#[test]
fn barriers_of_the_whole_block_between_roles_are_refused() {
    let text = "extern \"C\" __global__ void mk_kernel(int* p) {
        __syncthreads(); if (p[0]) p[1] = 1; __syncthreads(); p[2] = p[1]; asm volatile(\"bar.sync 5, 160;\" ::: \"memory\"); p[3] = p[2]; }\n";
    let Some(found) = violations(text) else { return };
    assert_eq!(found, [Violation::SharedBarrier { found: 3 }]);
}

#[test]
fn a_call_near_wgmma_is_refused_by_the_assembler_s_own_advice() {
    let text = "__device__ void (*volatile path)(volatile int*);
    extern \"C\" __global__ __launch_bounds__(384, 1) void mk_kernel(volatile int* p, unsigned long long d) {
        if (threadIdx.x < 128) { asm volatile(\"setmaxnreg.dec.sync.aligned.u32 56;\"); p[1] = 2; return; }
        asm volatile(\"setmaxnreg.inc.sync.aligned.u32 224;\");
        float x[4] = {0, 0, 0, 0};
        for (int i = 0; i < p[1]; i++) {
            asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");
            asm volatile(\"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;\"
                : \"+f\"(x[0]), \"+f\"(x[1]), \"+f\"(x[2]), \"+f\"(x[3]) : \"l\"(d));
            asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");
            if (p[i] == 7) path(p);
            asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");
        }
        p[threadIdx.x] = x[0] + x[1] + x[2] + x[3];
    }\n";
    let Some(found) = violations(text) else { return };
    assert!(found.iter().any(|v| matches!(v, Violation::WgmmaSerialised(_))), "{found:?}");
    assert!(found.iter().any(|v| matches!(v, Violation::SetmaxnregIgnored(_))), "{found:?}");
}

#[test]
fn an_architecture_must_be_known_to_the_compiler_and_enough_for_every_handler() {
    let Some(compiler) = compiler() else { return };
    let plain = source("own/kernel.cuh", EMPTY);
    let on = |arch: &str| Options { arch: arch.parse().unwrap(), ..Options::default() };
    let e = compiler.compile(&plain, &on("sm_37")).unwrap_err();
    assert!(matches!(&e, Error::Arch { allowed, .. } if allowed.contains("sm_90")), "{e:?}");
    compiler.compile(&plain, &on("sm_100a")).unwrap();

    let mut hopper = plain;
    hopper.handlers.push(mk_kernel::TableEntry {
        opcode: 0,
        name: "gemm".into(),
        version: 1,
        stream: mk_core::Stream::Compute,
        device_struct: "mk::Gemm".into(),
        file: "gemm.cuh".into(),
        pages: 3,
        min_arch: 90,
    });
    let e = compiler.compile(&hopper, &on("sm_80")).unwrap_err();
    assert!(
        matches!(&e, Error::Arch { allowed, .. } if allowed.contains("handler 'gemm' needs it")),
        "{e:?}"
    );
}

/// The generated header, by itself.
fn abi_alone() -> Source {
    let abi = Source::of(&everything()).unwrap().header(ABI_HEADER).unwrap().to_string();
    let text = "#include \"mk/abi.cuh\"\nextern \"C\" __global__ void mk_kernel(const __grid_constant__ mk::Launch l) {}\n";
    let mut source = source("own/kernel.cuh", text);
    source.headers.push(Header { name: ABI_HEADER.into(), text: abi });
    source
}

#[test]
fn the_compiler_lays_every_struct_out_as_rust_does() {
    let Some(compiler) = compiler() else { return };
    let source = abi_alone();
    assert!(source.header(ABI_HEADER).unwrap().matches("static_assert").count() > 80);
    compiler.compile(&source, &Options::default()).unwrap();
}

#[test]
fn a_layout_that_drifts_apart_does_not_compile() {
    let Some(compiler) = compiler() else { return };
    let drifts =
        [("    u16 stride;", "    u32 stride;"), ("    u32 depth;", "    u64 depth;"), ("    u8 every;", "")];
    for (ours, theirs) in drifts {
        let mut source = abi_alone();
        let text = &mut source.headers[1].text;
        assert!(text.contains(ours), "{ours}");
        *text = text.replacen(ours, theirs, 1);
        let e = compiler.compile(&source, &Options::default()).unwrap_err();
        assert!(e.to_string().contains("mk/abi.cuh:"), "{e}");
    }
}

#[test]
fn a_place_without_nvrtc_is_a_typed_error_that_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let e = Compiler::at(folder.path()).unwrap_err();
    assert_eq!(e, Error::NvrtcMissing { looked: vec![folder.path().display().to_string()] });
    assert!(e.explain().hint.contains("pip install nvidia-cuda-nvrtc"), "{e:?}");
}

#[test]
fn a_file_that_is_no_library_and_a_library_that_is_no_nvrtc_are_typed_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnvrtc.so.13");
    std::fs::write(&file, "not a library").unwrap();
    assert!(unusable(&file).contains("file too short") || unusable(&file).contains("invalid ELF header"));

    let text = folder.path().join("fake.c");
    std::fs::write(&text, "int nvrtcVersion(int *a, int *b) { *a = 13; *b = 0; return 0; }").unwrap();
    let fake = folder.path().join("libnvrtc.so.12");
    let cc = Command::new("cc").args(["-shared", "-o"]).args([&fake, &text]).status();
    assert!(cc.unwrap().success());
    assert!(unusable(&fake).contains("it has no function nvrtcGetNumSupportedArchs"));
}

fn unusable(file: &Path) -> String {
    match Compiler::at(file) {
        Err(Error::NvrtcUnusable { path, message }) if path == file => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_default_is_hopper_with_its_own_instructions() {
    assert_eq!(Options::default().arch, Arch::SM_90A);
    assert_eq!(Arch::SM_90A.to_string(), "sm_90a");
}
