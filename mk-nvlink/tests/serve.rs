//! Which pairs it serves, with what, at what cost.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use mk_core::*;
use mk_nvlink::NvLink;
use proptest::prelude::*;

fn registry(topology: Topology, nvlink: NvLink) -> Registry {
    Registry::builder().transport(nvlink).build(&World::of(topology)).unwrap()
}

/// Two nodes of four; the first node's GPUs are mapped in pairs.
fn pairs_and_a_whole_node() -> Topology {
    let node = |nvlink| NodeSpec { name: String::new(), ranks: 4, nvlink, nics: 1, fabric: String::new() };
    Topology::new(vec![node(Some(vec![vec![0, 1], vec![2, 3]])), node(None)]).unwrap()
}

#[test]
fn a_mapped_pair_can_do_everything_but_multicast() {
    let r = registry(Topology::single_node(2).unwrap(), NvLink::new());
    let all = Caps::PUT | Caps::GET | Caps::SIGNAL | Caps::ATOMIC_ADD | Caps::REDUCE | Caps::ORDERED;
    assert_eq!(r.route(Rank(0), Rank(1), Caps::PUT).unwrap().caps(), all);
    assert!(matches!(r.route(Rank(0), Rank(1), Caps::MULTICAST), Err(Error::MissingCapability { .. })));
    let r = registry(Topology::single_node(2).unwrap(), NvLink::new().multicast(true));
    assert_eq!(r.route(Rank(1), Rank(0), Caps::MULTICAST).unwrap().caps(), all | Caps::MULTICAST);
}

#[test]
fn it_serves_exactly_the_mapped_pairs() {
    let r = registry(pairs_and_a_whole_node(), NvLink::new());
    for from in r.topology().ranks() {
        for to in r.topology().ranks().filter(|&to| to != from) {
            let mapped = matches!((from.0.min(to.0), from.0.max(to.0)), (0, 1) | (2, 3) | (4.., 4..));
            let route = r.route(from, to, Caps::PUT);
            assert_eq!(route.is_ok(), mapped, "{from} to {to}");
            if let Err(error) = route {
                assert_eq!(
                    error.to_string(),
                    format!("no transport offers PUT from {from} to {to} (found: nvlink: nothing)")
                );
            }
        }
    }
}

#[test]
fn a_rank_outside_the_world_is_not_served() {
    let topology = Topology::single_node(2).unwrap();
    assert_eq!(NvLink::new().caps(&topology, Rank(0), Rank(2)), Caps::empty());
    assert_eq!(NvLink::new().caps(&topology, Rank(u16::MAX), Rank(0)), Caps::empty());
}

#[test]
fn capabilities_are_those_that_all_ranks_have() {
    let full = NvLink::new().multicast(true).probe().unwrap();
    let r = Registry::builder()
        .transport(NvLink::new().multicast(true))
        .offers("nvlink", [full, full - Caps::MULTICAST])
        .build(&World::local(2).unwrap())
        .unwrap();
    let route = r.route(Rank(0), Rank(1), Caps::PUT).unwrap();
    assert_eq!(route.caps(), full - Caps::MULTICAST);
}

#[test]
fn traffic_shares_the_ports_of_its_two_gpus_only() {
    let (nvlink, topology, hw) = (NvLink::new(), Topology::single_node(4).unwrap(), Hardware::h200());
    let link = |from, to| nvlink.link(&topology, &hw, Rank(from), Rank(to));
    let one = link(0, 1);
    assert_eq!((one.latency_ns, one.ordered), (hw.nvlink_latency_ns, true));
    assert_eq!([one.egress.gb_per_s, one.ingress.gb_per_s], [hw.nvlink_gb_per_s; 2]);
    assert_eq!(one.egress, link(0, 2).egress);
    assert_eq!(one.ingress, link(3, 1).ingress);
    // No two others are one port: 4 GPUs have 8.
    let mut ports: Vec<u32> =
        (0..4).flat_map(|r| [link(r, (r + 1) % 4).egress.id, link((r + 1) % 4, r).ingress.id]).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 8);
}

#[test]
fn every_operation_has_a_handler_that_the_frame_posts_for() {
    let r = registry(Topology::single_node(2).unwrap(), NvLink::new());
    let route = r.route(Rank(0), Rank(1), Caps::PUT).unwrap();
    let ops = [CommOp::Put, CommOp::Get, CommOp::PutSignal, CommOp::Signal, CommOp::Wait, CommOp::ReducePut];
    let names = ["put", "get", "put_signal", "signal", "wait", "reduce_put"].map(|n| format!("nvlink.{n}"));
    for (op, name) in ops.into_iter().zip(names) {
        assert_eq!(route.handler(op).unwrap(), name);
        let (opcode, handler) = r.handler(&name).unwrap();
        assert_eq!((handler.stream(), handler.carrier()), (Stream::Comm, Carrier::Frame));
        assert!(r.is_transports(opcode));
    }
}

proptest! {
    #[test]
    fn any_arguments_are_accepted_or_refused_in_words(bytes: [u8; 32], tail: [u8; 16], dtypes: [bool; 3], rank in 0u16..3) {
        let mut args = [0; Limits::ARG_BYTES];
        args[..32].copy_from_slice(&bytes);
        args[32..].copy_from_slice(&tail);
        // Half of the ids name something that exists.
        for (i, byte) in [(0, 1), (2, 3), (4, 5)] {
            if bytes[31] >> i & 1 == 0 { args[i] %= 3; args[byte] = 0; }
        }
        let dtype = |wide| if wide { DType::F32 } else { DType::Bf16 };
        let region = |i: usize| Region::heap(["x", "y", "z"][i], dtype(dtypes[i]), Shape::Uniform([8, 8]));
        let regions = [0, 1, 2].map(region);
        let env = Env { regions: &regions, rank: Rank(rank), ranks: 3 };
        for (op, handler) in NvLink::new().handlers() {
            let copies = !matches!(op, CommOp::Signal | CommOp::Wait);
            match handler.spec(&args, &env) {
                Ok(spec) => {
                    prop_assert_eq!(spec.accesses.len(), if copies { 2 } else { 0 });
                    prop_assert!(spec.blocks >= 1);
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
