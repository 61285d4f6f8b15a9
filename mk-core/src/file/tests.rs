use crate::fuzz::{FillArgs, registry};
use crate::*;
use proptest::prelude::*;

/// A small generator of numbers below a bound, so that one seed is one program.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Any program that a builder makes: all kinds of regions, signals, queues, waits and posts.
fn random_program(seed: u64) -> (Registry, Program) {
    let d = &mut Dice(seed);
    let ranks = 1 + d.below(4);
    let registry = registry(ranks);
    let mut b =
        ProgramBuilder::new(["plain", "with \"quotes\" and \n a line", "µ"][d.below(3) as usize], &registry);
    let regions: Vec<RegionId> =
        (0..2 + d.below(3)).map(|i| b.region(region(d, i, ranks)).unwrap()).collect();
    let add = b.signal("add", SignalKind::Add, ranks * 4).unwrap();
    let credit = b.shared_signal("credit", SignalKind::Add, 4).unwrap();
    let set = b.signal("set", SignalKind::Set, 200).unwrap();
    let labels = [b.label("tile"), b.label("copy\t1"), b.label("tile")];
    let mut posted_add = Vec::new();
    for i in 0..d.below(40) {
        let (rank, peer) = (Rank(d.below(ranks) as u16), Rank(d.below(ranks) as u16));
        let compute = d.below(2) == 0;
        let queue = if d.below(4) == 0 { Queue::Ticket } else { Queue::Lane(Lane(d.below(3) as u16)) };
        b.lanes(rank, 1 + d.below(3) as u16);
        let label = labels[d.below(3) as usize];
        let dst = regions[d.below(2) as usize];
        let t = if compute {
            let fill = b.op("fill").unwrap();
            b.task(rank, queue, fill, label, &FillArgs { dst, value: d.below(1000) as f32 / 7.0 }).unwrap()
        } else {
            let copy = b.op("copy").unwrap();
            b.task(rank, queue, copy, label, &copy_args(d, peer)).unwrap()
        };
        for _ in 0..d.below(3) {
            match (d.below(3), queue) {
                (0, Queue::Lane(_)) if i < 100 => {
                    // Two words of its own for each post: they have one writer.
                    let at = PostTo::each_block(peer, set, 2 * i, 255);
                    b.post(t, if compute { PostTo::loaded(peer, set, 2 * i) } else { at }).unwrap();
                    break;
                }
                // A task posts to a word once: the second time is refused, and the first one stays.
                (1, _) => drop(b.post(t, PostTo::done(peer, credit, d.below(4)))),
                _ => {
                    let word = d.below(ranks * 4);
                    posted_add.push((peer, word));
                    drop(b.post(t, PostTo::done(peer, add, word)));
                }
            }
        }
        let mine: Vec<u64> = posted_add.iter().filter(|p| p.0 == rank).map(|p| p.1).collect();
        if !mine.is_empty() && d.below(2) == 0 {
            let wait = WaitFor::all(add, mine[d.below(mine.len() as u64) as usize]).lag(d.below(3) as u8);
            let late = if compute { wait.before_store() } else { wait };
            b.wait(t, [wait, wait.each_block(3), late][d.below(3) as usize]).unwrap();
        }
    }
    (registry, b.finish().unwrap())
}

fn region(d: &mut Dice, i: u64, ranks: u64) -> Region {
    let (rows, cols) = (d.below(100), d.below(1 << 33));
    let shape = match d.below(2) {
        0 => Shape::Uniform([rows, cols]),
        _ => Shape::PerRank((0..ranks).map(|r| [rows + r, cols]).collect()),
    };
    let kind = [RegionKind::Heap, RegionKind::Bound, RegionKind::Staging][d.below(3) as usize];
    let io = [Io::Input, Io::Output, Io::InOut, Io::Scratch][d.below(4) as usize];
    // The first two have one type: they are copied into each other.
    let dtype = if i < 2 { DType::Bf16 } else { DType::ALL[d.below(4) as usize] };
    let region = Region::new(&format!("region {i}"), kind, io, dtype, shape).rotating(1 + d.below(8) as u32);
    if d.below(2) == 0 { region.shared() } else { region }
}

