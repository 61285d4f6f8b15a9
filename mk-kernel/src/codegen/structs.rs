//! `mk/abi.cuh`: types, limits, codes, and structs with an assertion for each offset.

use crate::Error;
use crate::abi::{self, FaultReason, Geometry, MapKind, Role};
use crate::layout::{CCodes, CField, CStruct, Layout};
use mk_core::{
    CopyArgs, DType, DeviceAbi, Field, Limits, Post, PostAt, Registry, SignalKind, Stream, SyncArgs, Task,
    Wait, WaitAt,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Alignment of the widest type that may stand in an argument struct.
const MAX_ALIGN: usize = 8;

/// The whole header.
pub(super) fn abi(registry: &Registry) -> Result<String, Error> {
    let mut t = String::new();
    t.push_str(HEAD);
    constants(&mut t);
    for codes in [Role::codes(), FaultReason::codes(), MapKind::codes()] {
        named_codes(&mut t, &codes);
    }
    t.push_str("\n// ---- records ----\n\n");
    for s in shared() {
        let _ = writeln!(t, "struct {};", s.name);
    }
    for s in shared() {
        structure(&mut t, &s);
    }
    t.push_str("\n// ---- arguments of the handlers, at Task::args ----\n");
    for (name, (fields, users)) in arguments(registry)? {
        arguments_struct(&mut t, name, fields, &users);
    }
    t.push_str("\n}  // namespace mk\n#undef MK_OFFSET\n");
    Ok(t)
}

const HEAD: &str = "\
// Generated from the Rust types: do not edit. What host and kernel share.
#pragma once

namespace mk {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;

#ifdef __CUDACC_RTC__
#define MK_OFFSET(S, field) __INTADDR__(&((S*)0)->field)  // NVRTC has no offsetof without a header
#else
#define MK_OFFSET(S, field) __builtin_offsetof(S, field)
#endif
";

/// The structs that every kernel has, in an order in which C can read them.
fn shared() -> [CStruct; 16] {
    [
        Wait::layout(),
        Post::layout(),
        Task::layout(),
        abi::TensorMap::layout(),
        abi::StreamRange::layout(),
        abi::RegionInfo::layout(),
        abi::Bounds::layout(),
        abi::Fault::layout(),
        abi::TraceEvent::layout(),
        abi::Outcome::layout(),
        abi::Admission::layout(),
        abi::Params::layout(),
        abi::Launch::layout(),
        abi::Command::layout(),
        abi::Bell::layout(),
        abi::Resident::layout(),
    ]
}

fn constants(t: &mut String) {
    let limits = [
        ("WAITS", Limits::WAITS as u64, "waits of a task"),
        ("POSTS", Limits::POSTS as u64, "posts of a task"),
        ("ARG_BYTES", Limits::ARG_BYTES as u64, "bytes of a task's arguments"),
        ("MAX_DEPTH", u64::from(Limits::DEPTH), "rotating copies of a region"),
        ("MAX_HANDLERS", Limits::HANDLERS, "handlers of a kernel"),
        ("CLOCKS", abi::CLOCKS as u64, "epochs that a program counts by"),
        ("LAUNCH_RANKS", abi::LAUNCH_RANKS as u64, "ranks of one launch"),
        ("COMMANDS", abi::COMMANDS as u64, "commands that wait for a resident kernel"),
    ];
    t.push_str("\n// ---- limits ----\n");
    for (name, value, what) in limits {
        constant(t, name, value, what);
    }
    t.push_str("\n// ---- the shape of a block ----\n");
    for (name, value, what) in Geometry::ALL {
        constant(t, name, value, what);
    }
    t.push_str("\n// ---- codes in a task record ----\n");
    constant(t, "WAIT_AT_START", WaitAt::Start as u64, "all words, before the first byte is touched");
    constant(t, "WAIT_AT_BLOCK", WaitAt::Block as u64, "word j before block j * every");
    constant(t, "WAIT_AT_STORE", WaitAt::Store as u64, "all words, before the first byte is stored");
    constant(t, "POST_AT_LOADED", PostAt::Loaded as u64, "all reads are done");
    constant(
        t,
        "POST_AT_BLOCK",
        PostAt::Block as u64,
        "word j after block (j + 1) * every - 1, or the last, is visible",
    );
    constant(t, "POST_AT_DONE", PostAt::Done as u64, "all writes are visible");
    constant(t, "SIGNAL_ADD", SignalKind::Add as u64, "each post adds 1");
    constant(t, "SIGNAL_SET", SignalKind::Set as u64, "one writer, absolute value");
    constant(t, "SIGNAL_PACKET", SignalKind::Packet as u64, "the flag travels inside the data");
    for (name, value, what) in abi::TaskFlags::ALL {
        constant(t, name, value.into(), what);
    }
    t.push_str("\n// ---- codes elsewhere ----\n");
    for d in DType::ALL {
        let name = match d {
            DType::Bf16 => "DTYPE_BF16",
            DType::F16 => "DTYPE_F16",
            DType::F32 => "DTYPE_F32",
            DType::I32 => "DTYPE_I32",
        };
        constant(t, name, d as u64, &d.to_string());
    }
    constant(t, "STREAM_COMPUTE", Stream::Compute as u64, "load, math and store warps");
    constant(t, "STREAM_COMM", Stream::Comm as u64, "the comm warp");
    constant(t, "STREAMS", abi::STREAMS as u64, "streams of a lane");
}

fn constant(t: &mut String, name: &str, value: u64, what: &str) {
    let line = format!("constexpr u32 {name} = {value};");
    let _ = writeln!(t, "{line:<40} // {what}");
}

fn named_codes(t: &mut String, c: &CCodes) {
    let _ = writeln!(t, "\n// {}: {}", c.name, c.doc.join(" ").trim());
    for (name, code, doc) in &c.codes {
        constant(t, name, *code, doc.join(" ").trim());
    }
    // Codes that begin at 0 index arrays: how many there are is of use.
    if c.codes.first().is_some_and(|(_, first, _)| *first == 0) {
        let plural = match c.name {
            "MapKind" => "MAP_KINDS".to_string(),
            name => format!("{}S", name.to_uppercase()),
        };
        constant(t, &plural, c.codes.len() as u64, "how many they are");
    }
}

/// A struct, and what must hold of it.
fn structure(t: &mut String, s: &CStruct) {
    t.push('\n');
    for line in &s.doc {
        let _ = writeln!(t, "//{line}");
    }
    let align = if s.align > MAX_ALIGN { format!("alignas({}) ", s.align) } else { String::new() };
    let _ = writeln!(t, "struct {align}{} {{", s.name);
    members(t, &s.fields, s.bytes);
    t.push_str("};\n");
    assertions(t, s.name, &s.fields, s.bytes);
}

/// The members, with the padding between them spelled out.
fn members(t: &mut String, fields: &[CField], bytes: usize) {
    let (mut at, mut pads) = (0, 0);
    let mut pad = |t: &mut String, from: usize, to: usize| {
        if to > from {
            let _ = writeln!(t, "    u8 pad{pads}[{}];", to - from);
            pads += 1;
        }
    };
    for f in fields {
        pad(t, at, f.offset);
        let len = f.len.map_or(String::new(), |n| format!("[{n}]"));
        let member = format!("{} {}{len};", f.c_type, f.name);
        let doc = f.doc.join(" ");
        if doc.is_empty() {
            let _ = writeln!(t, "    {member}");
        } else {
            let _ = writeln!(t, "    {member:<36} //{doc}");
        }
        at = f.offset + f.bytes;
    }
    pad(t, at, bytes);
}

fn assertions(t: &mut String, name: &str, fields: &[CField], bytes: usize) {
    let _ = writeln!(t, "static_assert(sizeof({name}) == {bytes}, \"{name}\");");
    for f in fields {
        let _ =
            writeln!(t, "static_assert(MK_OFFSET({name}, {0}) == {1}, \"{name}::{0}\");", f.name, f.offset);
    }
}

/// Fields of an argument struct, and the handlers that take it.
type Arguments = BTreeMap<&'static str, (&'static [Field], Vec<String>)>;

/// The argument structs, each once, by name.
fn arguments(registry: &Registry) -> Result<Arguments, Error> {
    let shared: Vec<&str> = shared().iter().map(|s| s.name).collect();
    // The device library copies and synchronises, whichever transports there are.
    let mut structs = Arguments::from([
        (CopyArgs::C_NAME, (CopyArgs::FIELDS, Vec::new())),
        (SyncArgs::C_NAME, (SyncArgs::FIELDS, Vec::new())),
    ]);
    for h in registry.handlers().iter().filter(|h| h.device().is_some()) {
        let (name, fields) = h.abi();
        let refuse = |message: String, allowed: &str| Error::Handler {
            handler: h.name().into(),
            message,
            allowed: allowed.into(),
        };
        if shared.contains(&name) {
            let message = format!("its argument struct is named {name}, as one of the kernel's own");
            return Err(refuse(message, "a name of its own"));
        }
        let (known, users) = structs.entry(name).or_insert((fields, Vec::new()));
        if *known != fields {
            let other = users.first().map_or("every transport", String::as_str);
            let message = format!("its argument struct {name} has other fields than that of '{other}'");
            return Err(refuse(message, "one struct of each name"));
        }
        users.push(h.name().into());
    }
    Ok(structs)
}

fn arguments_struct(t: &mut String, name: &str, fields: &[Field], users: &[String]) {
    let as_c = |f: &Field| CField {
        name: f.name,
        c_type: f.c_type.into(),
        len: None,
        offset: f.offset,
        bytes: f.bytes,
        doc: if f.is_region { vec![" region"] } else { Vec::new() },
    };
    let fields: Vec<CField> = fields.iter().map(as_c).collect();
    let users = if users.is_empty() { "no handler of this kernel".into() } else { users.join(", ") };
    let _ = writeln!(t, "\n// {users}");
    let _ = writeln!(t, "struct {name} {{");
    // A struct without fields has 1 byte in C++ and none in Rust; nothing of it is read on either side.
    if fields.is_empty() {
        t.push_str("};\n");
        return;
    }
    let align = fields.iter().map(|f| f.bytes).max().unwrap_or(1);
    let end = fields.last().map_or(0, |f| f.offset + f.bytes);
    let bytes = end.next_multiple_of(align);
    members(t, &fields, bytes);
    t.push_str("};\n");
    assertions(t, name, &fields, bytes);
}
