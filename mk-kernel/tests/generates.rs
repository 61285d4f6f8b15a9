//! What is generated: text that people read, the same on every machine.

#![allow(clippy::unwrap_used)]

mod common;

use common::everything;
use mk_core::{
    ArgError, Device, Env, Handler, Rank, RegionId, Registry, Spec, Step, Stream, Views, World, device_args,
};
use mk_kernel::{ABI_HEADER, Source, TABLE_HEADER};

#[test]
fn the_headers_of_this_project_s_handlers() {
    let source = Source::of(&everything()).unwrap();
    insta::assert_snapshot!("abi", source.header(ABI_HEADER).unwrap());
    insta::assert_snapshot!("table", source.header(TABLE_HEADER).unwrap());
    assert_eq!(Source::of(&everything()).unwrap(), source);
}

#[test]
fn the_order_of_registration_does_not_matter() {
    let reversed = Registry::builder()
        .handlers(mk_compute::handlers().into_iter().rev())
        .transport(mk_rdma::Rdma::ordered())
        .transport(mk_nvlink::NvLink::new())
        .build(&World::local(1).unwrap())
        .unwrap();
    assert_eq!(Source::of(&reversed).unwrap(), Source::of(&everything()).unwrap());
}

device_args! {
    /// Fields with gaps between them, and one at the end.
    struct OwnArgs { region: RegionId, wide: u64, peer: Rank, slope: f32, number: i32, small: u16 }
}

/// A handler as a user writes it.
struct Own;

impl Handler for Own {
    type Args = OwnArgs;
    const NAME: &'static str = "my.own-handler";
    const VERSION: u32 = 3;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, _: &OwnArgs, _: &Env<'_>) -> Result<Spec, ArgError> {
        Ok(Spec::new(1))
    }

    fn model(&self, _: &OwnArgs, _: Step, _: &mut Views<'_>) {}

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "my/own.cuh",
            source: "namespace my { struct Own { using Args = mk::OwnArgs; static constexpr mk::u32 pages = 2; }; }\n",
            name: "my::Own",
            pages: 2,
            math_registers: 64,
            min_arch: 90,
        })
    }
}

#[test]
fn a_handler_of_the_user_s_own_is_in_the_table() {
    let registry = Registry::builder().handler(Own).build(&World::local(1).unwrap()).unwrap();
    let source = Source::of(&registry).unwrap();
    let abi = source.header(ABI_HEADER).unwrap();
    let arguments = &abi[abi.find("// ---- arguments").unwrap()..];
    insta::assert_snapshot!("own_arguments", arguments);
    insta::assert_snapshot!("own_table", source.header(TABLE_HEADER).unwrap());
    assert_eq!(source.header("my/own.cuh").unwrap().lines().count(), 1);
}

/// The rows of `x` are scaled into `y`, which its old reader must have read; that reader waits until `x` has been loaded.
fn gated(rows: u64, cols: u64) -> mk_core::Verified {
    use mk_compute::ScaleArgs;
    use mk_core::{
        DType, Hardware, PostTo, ProgramBuilder, Rank, Region, Shape, SignalKind, SyncArgs, WaitFor, deal,
    };
    let registry = Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .handlers(mk_compute::handlers())
        .build(&World::local(2).unwrap())
        .unwrap();
    let mut b = ProgramBuilder::new("gated", &registry);
    let shape = || Shape::PerRank(vec![[rows, cols], [0, 0]]);
    let x = b.region(Region::input("x", DType::Bf16, shape())).unwrap();
    let y = b.region(Region::output("y", DType::Bf16, shape())).unwrap();
    let [loaded, go] = ["loaded", "go"].map(|name| b.signal(name, SignalKind::Add, 1).unwrap());
    let (scale, wait, label) = (b.op("scale").unwrap(), b.op("nvlink.wait").unwrap(), b.label("gated"));
    let args = ScaleArgs {
        src: x,
        dst: y,
        factor: 2.0,
        rows: rows as u32,
        cols: cols as u32,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    };
    let task = b.task(Rank(0), deal(0, 1), scale, label, &args).unwrap();
    b.wait(task, WaitFor::all(go, 0).before_store()).unwrap();
    b.post(task, PostTo::loaded(Rank(1), loaded, 0)).unwrap();
    let peer = b.task(Rank(1), deal(0, 1), wait, label, &SyncArgs { peer: Rank(1) }).unwrap();
    b.wait(peer, WaitFor::all(loaded, 0)).unwrap();
    b.post(peer, PostTo::done(Rank(0), go, 0)).unwrap();
    b.finish().unwrap().verify(&registry, &Hardware::h200()).unwrap()
}

#[test]
fn a_task_that_must_load_all_before_it_stores_fits_into_the_ring_or_is_refused() {
    // A page holds 128 rows of 128 bytes, and the ring 12 pages.
    let fits = gated(12 * 128, 64);
    let source = Source::of(fits.registry()).unwrap();
    source.check(&fits).unwrap();
    let e = source.check(&gated(12 * 128 + 1, 64)).unwrap_err();
    assert!(matches!(&e, mk_kernel::Error::LargerThanRing { pages: 13, .. }), "{e}");
    assert!(e.to_string().contains("gated"), "{e}");
    assert_eq!(e.explain().allowed, "12 pages");
    // A row of 8,200 elements takes two pages.
    source.check(&gated(6, 8_200)).unwrap();
    let e = source.check(&gated(7, 8_200)).unwrap_err();
    assert!(matches!(&e, mk_kernel::Error::LargerThanRing { pages: 14, .. }), "{e}");
}