fn copy_args(d: &mut Dice, peer: Rank) -> CopyArgs {
    CopyArgs {
        src: RegionId(0),
        dst: RegionId(1),
        peer,
        units: 1 + d.below(4) as u16,
        src_row: d.below(1 << 31) << 20,
        src_col: 0,
        dst_row: 1,
        dst_col: d.below(9),
        rows: d.below(1 << 31) as u32,
        cols: 8,
    }
}

fn file(registry: &Registry, program: &Program) -> Vec<u8> {
    let mut bytes = Vec::new();
    program.write(registry, &mut bytes).unwrap();
    bytes
}

/// Two ranks, one of each kind of thing.
fn small() -> (Registry, Program) {
    let registry = registry(2);
    let mut b = ProgramBuilder::new("small", &registry);
    let a = b.region(Region::input("a", DType::Bf16, Shape::Uniform([4, 64]))).unwrap();
    let heap = Region::heap("got", DType::Bf16, Shape::PerRank(vec![[4, 64], [3, 64]])).rotating(2);
    let got = b.region(heap.shared()).unwrap();
    let arrival = b.signal("arrival", SignalKind::Set, 2).unwrap();
    let credit = b.shared_signal("credit", SignalKind::Add, 1).unwrap();
    let (copy, fill) = (b.op("copy").unwrap(), b.op("fill").unwrap());
    let (send, use_it) = (b.label("send a"), b.label("use it"));
    let args = CopyArgs {
        src: a,
        dst: got,
        peer: Rank(1),
        units: 2,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
        rows: 3,
        cols: 64,
    };
    let put = b.task(Rank(0), Queue::Lane(Lane(0)), copy, send, &args).unwrap();
    b.post(put, PostTo::each_block(Rank(1), arrival, 0, 1)).unwrap();
    b.wait(put, WaitFor::all(credit, 0).lag(1)).unwrap();
    let fill = b.task(Rank(1), Queue::Ticket, fill, use_it, &FillArgs { dst: got, value: -0.5 }).unwrap();
    b.lanes(Rank(1), 1);
    b.wait(fill, WaitFor::all(arrival, 0).count(2).each_block(4)).unwrap();
    b.wait(fill, WaitFor::upto(arrival, 1, put).before_store()).unwrap();
    b.post(fill, PostTo::loaded(Rank(0), credit, 0)).unwrap();
    (registry, b.finish().unwrap())
}

fn said(result: Result<Program, Error>) -> String {
    format!("{:?}", result.expect_err("it is refused").explain())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_program_is_read_as_it_was_written(seed: u64) {
        let (registry, program) = random_program(seed);
        let bytes = file(&registry, &program);
        let again = Program::read(&bytes, &registry).unwrap();
        prop_assert_eq!(&again, &program);
        prop_assert_eq!(again.hash(&registry).unwrap(), program.hash(&registry).unwrap());
        prop_assert_eq!(file(&registry, &again), bytes);
    }

    #[test]
    fn a_body_with_a_changed_byte_is_refused_or_a_sane_program(seed: u64, at: prop::sample::Index, to: u8) {
        let (registry, program) = random_program(seed);
        let bytes = file(&registry, &program);
        let start = bytes.iter().position(|&b| b == b'\n').unwrap() + 1;
        let mut body = bytes[start..].to_vec();
        let at = at.index(body.len());
        body[at] = to;
        fuzz::program_file(&body);
    }
}

#[test]
fn the_format_does_not_change_by_accident() {
    let (registry, program) = small();
    insta::assert_snapshot!(String::from_utf8(file(&registry, &program)).unwrap());
}

#[test]
fn the_hash_is_that_of_the_header() {
    let (registry, program) = small();
    let text = String::from_utf8(file(&registry, &program)).unwrap();
    assert!(text.lines().next().unwrap().contains(&program.hash(&registry).unwrap()));
    let mut other = program.clone();
    other.tasks[0].waits[0].bits = Wait::pack(WaitAt::Start, 2);
    assert_ne!(other.hash(&registry).unwrap(), program.hash(&registry).unwrap());
}

