//! Which arguments the handlers accept, and what they say of others.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::Memory;
use mk_compute::*;
use mk_core::*;
use proptest::prelude::*;

const R0: RegionId = RegionId(0);
const R1: RegionId = RegionId(1);
const R2: RegionId = RegionId(2);

fn memory(dtypes: [DType; 3]) -> Memory {
    Memory::new(dtypes.map(|d| Tensor::zeros(d, 512, 512)).into())
}

const GEMM: GemmArgs =
    GemmArgs { a: R0, b: R1, c: R2, rows: 128, cols: 256, a_row: 1, c_row: 2, col: 3, k: 200 };
const ADD: AddArgs =
    AddArgs { x: R0, y: R1, dst: R2, rows: 40, cols: 512, src_row: 1, src_col: 0, dst_row: 3, dst_col: 0 };
const CAST: CastArgs =
    CastArgs { src: R0, dst: R1, rows: 4, cols: 4, src_row: 0, src_col: 0, dst_row: 0, dst_col: 0 };

const COPY: CopyRectArgs =
    CopyRectArgs { src: R0, dst: R1, rows: 4, cols: 4, src_row: 0, src_col: 0, dst_row: 0, dst_col: 0 };

fn refused(handler: &impl DynHandler, dtypes: [DType; 3], args: &impl DeviceAbi) -> String {
    handler.spec(&args.to_bytes(), &memory(dtypes).env()).unwrap_err().to_string()
}

#[test]
fn a_tile_says_what_it_touches_and_how_much_work_it_is() {
    let m = memory([DType::Bf16; 3]);
    let spec = Handler::spec(&Gemm, &GEMM, &m.env()).unwrap();
    assert_eq!(spec.blocks, 4, "200 is three blocks of 64 and a part");
    assert_eq!(spec.work.tensor_flops, 2 * 128 * 256 * 200);
    assert_eq!(spec.work.read_bytes, 2 * (128 * 200 + 200 * 256));
    assert_eq!(spec.work.write_bytes, 2 * 128 * 256);
    let [a, b, c] = [&spec.accesses[0], &spec.accesses[1], &spec.accesses[2]];
    assert_eq!(
        (a.rect, b.rect, c.rect),
        (Rect::new(1, 0, 128, 200), Rect::new(0, 3, 200, 256), Rect::new(2, 3, 128, 256))
    );
    // The last block is narrower.
    assert_eq!((a.block_rect(3), b.block_rect(3)), (Rect::new(1, 192, 128, 8), Rect::new(192, 3, 8, 256)));
    assert_eq!([a, b, c].map(|x| x.mode), [Mode::Read, Mode::Read, Mode::Write]);
    assert_eq!([a, b, c].map(|x| x.proxy), [Proxy::Async, Proxy::Async, Proxy::Generic]);
    assert_eq!((a.at, c.at, c.walk), (Phase::Load, Phase::Store, Walk::Whole));
}

#[test]
fn wide_tiles_beside_or_above_each_other_have_an_operand_in_common() {
    let of = |x: GemmArgs, y: GemmArgs| Handler::shares(&Gemm, &x, &y);
    let other_rows = GemmArgs { a_row: 129, c_row: 130, ..GEMM };
    let other_cols = GemmArgs { col: 259, ..GEMM };
    assert_eq!([of(GEMM, other_cols), of(GEMM, other_rows)], [Some(0), Some(1)]);
    assert_eq!(of(other_cols, other_rows), None);
    assert_eq!(of(GEMM, GemmArgs { k: GEMM.k + 1, ..other_cols }), None);
    // The groups of both must be alike, and narrow tiles are loaded by each.
    assert_eq!(of(GEMM, GemmArgs { cols: 64, ..other_cols }), None);
    let [narrow, few] = [64, 8].map(|cols| GemmArgs { cols, ..GEMM });
    assert_eq!(of(narrow, GemmArgs { a_row: 129, ..narrow }), None);
    assert_eq!(of(few, GemmArgs { a_row: 129, ..few }), Some(1));
    let nothing = GemmArgs { k: 0, ..GEMM };
    assert_eq!(of(nothing, GemmArgs { a_row: 129, ..nothing }), None);
}

