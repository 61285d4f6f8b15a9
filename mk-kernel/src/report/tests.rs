//! Logs and PTX as the compiler writes them.

use super::*;

const LOG: &str = "\
mk/gemm.cuh(12): warning #177-D: variable \"x\" was declared but never referenced
      int x;
ptxas info    : 12 bytes gmem
ptxas info    : Compiling entry function 'mk_kernel' for 'sm_90a'
ptxas info    : Function properties for mk_kernel
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 16 bytes cumulative stack size, 256 bytes smem, 944 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to a call in function 'mk_kernel'
ptxas info    : (C7507) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirement
ptxas info    : Compile time = 5.761 ms
ptxas info    : Function properties for _Z4failPVi
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
";

const PTX: &str = "\
.global .align 4 .u32 mk_shared_bytes = 231168;
// ld.global.nc in a comment is none
.visible .entry mk_kernel(.param .u64 p)
{
	bar.sync 	0;
	@%p1 bar.sync 	1, 128;
	barrier.sync.aligned 2, 128;
	bar.warp.sync 	-1;
	setmaxnreg.inc.sync.aligned.u32 224;
	setmaxnreg.dec.sync.aligned.u32 56;
	{.reg .pred p;setp.ne.b32 p, %r1, 0;wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%f1, %f2}, %rd1, %rd2, p, 1, 1, 0, 0;}
	wgmma.fence.sync.aligned;
	cp.async.bulk.global.shared::cta.bulk_group [%rd3],[%r1],%r2;
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group.read 0;
	@%p2 ld.global.nc.f32 %f1, [%rd4];
	ld.acquire.sys.global.u64 %rd5, [%rd6];
	call.uni (retval0), f, (param0);
}
";

#[test]
fn numbers_and_facts_are_read() {
    let report = Report::parse(LOG, PTX);
    let function = Function {
        name: "mk_kernel".into(),
        registers: 168,
        barriers: 3,
        stack_bytes: 16,
        spill_store_bytes: 4,
        spill_load_bytes: 8,
        shared_bytes: 256,
        constant_bytes: 952,
    };
    let called = Function { name: "_Z4failPVi".into(), ..Function::default() };
    assert_eq!(report.functions, [function, called]);
    assert_eq!(report.role_registers, [56, 224]);
    assert_eq!(report.dynamic_shared_bytes, Some(231_168));
    assert_eq!((report.wgmma, report.bulk_copies, report.calls), (1, 1, 1));
    assert_eq!((report.block_barriers, report.role_barriers), (1, 2));
    assert_eq!(report.non_coherent_loads, 1);
    assert_eq!(report.warnings, ["mk/gemm.cuh:12: variable \"x\" was declared but never referenced"]);
}

#[test]
fn each_violation_is_found_and_only_these() {
    let names: Vec<String> = Report::parse(LOG, PTX).violations().iter().map(|v| format!("{v:?}")).collect();
    let kinds: Vec<&str> = names.iter().map(|n| n.split([' ', '(']).next().unwrap()).collect();
    assert_eq!(kinds, ["Spill", "WgmmaSerialised", "SetmaxnregIgnored", "NonCoherentLoad"]);

    // Other codes of the same kinds, as other causes have them.
    let other = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : (C7518) Potential Performance Loss: wgmma.mma_async instructions are serialized due to program dependence
ptxas info    : (C7517) warpgroup.wait is injected in around line 132 by compiler
";
    let report = Report::parse(other, "");
    assert_eq!((report.violations().len(), report.advice.len()), (2, 3));

    let clean = LOG.replace("4 bytes spill", "0 bytes spill").replace("8 bytes spill", "0 bytes spill");
    let clean: String = clean.lines().filter(|l| !l.contains("(C")).map(|l| format!("{l}\n")).collect();
    assert_eq!(Report::parse(&clean, &PTX.replace("ld.global.nc", "ld.global")).violations(), []);
}

#[test]
fn a_barrier_between_roles_and_too_much_shared_memory_are_refused() {
    let ptx = "bar.sync 0;\nbar.sync 0;\nbarrier.cta.sync.aligned 0;\n.global .u32 mk_shared_bytes = 232400;";
    let log = "ptxas info : Function properties for k\nptxas info : Used 8 registers, 64 bytes smem\n";
    let violations = Report::parse(log, ptx).violations();
    assert_eq!(
        violations,
        [Violation::SharedMemory { bytes: 232_464 }, Violation::SharedBarrier { found: 3 }]
    );
    assert!(violations.iter().all(|v| !v.hint().is_empty()));
}

#[test]
fn only_the_barriers_of_the_math_warpgroups_are_those_of_a_role() {
    let refused = |ptx: &str| Report::parse("", ptx).violations();
    for fine in [
        "bar.sync 0;",
        "bar.sync 1, 128;",
        "@%p1 barrier.cta.red.or.pred %p2, 2, 128, %p3;",
        "bar.warp.sync -1;",
    ] {
        assert_eq!(refused(fine), [], "{fine}");
    }
    for shared in [
        "bar.sync 5, 160;",
        "bar.sync 0, 384;",
        "bar.sync 1, %r1;",
        "bar.arrive 3, 256;",
        "barrier.cta.red.or.pred %p1, 0, %p2;",
    ] {
        assert_eq!(
            refused(&format!("bar.sync 0;\n{shared}")),
            [Violation::SharedBarrier { found: 2 }],
            "{shared}"
        );
    }
}

#[test]
fn the_first_error_is_told_by_file_and_line() {
    let line = "mk-compute/device/gemm.cuh(12): error: identifier \"y\" is undefined";
    let expected = "mk-compute/device/gemm.cuh:12: identifier \"y\" is undefined";
    assert_eq!(diagnostic(line, "error").as_deref(), Some(expected));
    let line = "own/a.cuh(2): catastrophic error: cannot open source file \"b.cuh\"";
    assert_eq!(diagnostic(line, "error").as_deref(), Some("own/a.cuh:2: cannot open source file \"b.cuh\""));
    assert_eq!(diagnostic(line, "warning"), None);
    assert_eq!(diagnostic("1 error detected in the compilation of \"k.cu\".", "error"), None);
}
