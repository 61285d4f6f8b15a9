//! What the sessions load.

use mk_compute::{AllGatherGemm, Gather, Nop, NopArgs, Plan};
use mk_core::*;

/// Programs of our own on some ranks of one node.
pub(crate) fn registry(ranks: u64) -> Registry {
    let builder = Registry::builder().transport(mk_nvlink::NvLink::new()).handlers(mk_compute::handlers());
    builder.build(&World::local(ranks).unwrap()).unwrap()
}

/// A GPU on which whatever is planned here fits: what does not fit is the session's to say.
fn large() -> Hardware {
    Hardware { sms: 1024, ..Hardware::h200() }
}

/// A fused product, with regions on the symmetric heap and tensors of the caller's.
pub(crate) fn product(registry: &Registry) -> Verified {
    let op = AllGatherGemm::new(64, 64, 64, DType::Bf16).plan_kind(Plan::Fused).gather(Gather::Push).lanes(2);
    op.plan(registry).unwrap().verify(registry, &large()).unwrap()
}

/// Its tensors.
pub(crate) fn tensors(program: &Verified) -> Bindings {
    let mut bindings = Bindings::new();
    let program = program.program();
    for rank in (0..program.ranks).map(|r| Rank(r as u16)) {
        for region in program.regions.iter().filter(|r| r.io == Io::Input) {
            let [rows, cols] = region.extent(rank);
            bindings.set(rank, &region.name, Tensor::zeros(region.dtype, rows, cols));
        }
    }
    bindings
}

/// Nothing, on so many lanes.
pub(crate) fn lanes(registry: &Registry, lanes: u16) -> Verified {
    let mut b = ProgramBuilder::new("lanes", registry);
    let (nop, label) = (b.op(Nop::NAME).unwrap(), b.label("nothing"));
    for lane in 0..lanes {
        b.task(Rank(0), Queue::Lane(Lane(lane)), nop, label, &NopArgs { tag: 0 }).unwrap();
    }
    b.finish().unwrap().verify(registry, &large()).unwrap()
}
