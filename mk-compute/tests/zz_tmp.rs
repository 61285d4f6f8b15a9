use mk_compute::*; use mk_core::*; use mk_sim::{Simulator, Checks};
#[test] fn timing() { let r = Registry::builder().transport(mk_nvlink::NvLink::new()).handlers(handlers()).build(&World::local(8).unwrap()).unwrap();
 for [m,n,k] in [[1024u64,1024,1024],[8192,8192,8192],[8192,28672,4096],[16384,49152,6144],[32768,57344,8192]] {
 for p in [Plan::Fused, Plan::Unfused] { let pr = AllGatherGemm::new(m,n,k, DType::Bf16).plan_kind(p).plan(&r).unwrap().verify(&r,&Hardware::h200()).unwrap();
 let mut s=Simulator::builder(&r).mode(mk_sim::Mode::Timing).checks(Checks::none()).build(); let t=std::time::Instant::now(); s.run(&pr,&Bindings::new()).unwrap(); let t1=s.report().time_ns; println!("{m}x{n}x{k} {p}: {:.1} us sim, {} tasks in {:?}; ideal gemm {:.1} us; link {:.1} us", t1 as f64/1e3, s.report().tasks, t.elapsed(), 2.0*(m*n*k) as f64/8.0/700e3/1e3, (m*k*2) as f64*7.0/8.0/350.0/1e3); } } }