#[test]
fn a_tile_beyond_4_gi_elements_is_exact() {
    let regions = [[1 << 40, 1 << 20], [1 << 20, 1 << 33], [1 << 40, 1 << 33]]
        .map(|e| Region::heap("x", DType::F16, Shape::Uniform(e)));
    let env = Env { regions: &regions, rank: Rank(0), ranks: 1 };
    let args =
        GemmArgs { a_row: (1 << 40) - 128, c_row: (1 << 40) - 128, col: (1 << 33) - 256, k: 1 << 20, ..GEMM };
    let spec = Handler::spec(&Gemm, &args, &env).unwrap();
    assert!(spec.accesses.iter().all(|a| a.rect.fits(regions[a.region.index()].extent(Rank(0)))));
    assert_eq!(spec.work.tensor_flops, 1 << (1 + 7 + 8 + 20));
}

#[test]
fn a_tile_of_another_size_or_type_is_refused() {
    let bf16 = [DType::Bf16; 3];
    for (rows, cols) in [(0, 8), (129, 8), (8, 0), (8, 257), (u16::MAX, u16::MAX)] {
        let message = refused(&Gemm, bf16, &GemmArgs { rows, cols, ..GEMM });
        assert_eq!(
            message,
            format!("a tile of {rows} x {cols}: 1..=128 rows and 1..=256 columns are allowed")
        );
    }
    for dtypes in [
        [DType::Bf16, DType::F16, DType::Bf16],
        [DType::Bf16, DType::Bf16, DType::F32],
        [DType::F32; 3],
        [DType::I32; 3],
    ] {
        assert!(refused(&Gemm, dtypes, &GEMM).contains("all three must hold bf16, or all fp16"));
    }
    assert!(refused(&Gemm, bf16, &GemmArgs { k: u64::MAX, ..GEMM }).contains("at most 2^38 - 64"));
    assert!(refused(&Gemm, bf16, &GemmArgs { b: RegionId(3), ..GEMM }).contains("region 3 does not exist"));
    let most = GemmArgs { k: (1 << 38) - 64, ..GEMM };
    assert_eq!(Handler::spec(&Gemm, &most, &memory(bf16).env()).unwrap().blocks, u32::MAX);
}

#[test]
fn elementwise_tasks_walk_in_pages() {
    let m = memory([DType::F32; 3]);
    let spec = Handler::spec(&Add, &ADD, &m.env()).unwrap();
    // A row of 512 fp32 is 2 KiB: 8 rows a page.
    assert_eq!(
        (spec.blocks, spec.accesses[0].walk, spec.accesses[2].walk),
        (5, Walk::Rows(8), Walk::Rows(8))
    );
    assert_eq!(
        (spec.work.vector_flops, spec.work.read_bytes, spec.work.write_bytes),
        (40 * 512, 2 * 40 * 2048, 40 * 2048)
    );
    // The widest type counts.
    let m = memory([DType::F32, DType::Bf16, DType::Bf16]);
    let spec = Handler::spec(&Cast, &CastArgs { rows: 40, cols: 512, ..CAST }, &m.env()).unwrap();
    assert_eq!(spec.accesses[1].walk, Walk::Rows(8));
    let m = memory([DType::Bf16; 3]);
    let spec = Handler::spec(&Copy, &CopyRectArgs { rows: 40, cols: 512, ..COPY }, &m.env()).unwrap();
    assert_eq!(
        (spec.blocks, spec.accesses[0].walk, spec.accesses[1].walk),
        (3, Walk::Rows(16), Walk::Rows(16))
    );
    let bytes = 40 * 512 * 2;
    assert_eq!(spec.work, Work { read_bytes: bytes, write_bytes: bytes, ..Work::default() });
}

#[test]
fn a_nop_touches_nothing_whatever_its_tag() {
    let m = memory([DType::Bf16; 3]);
    for tag in [0, 1, u32::MAX] {
        assert_eq!(Handler::spec(&Nop, &NopArgs { tag }, &m.env()).unwrap(), Spec::new(1));
    }
}

