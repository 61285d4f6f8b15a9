//! What may not be registered, and in which order things are included.

use super::*;
use mk_core::{ArgError, Device, Env, Handler, Rank, Spec, Step, Stream, Views, World, device_args};

device_args! {
    struct OneArgs { a: u16, b: u64 }
}
device_args! {
    struct Task { a: u16 }
}
mod other {
    mk_core::device_args! {
        pub struct OneArgs { pub a: u16, pub b: u32 }
    }
}

const GOOD: Device = Device {
    file: "a/one.cuh",
    source: "// one\n",
    name: "One",
    pages: 3,
    math_registers: 216,
    min_arch: 90,
};

/// A handler of this name and arguments, with this CUDA side.
macro_rules! handler {
    ($name:ident, $id:literal, $args:ty) => {
        struct $name(Option<Device>);
        impl Handler for $name {
            type Args = $args;
            const NAME: &'static str = $id;
            const VERSION: u32 = 1;
            const STREAM: Stream = Stream::Compute;
            fn spec(&self, _: &$args, _: &Env<'_>) -> Result<Spec, ArgError> {
                Ok(Spec::new(1))
            }
            fn model(&self, _: &$args, _: Step, _: &mut Views<'_>) {}
            fn device(&self) -> Option<Device> {
                self.0
            }
        }
    };
}
handler!(One, "one", OneArgs);
handler!(Two, "two", OneArgs);
handler!(TwoToo, "TWO", OneArgs);
handler!(Clash, "clash", other::OneArgs);
handler!(Reserved, "reserved", Task);

fn registry(fill: impl FnOnce(mk_core::RegistryBuilder) -> mk_core::RegistryBuilder) -> Registry {
    fill(Registry::builder()).build(&World::local(1).unwrap()).unwrap()
}

fn refused(fill: impl FnOnce(mk_core::RegistryBuilder) -> mk_core::RegistryBuilder) -> (String, String) {
    match Source::of(&registry(fill)) {
        Err(Error::Handler { handler, message, .. }) => (handler, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_handler_says_of_its_cuda_side_is_checked() {
    let cases = [
        (Device { name: "One;", ..GOOD }, "struct is named 'One;'"),
        (Device { name: "", ..GOOD }, "struct is named ''"),
        (Device { name: "my::", ..GOOD }, "struct is named 'my::'"),
        (Device { file: "one.cu", ..GOOD }, "file is named 'one.cu'"),
        (Device { file: "../one.cuh", ..GOOD }, "file is named"),
        (Device { file: "a\".cuh", ..GOOD }, "file is named"),
        (Device { file: "mk/abi.cuh", ..GOOD }, "another text"),
        (Device { pages: 0, ..GOOD }, "0 pages"),
        (Device { pages: 5, ..GOOD }, "5 pages"),
        (Device { math_registers: 232, ..GOOD }, "232 registers"),
    ];
    for (device, says) in cases {
        let (handler, message) = refused(|b| b.handler(One(Some(device))));
        assert_eq!(handler, "one");
        assert!(message.contains(says), "{message}");
    }
    Source::of(&registry(|b| b.handler(One(Some(GOOD))))).unwrap();
}

#[test]
fn names_that_would_meet_in_c_are_refused() {
    let both = |message: (String, String)| format!("{}: {}", message.0, message.1);
    let says = both(refused(|b| b.handler(Clash(Some(GOOD))).handler(One(Some(GOOD)))));
    assert_eq!(says, "one: its argument struct OneArgs has other fields than that of 'clash'");
    let says = both(refused(|b| b.handler(Reserved(Some(GOOD)))));
    assert!(says.contains("named Task, as one of the kernel's own"), "{says}");
    let says = both(refused(|b| b.handler(Two(Some(GOOD))).handler(TwoToo(Some(GOOD)))));
    assert!(says.contains("OP_TWO"), "{says}");
    let changed = Device { source: "// changed\n", ..GOOD };
    let says = both(refused(|b| b.handler(One(Some(GOOD))).handler(Two(Some(changed)))));
    assert!(says.contains("'a/one.cuh' has another text"), "{says}");
}

#[test]
fn a_file_is_included_once_and_opcodes_count_handlers_without_a_cuda_side() {
    let other = Device { name: "my::Two", ..GOOD };
    let r = registry(|b| b.handler(Clash(None)).handler(One(Some(GOOD))).handler(Two(Some(other))));
    let source = Source::of(&r).unwrap();
    let table = source.header(TABLE_HEADER).unwrap();
    assert_eq!(table.matches("#include \"a/one.cuh\"").count(), 1);
    assert!(table.contains("    X(1, mk::One) \\\n    X(2, my::Two)\n"), "{table}");
    assert_eq!(source.without_device, ["clash@1"]);
    let count = |name: &str| source.headers.iter().filter(|h| h.name == name).count();
    assert_eq!(["mk/abi.cuh", "mk/table.cuh", "mk/kernel.cuh", "a/one.cuh"].map(count), [1; 4]);
}

#[test]
fn a_program_that_uses_a_handler_without_a_cuda_side_is_refused_by_its_name() {
    let r = registry(|b| b.handler(One(Some(GOOD))).handler(Two(None)));
    let source = Source::of(&r).unwrap();
    let program = |names: &[&str]| {
        let mut b = mk_core::ProgramBuilder::new("p", &r);
        for name in names {
            let op = b.op(name).unwrap();
            let label = b.label(*name);
            b.task(Rank(0), mk_core::Queue::Lane(mk_core::Lane(0)), op, label, &OneArgs { a: 0, b: 0 })
                .unwrap();
        }
        b.finish().unwrap()
    };
    source.check_program(&program(&["one"])).unwrap();
    let e = source.check_program(&program(&["one", "two"])).unwrap_err();
    assert_eq!(e.to_string(), "program 'p' cannot run on a GPU: the kernel has no two@1");
    assert_eq!(e.explain().allowed, "one@1");
    let mut older = program(&["one"]);
    older.handlers[0].version = 7;
    assert!(source.check_program(&older).unwrap_err().to_string().contains("one@7"));
}
