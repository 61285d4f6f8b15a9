//! Which pairs it serves, with what, at what cost; and what a plan is told that needs more.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use mk_core::*;
use mk_rdma::{Ordering, Rdma};
use proptest::prelude::*;

/// `nodes` nodes of `ranks / nodes` ranks and `nics` NICs.
fn registry(nodes: u64, ranks: u64, nics: u32, rdma: Rdma) -> Registry {
    let world = World::of(Topology::uniform(nodes, ranks, nics).unwrap());
    Registry::builder().transport(rdma).build(&world).unwrap()
}

#[test]
fn it_serves_exactly_the_pairs_on_different_nodes() {
    let r = registry(3, 6, 1, Rdma::ordered());
    for from in r.topology().ranks() {
        for to in r.topology().ranks().filter(|&to| to != from) {
            assert_eq!(r.route(from, to, Caps::PUT).is_ok(), from.0 / 2 != to.0 / 2, "{from} to {to}");
        }
    }
}

#[test]
fn it_offers_no_gpu_atomics_and_order_only_where_the_network_keeps_it() {
    let base = Caps::PUT | Caps::GET | Caps::SIGNAL | Caps::REDUCE | Caps::GPU_DIRECT;
    for (rdma, caps) in [
        (Rdma::unordered(), base),
        (Rdma::ordered(), base | Caps::ORDERED),
        (Rdma::new(Ordering::Unordered), base),
    ] {
        let r = registry(2, 2, 1, rdma);
        let route = r.route(Rank(0), Rank(1), Caps::PUT).unwrap();
        assert_eq!(route.caps(), caps);
        assert_eq!(route.link(&Hardware::h200()).ordered, caps.contains(Caps::ORDERED));
    }
}

#[test]
fn nodes_without_a_nic_or_on_another_fabric_are_not_served() {
    let node = |ranks, nics, fabric: &str| NodeSpec {
        name: String::new(),
        ranks,
        nvlink: None,
        nics,
        fabric: fabric.into(),
    };
    // Such a world has an island, and is no world; one node alone with its NICs is.
    assert!(Topology::new(vec![node(1, 1, "red"), node(1, 1, "blue")]).is_err());
    assert!(Topology::new(vec![node(1, 1, ""), node(1, 0, "")]).is_err());
    let alone = Topology::new(vec![node(2, 2, "red")]).unwrap();
    assert_eq!(Rdma::ordered().caps(&alone, Rank(0), Rank(1)), Caps::empty());
    assert_eq!(Rdma::ordered().caps(&alone, Rank(0), Rank(7)), Caps::empty());
}

#[test]
fn ranks_that_share_a_nic_share_its_ports() {
    let r = registry(2, 8, 2, Rdma::ordered());
    let hw = Hardware::h200();
    let link = |from, to| r.route(Rank(from), Rank(to), Caps::PUT).unwrap().link(&hw);
    let one = link(0, 4);
    assert_eq!(
        (one.latency_ns, one.egress.gb_per_s, one.ingress.gb_per_s),
        (hw.nic_latency_ns, hw.nic_gb_per_s, hw.nic_gb_per_s)
    );
    // Ranks 0 and 1 share the first NIC of their node, 2 and 3 the second.
    assert_eq!(one.egress, link(1, 7).egress);
    assert_ne!(one.egress, link(2, 4).egress);
    assert_eq!(one.ingress, link(3, 5).ingress);
    assert_ne!(one.ingress, link(0, 6).ingress);
    // Out and in are two ports, on all four NICs.
    let mut ports: Vec<u32> = [0, 2]
        .iter()
        .flat_map(|&a| [4, 6].map(|b| [link(a, b), link(b, a)]))
        .flatten()
        .flat_map(|l| [l.egress.id, l.ingress.id])
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 8);
}

#[test]
fn handlers_that_raise_words_on_the_peer_are_carried_by_the_transport() {
    let r = registry(2, 2, 1, Rdma::unordered());
    let route = r.route(Rank(0), Rank(1), Caps::PUT).unwrap();
    for (op, name, carrier) in [
        (CommOp::Put, "rdma.put", Carrier::Frame),
        (CommOp::Get, "rdma.get", Carrier::Frame),
        (CommOp::PutSignal, "rdma.put_signal", Carrier::Transport),
        (CommOp::Signal, "rdma.signal", Carrier::Transport),
        (CommOp::Wait, "rdma.wait", Carrier::Frame),
        (CommOp::ReducePut, "rdma.reduce_put", Carrier::Transport),
    ] {
        assert_eq!(route.handler(op).unwrap(), name);
        let (_, handler) = r.handler(name).unwrap();
        assert_eq!((handler.stream(), handler.carrier()), (Stream::Comm, carrier), "{name}");
    }
}