#[test]
fn mixed_types_and_shifted_overlaps_are_refused() {
    assert_eq!(
        refused(&Add, [DType::Bf16, DType::F16, DType::Bf16], &ADD),
        "'r0' holds bf16, 'r1' holds fp16, 'r2' holds bf16: all must hold one of bf16, fp16, fp32, i32"
    );
    let message = refused(&Add, [DType::F32; 3], &AddArgs { dst: R0, ..ADD });
    assert_eq!(
        message,
        "'r0' is read at rows 1..41 x cols 0..512 and written at rows 3..43 x cols 0..512: use the same place, or places that do not overlap"
    );
    let apart = AddArgs { dst: R0, dst_row: 41, ..ADD };
    assert!(Handler::spec(&Add, &apart, &memory([DType::F32; 3]).env()).is_ok());
    assert!(refused(&Cast, [DType::I32, DType::F32, DType::F32], &CAST).contains("bf16, fp16, fp32"));
    // The same size is not the same type.
    assert_eq!(
        refused(&Copy, [DType::Bf16, DType::F16, DType::F16], &COPY),
        "'r0' holds bf16, 'r1' holds fp16: all must hold one of bf16, fp16, fp32, i32"
    );
    let shifted = refused(&Copy, [DType::F32; 3], &CopyRectArgs { dst: R0, dst_row: 3, dst_col: 3, ..COPY });
    assert!(
        shifted.contains("'r0' is read at rows 0..4 x cols 0..4 and written at rows 3..7 x cols 3..7"),
        "{shifted}"
    );
    let apart = CopyRectArgs { dst: R0, dst_col: 4, ..COPY };
    assert!(Handler::spec(&Copy, &apart, &memory([DType::F32; 3]).env()).is_ok());
    let swiglu = SwigluArgs {
        gate: R0,
        up: R1,
        dst: R2,
        rows: 1,
        cols: 1,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    };
    assert!(refused(&Swiglu, [DType::I32; 3], &swiglu).contains("all must hold one of bf16, fp16, fp32"));
    let scale = ScaleArgs {
        src: R0,
        dst: R2,
        factor: 1.0,
        rows: 1,
        cols: 1,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    };
    assert!(
        refused(&Scale, [DType::F32, DType::F32, DType::F16], &scale)
            .contains("'r0' holds fp32, 'r2' holds fp16")
    );
}

#[test]
fn every_handler_has_its_own_name_and_fits_a_task_record() {
    let world = World::local(1).unwrap();
    let r = Registry::builder().handlers(handlers()).build(&world).unwrap();
    let names: Vec<_> = r.handlers().iter().map(|h| h.name()).collect();
    assert_eq!(names, ["add", "cast", "copy", "gemm", "nop", "scale", "swiglu"]);
    for h in r.handlers() {
        let (name, fields) = h.abi();
        let end = fields.iter().map(|f| f.offset + f.bytes).max().unwrap();
        assert!(end <= Limits::ARG_BYTES, "{name}");
        assert_eq!((h.stream(), h.carrier()), (Stream::Compute, Carrier::Frame));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// What a handler accepts and what lies inside its regions runs; anything else is refused in words.
    #[test]
    fn any_arguments_run_or_are_refused(
        bytes in proptest::collection::vec(any::<u8>(), Limits::ARG_BYTES),
        dtypes in proptest::array::uniform3(0u16..4),
        small in 0u8..4,
        which in 0..handlers().len(),
    ) {
        let mut args: [u8; Limits::ARG_BYTES] = bytes.try_into().unwrap();
        if small > 0 {
            // Small numbers, so that some of them are legal: of each field only the lowest bits are kept.
            let (_, fields) = handlers()[which].abi();
            for f in fields {
                args[f.offset..f.offset + f.bytes].iter_mut().skip(1).for_each(|b| *b = 0);
                args[f.offset] %= if f.c_type == "u16" && f.name != "rows" && f.name != "cols" { 4 } else { 12 };
            }
        }
        let mut m = Memory::new(dtypes.map(|d| Tensor::zeros(DType::from_code(d).unwrap(), 20, 20)).into());
        let handler = &handlers()[which];
        match handler.spec(&args, &m.env()) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(spec) => {
                prop_assert!(spec.blocks >= 1);
                let inside = |a: &Access| a.rect.fits(m.regions[a.region.index()].extent(Rank(0)));
                // An empty rectangle fits anywhere, but cannot be cut out of a tensor.
                if spec.accesses.iter().all(|a| inside(a) && !a.rect.is_empty()) {
                    m.run_bytes(&**handler, &args).unwrap();
                }
            }
        }
    }
}

#[test]
fn what_is_too_large_is_refused_at_once() {
    let registry = common::worlds::local(65_536);
    let op = |m, n| AllGatherGemm::new(m, n, 64, DType::Bf16);
    for (op, message, given) in [
        (op(65_536, 64), "too many signals", "65536 ranks"),
        (op(65_536, 8 * 65_536), "too many tasks", "8589869056 tasks, 4294967296 of them tiles"),
        (op(8, 64).plan_kind(Plan::Unfused), "too many signals", "65536 ranks"),
        (op(1 << 40, 1 << 40), "too many tasks", "of them tiles"),
    ] {
        let start = std::time::Instant::now();
        let e = op.plan(&registry).unwrap_err().explain();
        assert!(e.message.contains(message) && e.given.contains(given), "{e:?}");
        assert!(start.elapsed().as_millis() < 1000, "it took {:?}", start.elapsed());
    }
}
