//! Planted faults: each is found, by the right detector, with the right names; without that detector it is not.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/ring.rs"]
mod ring;

#[path = "common/mod.rs"]
mod common;

use mk_core::*;
use mk_rdma::Ordering;
use mk_sim::{Checks, Faults, Simulator};
use ring::{gather, messages, nodes, rows, shift};

fn fault(result: Result<impl std::fmt::Debug, RunError>) -> Fault {
    match result {
        Err(RunError::Fault(fault)) => *fault,
        other => panic!("no fault: {other:?}"),
    }
}

fn without(off: fn(&mut Checks)) -> Checks {
    let mut checks = Checks::all();
    off(&mut checks);
    checks
}

fn find(program: &Program, task: &str) -> usize {
    let named = |i: &usize| program.task_name(TaskId(*i as u32)).contains(task);
    (0..program.tasks.len()).find(named).unwrap()
}

#[test]
fn a_missing_wait_is_a_race() {
    let registry = common::registry(2);
    let mut program = gather(&registry);
    let take = find(&program, "double (rank 1");
    program.tasks[take].waits = Default::default();
    for seed in 0..20 {
        let build = |checks| Simulator::builder(&registry).checks(checks).schedule_seed(seed).build();
        let found = fault(build(Checks::all()).run_unproved(&program, &[rows(2, 0)]));
        let Reason::Race { region, first, second } = &found.reason else { panic!("{found}") };
        assert_eq!((region.as_str(), found.rank, found.epoch), ("all", Rank(1), 1));
        let both = format!("{first}, {second}");
        assert!(
            both.contains("double (rank 1") && (both.contains("own row") || both.contains("forward")),
            "{both}"
        );
        assert!(build(without(|c| c.races = false)).run_unproved(&program, &[rows(2, 0)]).is_ok());
    }
}

#[test]
fn a_missing_credit_is_a_race_between_epochs() {
    let registry = common::registry(2);
    let mut program = gather(&registry);
    let lag = |w: &Wait| w.used() && w.lag() > 0;
    for task in &mut program.tasks {
        task.waits.iter_mut().filter(|w| lag(w)).for_each(|w| *w = Wait::default());
    }
    let inputs: Vec<Bindings> = (0..3).map(|e| rows(2, e)).collect();
    let mut sim = Simulator::builder(&registry).build();
    let found = fault(sim.run_unproved(&program, &inputs));
    let Reason::Race { region, first, second } = &found.reason else { panic!("{found}") };
    assert_eq!(region, "all");
    assert!(first.contains("double") && second.contains("forward"), "what reads is overwritten: {found}");
    assert_eq!(found.epoch, 2, "by the next epoch");
    let mut one = Simulator::builder(&registry).build();
    assert!(one.run_unproved(&program, &inputs[..1]).is_ok(), "a single epoch needs no credit");
    let mut blind = Simulator::builder(&registry).checks(without(|c| c.races = false)).build();
    assert!(blind.run_unproved(&program, &inputs).is_ok());
}

#[test]
fn an_order_through_other_tasks_is_an_order() {
    // The credit of `shift` goes from readers to a signal task to the writer: nothing is told directly.
    let registry = nodes(3, Ordering::Unordered);
    let program = shift(&registry, 3, ["rdma.put_signal", "rdma.signal", "scale"]);
    let inputs: Vec<Bindings> = (0..4).map(|e| messages(3, 3, e)).collect();
    let mut sim = Simulator::builder(&registry).build();
    sim.run_unproved(&program, &inputs).unwrap();
    assert_eq!(sim.report().unknown_pairs, 0);
    // 3 ranks x 3 rows: written before read in 4 epochs, read before written in the 3 that follow one.
    assert_eq!(sim.report().ordered_pairs, 9 * (4 + 3));
    // Without its wait, the signal task gives credit too early.
    let mut early = program.clone();
    early.tasks[find(&program, "credit (rank 1")].waits = Default::default();
    let found = fault(Simulator::builder(&registry).build().run_unproved(&early, &inputs));
    let Reason::Race { first, second, .. } = &found.reason else { panic!("{found}") };
    assert!(first.contains("double") && first.contains("rank 1") && second.contains("send"), "{found}");
}

