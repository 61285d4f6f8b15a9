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