/// Ranks that chose different memory paths misread each other. Here the choice is one for all: what one rank cannot do,
/// nobody does, and a plan that needs it is told so before anything runs.
#[test]
fn regress_nccl_2190_ranks_agree_on_one_path() {
    let full = Rdma::ordered().probe().unwrap();
    for without in 0..4 {
        let world = World::of(Topology::uniform(4, 4, 1).unwrap());
        let offers = (0..4).map(|rank| if rank == without { full - Caps::GPU_DIRECT } else { full });
        let r = Registry::builder().transport(Rdma::ordered()).offers("rdma", offers).build(&world).unwrap();
        for from in r.topology().ranks() {
            for to in r.topology().ranks().filter(|&to| to != from) {
                let staged = r.route(from, to, Caps::PUT | Caps::SIGNAL).unwrap();
                assert_eq!(staged.caps(), full - Caps::GPU_DIRECT, "every pair takes the same path");
                let Err(Error::MissingCapability { need, from: f, to: t, found }) =
                    r.route(from, to, Caps::PUT | Caps::GPU_DIRECT)
                else {
                    panic!("rank {without} has no GPUDirect, so no pair has it")
                };
                assert_eq!((need.as_str(), f, t), ("PUT | GPU_DIRECT", from, to));
                assert!(found.starts_with("rdma: ") && !found.contains("GPU_DIRECT"), "{found}");
            }
        }
    }
}

#[test]
fn order_that_one_rank_cannot_keep_is_kept_by_nobody() {
    let full = Rdma::ordered().probe().unwrap();
    let world = World::of(Topology::uniform(2, 2, 1).unwrap());
    let r = Registry::builder()
        .transport(Rdma::ordered())
        .offers("rdma", [full, full - Caps::ORDERED])
        .build(&world)
        .unwrap();
    let route = r.route(Rank(0), Rank(1), Caps::PUT).unwrap();
    assert!(!route.link(&Hardware::h200()).ordered);
}

#[test]
fn the_builder_refuses_words_that_a_nic_cannot_write_in_order() {
    // Two lanes' streams that raise one Set word: whose value would stand?
    let r = registry(2, 2, 1, Rdma::unordered());
    let mut b = ProgramBuilder::new("two writers", &r);
    let word = b.signal("word", SignalKind::Set, 1).unwrap();
    let (op, label) = (b.op("rdma.signal").unwrap(), b.label("raise"));
    for lane in 0..2 {
        let t = b.task(Rank(0), Queue::Lane(Lane(lane)), op, label, &SyncArgs { peer: Rank(1) }).unwrap();
        b.post(t, PostTo::done(Rank(1), word, 0)).unwrap();
    }
    assert!(b.finish().unwrap_err().to_string().contains("more than one writing stream"));
}

#[test]
fn a_reduce_put_reads_what_is_there_adds_and_writes_it_back() {
    let r = registry(2, 2, 1, Rdma::unordered());
    let regions = [DType::F16; 2].map(|d| Region::heap("x", d, Shape::Uniform([2, 8])));
    let args = CopyArgs {
        src: RegionId(0),
        dst: RegionId(1),
        peer: Rank(1),
        units: 1,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
        rows: 2,
        cols: 8,
    };
    let (_, handler) = r.handler("rdma.reduce_put").unwrap();
    let env = Env { regions: &regions, rank: Rank(0), ranks: 2 };
    let spec = handler.spec(&args.to_bytes(), &env).unwrap();
    assert_eq!(
        spec.accesses.iter().map(|a| (a.rank.0, a.mode)).collect::<Vec<_>>(),
        [(0, Mode::Read), (1, Mode::Update)]
    );
    let view = |x: f32| {
        let t = Tensor::from_f32(DType::F16, 2, 8, &[x; 16]);
        View { dtype: t.dtype, rows: 2, cols: 8, bytes: t.bytes }
    };
    // 2048 + 3 lies half way between the fp16 numbers 2050 and 2052; the even one is 2052.
    let mut views = [view(2048.0), view(3.0)];
    handler.model(&args.to_bytes(), Step::Block(0), &mut Views::new(&mut views)).unwrap();
    assert_eq!(views[1], view(2052.0));
    assert_eq!(views[0], view(2048.0));
}

proptest! {
    #[test]
    fn any_arguments_are_accepted_or_refused_in_words(head: [u8; 32], tail: [u8; 16], rank in 0u16..3) {
        let mut args = [0; Limits::ARG_BYTES];
        args[..32].copy_from_slice(&head);
        args[32..].copy_from_slice(&tail);
        for i in [0, 2, 4] {
            if head[31] >> i & 1 == 0 { args[i] %= 3; args[i + 1] = 0; }
        }
        let regions = ["x", "y", "z"].map(|name| Region::heap(name, DType::Bf16, Shape::Uniform([8, 8])));
        let env = Env { regions: &regions, rank: Rank(rank), ranks: 3 };
        for (_, handler) in Rdma::ordered().handlers() {
            match handler.spec(&args, &env) {
                Ok(spec) => prop_assert!(spec.blocks >= 1),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