#[test]
fn unwritten_output_is_found() {
    let registry = common::registry(3);
    let mut program = gather(&registry);
    let extra = Region::output("z", DType::F32, Shape::PerRank(vec![[0, 0], [2, 3], [0, 0]]));
    program.regions.push(extra);
    let found = fault(Simulator::builder(&registry).build().run_unproved(&program, &[rows(3, 0)]));
    assert_eq!((found.rank, found.epoch), (Rank(1), 1));
    assert_eq!(found.reason, Reason::Unwritten { region: "z".into(), bytes: "from row 0, column 0".into() });
    let mut blind = Simulator::builder(&registry).checks(without(|c| c.unwritten = false)).build();
    let out = blind.run_unproved(&program, &[rows(3, 0)]).unwrap();
    let z = out[0].get(Rank(1), "z").unwrap();
    assert!(z.to_f32().iter().all(|x| x.is_nan()), "what nobody wrote is poison: {:?}", z.to_f32());
}

#[test]
fn a_gap_in_an_output_is_found_at_its_first_element() {
    let case = common::Case::new(2, [256, 512, 64], 2);
    let mut program = case.op.plan(&case.registry).unwrap();
    // Rank 1's tile of the second row block computes nothing of its last 8 columns.
    let gemm = |i: &usize| program.task_name(TaskId(*i as u32)).contains("tile local (rank 1");
    let tile = (0..program.tasks.len()).find(gemm).unwrap();
    let mut args = mk_compute::GemmArgs::from_bytes(&program.tasks[tile].args);
    let at = (args.c_row, args.col + u64::from(args.cols) - 8);
    args.cols -= 8;
    program.tasks[tile].args = args.to_bytes();
    let found = fault(Simulator::builder(&case.registry).build().run_unproved(&program, &[case.bindings(0)]));
    let bytes = format!("from row {}, column {}", at.0, at.1);
    assert_eq!((found.rank, &found.reason), (Rank(1), &Reason::Unwritten { region: "c".into(), bytes }));
}