#[test]
fn every_flipped_bit_is_refused() {
    let (registry, program) = small();
    let bytes = file(&registry, &program);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            assert!(
                Program::read(&changed, &registry).is_err(),
                "byte {at}, bit {bit} of\n{}",
                String::from_utf8_lossy(&changed)
            );
        }
    }
}

#[test]
fn every_truncation_and_every_extension_is_refused() {
    let (registry, program) = small();
    let bytes = file(&registry, &program);
    for end in 0..bytes.len() {
        assert!(Program::read(&bytes[..end], &registry).is_err(), "{end} bytes");
        // The same with a header that fits.
        let body = bytes.iter().position(|&b| b == b'\n').unwrap() + 1;
        if end > body {
            assert!(Program::read(&super::with_header(&bytes[body..end]), &registry).is_err(), "{end} bytes");
        }
    }
    assert!(Program::read(&[&bytes[..], b"\n"].concat(), &registry).is_err());
    let body = bytes.iter().position(|&b| b == b'\n').unwrap() + 1;
    let longer = super::with_header(&[&bytes[body..], b"{}\n"].concat());
    assert!(said(Program::read(&longer, &registry)).contains("3 bytes left over"));
}

#[test]
fn a_header_says_what_is_wrong() {
    let (registry, program) = small();
    let text = String::from_utf8(file(&registry, &program)).unwrap();
    let read = |t: &str| Program::read(t.as_bytes(), &registry);
    assert!(said(read("")).contains("mk-program"));
    assert!(said(read("PK\u{3}\u{4}")).contains("this is not one"));
    assert!(said(read(&text.replacen("mk-program", "mk-trace", 1))).contains("this is not one"));
    let newer = said(read(&text.replacen("\"version\":1", "\"version\":2", 1)));
    assert!(newer.contains("version 2") && newer.contains("version 1"), "{newer}");
    // A newer header may have more fields.
    let newer = said(read(&text.replacen("\"version\":1", "\"version\":7,\"new\":0", 1)));
    assert!(newer.contains("version 7"), "{newer}");
    assert!(said(read(&text.replacen("use it", "use me", 1))).contains("checksum"));
    assert!(said(read(&format!("{text}x"))).contains("length"));
    assert!(said(read(&text.replacen("{\"format\"", "{ \"format\"", 1))).contains("damaged"));
}

/// The small file with one piece of text replaced, under a header that fits.
fn edited(from: &str, to: &str) -> Result<Program, Error> {
    let (registry, program) = small();
    let text = String::from_utf8(file(&registry, &program)).unwrap();
    let body = text.split_once('\n').unwrap().1;
    assert!(body.contains(from), "{from} is not in\n{body}");
    Program::read(&super::with_header(body.replacen(from, to, 1).as_bytes()), &registry)
}