#[test]
fn a_lost_post_is_told_from_a_deadlock() {
    let registry = common::registry(2);
    let program = gather(&registry);
    let (mut waited, mut ended) = (0, 0);
    for post in 1..=10 {
        let faults = Faults { lose_post: Some(post), ..Faults::default() };
        let build = |checks| Simulator::builder(&registry).faults(faults.clone()).checks(checks).build();
        let found = fault(build(Checks::all()).run_unproved(&program, &[rows(2, 0)]));
        assert_eq!((&found.reason, found.seen + 1), (&Reason::LostPost, found.expected), "{found}");
        assert!(!found.task.is_empty() && !found.signal.is_empty());
        match build(without(|c| c.posts = false)).run_unproved(&program, &[rows(2, 0)]) {
            // A credit that nobody waits for in a first epoch.
            Ok(_) => ended += 1,
            Err(RunError::Fault(f)) if matches!(f.reason, Reason::Deadlock(_)) => waited += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(waited > 0 && ended > 0, "both happen: {waited}, {ended}");
}

#[test]
fn a_surplus_post_is_found() {
    let registry = common::registry(2);
    let program = gather(&registry);
    for post in 1..=10 {
        let faults = Faults { surplus_post: Some(post), ..Faults::default() };
        // Who waits for a prefix is led astray, too; here the count alone is of interest.
        let checks = without(|c| c.races = false);
        let found = fault(
            Simulator::builder(&registry)
                .faults(faults.clone())
                .checks(checks)
                .build()
                .run_unproved(&program, &[rows(2, 0)]),
        );
        assert_eq!((&found.reason, found.seen), (&Reason::SurplusPost, found.expected + 1), "{found}");
        let blind = Simulator::builder(&registry).faults(faults).checks(Checks::none()).build();
        assert!({ blind }.run_unproved(&program, &[rows(2, 0)]).is_ok());
    }
}

#[test]
fn a_deadlock_is_a_chain_of_tasks() {
    let registry = common::registry(3);
    let mut program = gather(&registry);
    // Nobody sends its own row before it has the row of the rank before it: a circle.
    let mut circle = Vec::new();
    for r in 0..3u16 {
        let own = find(&program, &format!("own row ({}", Rank(r)));
        let before = u32::from((r + 2) % 3);
        program.tasks[own].waits[0] =
            Wait { word: 2 * before, total: 1, upto: 1, count: 1, stride: 1, every: 1, ..Wait::default() };
        circle.push(program.task_name(TaskId(own as u32)));
    }
    for seed in 0..10 {
        let build = |checks| Simulator::builder(&registry).checks(checks).schedule_seed(seed).build();
        let found = fault(build(Checks::all()).run_unproved(&program, &[rows(3, 0)]));
        let Reason::Deadlock(chain) = &found.reason else { panic!("{found}") };
        let text = chain.join("; ");
        assert!(
            text.contains("own row") && text.contains("forward row") && text.contains("arrival["),
            "{text}"
        );
        assert!(text.ends_with("the chain is closed"), "{text}");
        assert!(circle.iter().filter(|name| text.contains(*name)).count() >= 1, "{text}");
        assert!(found.seen < found.expected && !found.task.is_empty());
        let blind = fault(build(without(|c| c.deadlock = false)).run_unproved(&program, &[rows(3, 0)]));
        assert_eq!(blind.reason, Reason::Timeout(5_000_000));
    }
}

#[test]
fn a_wait_for_a_post_that_nobody_makes_ends_the_chain() {
    let registry = common::registry(2);
    let mut program = gather(&registry);
    let take = find(&program, "double (rank 0");
    program.tasks[take].waits[1] =
        Wait { word: 4, total: 9, upto: 9, count: 1, stride: 1, every: 1, ..Wait::default() };
    let found = fault(Simulator::builder(&registry).build().run_unproved(&program, &[rows(2, 0)]));
    let Reason::Deadlock(chain) = &found.reason else { panic!("{found}") };
    assert_eq!(chain.len(), 1);
    assert!(chain[0].starts_with("double (rank 0"), "{chain:?}");
    assert!(
        chain[0].contains("credit[0] of rank 0") && chain[0].ends_with("nobody has a post to make"),
        "{chain:?}"
    );
}

#[test]
fn programs_without_a_meaning_are_input_errors() {
    let registry = common::registry(2);
    let good = gather(&registry);
    let plant = |change: fn(&mut Program)| {
        let mut program = good.clone();
        change(&mut program);
        Simulator::builder(&registry).build().run_unproved(&program, &[rows(2, 0)])
    };
    let changes: [fn(&mut Program); 12] = [
        |p| p.ranks = 3,
        |p| p.lanes[0] = 0,
        |p| p.streams[0].first = 1,
        |p| p.tasks.truncate(3),
        |p| p.tasks[0].op = OpId(9),
        |p| p.tasks[0].args = [0xff; 48],
        |p| p.tasks[1].waits[0] = Wait { word: 99, total: 1, upto: 1, count: 1, every: 1, ..Wait::default() },
        |p| p.tasks[1].waits[0] = Wait { clock: 3, total: 1, upto: 1, count: 1, every: 1, ..Wait::default() },
        |p| p.tasks[0].posts[0].word = u32::MAX,
        |p| p.tasks[0].posts[0].rank = 7,
        |p| p.regions[1].shape = Shape::Uniform([1, 8]),
        |p| p.regions[1].io = Io::Input,
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let error = plant(change).expect_err(&format!("change {i}"));
        assert!(matches!(error, RunError::Input(_)), "change {i}: {error}");
    }
}

/// What a wait happens to see beyond what it waited for is luck, not order.
#[test]
fn a_prefix_orders_only_what_it_waits_for() {
    let registry = common::registry(1);
    let program = |second: bool| {
        let mut b = ProgramBuilder::new("prefix", &registry);
        let shape = |rows| Shape::Uniform([rows, 16]);
        let x = b.region(Region::input("x", DType::F32, shape(1))).unwrap();
        let mid = b.region(Region::heap("mid", DType::F32, shape(2))).unwrap();
        let y = b.region(Region::output("y", DType::F32, shape(1))).unwrap();
        let done = b.signal("done", SignalKind::Add, 1).unwrap();
        let busy = b.region(Region::output("busy", DType::F32, shape(64))).unwrap();
        let op = b.op("scale").unwrap();
        let mut task = |lane, label: &str, src, src_row, dst, dst_row| {
            let (rows, cols, src_col, dst_col) = (1, 16, 0, 0);
            let args = mk_compute::ScaleArgs {
                src,
                dst,
                factor: 2.0,
                rows,
                cols,
                src_row,
                src_col,
                dst_row,
                dst_col,
            };
            let label = b.label(label);
            b.task(Rank(0), Queue::Lane(Lane(lane)), op, label, &args).unwrap()
        };
        let first = task(0, "first", x, 0, mid, 0);
        let other = task(0, "second", x, 0, mid, 1);
        // Its lane is busy until both have long posted.
        (0..64).for_each(|i| {
            task(1, "busy", x, 0, busy, i);
        });
        let reader = task(1, "reader", mid, u64::from(second), y, 0);
        for t in [first, other] {
            b.post(t, PostTo::done(Rank(0), done, 0)).unwrap();
        }
        b.wait(reader, WaitFor::upto(done, 0, first)).unwrap();
        b.finish().unwrap()
    };
    let run = |second| Simulator::builder(&registry).build().run_unproved(&program(second), &[rows(1, 0)]);
    assert!(run(false).is_ok());
    let found = fault(run(true));
    let Reason::Race { first, second, .. } = &found.reason else { panic!("{found}") };
    assert!(first.starts_with("second") && second.starts_with("reader"), "{found}");
}