#[test]
fn nonsense_behind_a_fitting_header_is_refused_with_its_line() {
    for (from, to, words) in [
        ("copy@2", "copy@3", "copy@3"),
        ("copy@2", "copy@2 ", "no version"),
        ("fill@1", "full@1", "full"),
        ("\"ranks\":2", "\"ranks\":0", "ranks"),
        ("\"ranks\":2", "\"ranks\":8589934592", "line 2"),
        ("\"ranks\":2", "\"ranks\":3", "lanes"),
        ("\"lanes\":[1,1]", "\"lanes\":[1,2000]", "lanes"),
        ("\"lanes\":[1,1]", "\"lanes\":[0,1]", "lane"),
        ("\"regions\":2", "\"regions\":3", "line 5"),
        ("\"regions\":2", "\"regions\":4000000000", "line 5"),
        ("\"streams\":2", "\"streams\":4000000000", "line 11"),
        ("\"streams\":2", "\"streams\":1", "left over"),
        ("\"tasks\":2", "\"tasks\":4000000000", "tasks"),
        ("\"name\":\"got\"", "\"name\":\"a\"", "one name"),
        ("\"uniform\":[4,64]", "\"uniform\":[4,140737488355328]", "too large"),
        ("\"per_rank\":[[4,64],[3,64]]", "\"per_rank\":[[4,64]]", "1 ranks"),
        ("\"depth\":2", "\"depth\":9", "copies"),
        ("\"first\":2", "\"first\":1", "share words"),
        ("\"words\":2", "\"words\":4294967295", "words"),
        ("\"queue\":{\"lane\":0}", "\"queue\":{\"lane\":1}", "lane"),
        ("\"rank\":1,\"queue\":\"ticket\"", "\"rank\":2,\"queue\":\"ticket\"", "lane"),
        ("{\"stream\":\"comm\"", "{\"stream\":\"compute\"", "wrong stream"),
        ("\"op\":\"copy\"", "\"op\":\"paste\"", "line 8: unknown handler 'paste'"),
        ("\"label\":\"send a\"", "\"label\":\"send b\"", "send b"),
        ("\"label\":\"send a\"", "\"label\":9", "label 9"),
        ("\"label\":\"send a\"", "\"label\":1", "canonical"),
        ("\"signal\":\"credit\",\"word\":0", "\"signal\":\"debit\",\"word\":0", "debit"),
        ("\"signal\":\"credit\",\"word\":0", "\"signal\":\"credit\",\"word\":1", "credit"),
        ("\"words\":2,\"at\":\"block\"", "\"words\":3,\"at\":\"block\"", "not all in signal"),
        ("\"words\":2,\"at\":\"block\"", "\"words\":0,\"at\":\"block\"", "at least 1"),
        ("\"lag\":1", "\"lag\":16", "at most 15"),
        ("\"lag\":1", "\"lag\":0", "canonical"),
        ("\"lag\":1", "\"lag\":1,\"lag\":1", "lag"),
        ("\"lag\":1", "\"lag\":1,\"lug\":1", "lug"),
        ("\"posts\":[{\"rank\":1", "\"posts\":[{\"rank\":2", "leaves the world"),
        ("\"units\":2", "\"units\":-2", "line 8"),
        ("\"units\":2", "\"units\":2.0", "line 8"),
        ("\"units\":2", "\"onits\":2", "onits"),
        ("\"value\":-0.5", "\"value\":null", "line 10"),
        ("\"value\":-0.5", "\"value\":1e999", "line 10"),
        ("\"value\":-0.5", "\"value\":-0.50", "canonical"),
    ] {
        let message = said(edited(from, to));
        assert!(message.contains(words), "{from} -> {to}: {message} does not say '{words}'");
    }
}

#[test]
fn a_file_that_promises_more_than_it_has_costs_no_memory() {
    // 4 * 10^9 tasks would be 512 GB of records.
    assert!(edited("\"tasks\":1}", "\"tasks\":4000000000}").is_err());
}

#[test]
fn what_a_file_cannot_hold_is_not_written() {
    let (registry, program) = small();
    let change = |f: &dyn Fn(&mut Program)| {
        let mut p = program.clone();
        f(&mut p);
        let e = p.write(&registry, &mut Vec::new()).expect_err("it is refused").explain();
        format!("{} {}", e.message, e.given)
    };
    for (message, words) in [
        (change(&|p| p.tasks[0].flags = 1), "send a"),
        (change(&|p| p.tasks[1].args[47] = 1), "no field"),
        (change(&|p| p.tasks[1].args[4..8].copy_from_slice(&f32::NAN.to_le_bytes())), "finite"),
        (change(&|p| p.tasks[0].waits[0].word = 77), "no signal has word 77"),
        (change(&|p| p.tasks[0].waits[0].bits = 3), "without a meaning"),
        (change(&|p| p.tasks[0].waits.swap(0, 1)), "gap"),
        (change(&|p| p.tasks[0].op = OpId(7)), "no handler"),
        (change(&|p| p.tasks[0].label = 7), "no label 7"),
        (change(&|p| p.streams[1].first = 0), "follow"),
        (change(&|p| p.streams.swap(0, 1)), "order"),
        (change(&|p| p.streams[1].len = 2), "more tasks"),
        (change(&|p| p.streams[1].len = 0), "no stream"),
        (change(&|p| p.lanes.push(1)), "lanes"),
        (change(&|p| p.handlers[0].version = 9), "another version"),
    ] {
        assert!(message.contains(words), "'{message}' does not say '{words}'");
    }
}
