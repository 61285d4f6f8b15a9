//! `mk/table.cuh`: includes of the handlers' files, and one X-macro table.

use super::{Header, TableEntry, id};
use crate::abi::Geometry;
use crate::{Error, device};
use mk_core::{Device, HandlerRef, Registry, Stream};
use std::collections::HashMap;
use std::fmt::Write as _;

/// The handlers that have a CUDA side, each checked.
pub(super) fn entries(registry: &Registry) -> Result<Vec<TableEntry>, Error> {
    let mut entries = Vec::new();
    for (opcode, h) in registry.handlers().iter().enumerate() {
        let Some(d) = h.device() else { continue };
        check(h, &d)?;
        entries.push(TableEntry {
            opcode: opcode as u16,
            name: h.name().into(),
            version: h.version(),
            stream: h.stream(),
            device_struct: qualified(d.name),
            file: d.file.into(),
            pages: d.pages,
            min_arch: d.min_arch,
        });
    }
    Ok(entries)
}

/// A struct without a namespace is the project's own.
fn qualified(name: &str) -> String {
    if name.contains("::") { name.into() } else { format!("mk::{name}") }
}

fn check(h: &HandlerRef, d: &Device) -> Result<(), Error> {
    let refuse =
        |message: String, allowed: String| Err(Error::Handler { handler: h.name().into(), message, allowed });
    if !d.name.split("::").all(is_identifier) {
        return refuse(
            format!("its struct is named '{}'", d.name),
            "a name of C++, such as Gemm or my::Gemm".into(),
        );
    }
    if !is_include(d.file) {
        return refuse(
            format!("its file is named '{}'", d.file),
            "a relative path of letters, digits, '_', '-', '.' and '/', that ends in .cuh".into(),
        );
    }
    let ring = Geometry::RING_PAGES;
    let divides = d.pages != 0 && ring.is_multiple_of(u32::from(d.pages));
    if h.stream() == Stream::Compute && !divides {
        let allowed: Vec<String> =
            (1..=ring).filter(|n| ring.is_multiple_of(*n)).map(|n| n.to_string()).collect();
        return refuse(format!("a group of {} pages", d.pages), allowed.join(", "));
    }
    let registers = Geometry::MATH_REGISTERS;
    if u32::from(d.math_registers) > registers {
        return refuse(
            format!("{} registers for a math thread", d.math_registers),
            format!("at most {registers}"),
        );
    }
    Ok(())
}

fn is_identifier(s: &str) -> bool {
    let mut chars = s.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn is_include(s: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    s.ends_with(".cuh") && s.chars().all(legal) && !s.starts_with('/') && !s.split('/').any(|p| p == "..")
}

/// Adds the handlers' files to the headers, each once.
pub(super) fn add_files(registry: &Registry, headers: &mut Vec<Header>) -> Result<(), Error> {
    for h in registry.handlers() {
        let Some(d) = h.device() else { continue };
        match headers.iter().find(|known| known.name == d.file) {
            None => headers.push(Header { name: d.file.into(), text: d.source.into() }),
            Some(known) if known.text == d.source => {}
            Some(_) => {
                return Err(Error::Handler {
                    handler: h.name().into(),
                    message: format!(
                        "its file '{}' has another text than the one that has this name already",
                        d.file
                    ),
                    allowed: "a name of its own for each file".into(),
                });
            }
        }
    }
    Ok(())
}

/// The whole header.
pub(super) fn text(registry: &Registry, entries: &[TableEntry], without: &[String]) -> Result<String, Error> {
    let mut t = String::from(
        "// Generated from the registered handlers: do not edit.\n#pragma once\n#include \"mk/abi.cuh\"\n",
    );
    let mut included: Vec<&str> = device::LIBRARY.iter().map(|(name, _)| *name).collect();
    for e in entries {
        if !included.contains(&e.file.as_str()) {
            let _ = writeln!(t, "#include \"{}\"", e.file);
            included.push(&e.file);
        }
    }
    opcodes(&mut t, entries, without)?;
    t.push_str("\n// X(opcode, struct), in the order of opcodes.\n");
    let of = |stream| entries.iter().filter(move |e| e.stream == stream);
    list(&mut t, "MK_COMPUTE_HANDLERS", of(Stream::Compute));
    list(&mut t, "MK_COMM_HANDLERS", of(Stream::Comm));
    t.push_str("#define MK_HANDLERS(X) MK_COMPUTE_HANDLERS(X) MK_COMM_HANDLERS(X)\n");
    agreement(&mut t, registry, entries);
    Ok(t)
}

/// A constant for each opcode.
fn opcodes(t: &mut String, entries: &[TableEntry], without: &[String]) -> Result<(), Error> {
    t.push_str("\nnamespace mk {\n");
    let mut names: HashMap<String, &str> = HashMap::new();
    for e in entries {
        let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let name: String = "OP_".chars().chain(e.name.chars().map(word)).collect();
        let line = format!("constexpr u16 {name} = {};", e.opcode);
        let _ = writeln!(t, "{line:<44} // {}", e.id());
        if let Some(other) = names.insert(name.clone(), &e.name) {
            return Err(Error::Handler {
                handler: e.name.clone(),
                message: format!("its opcode is named {name}, as that of '{other}'"),
                allowed: "names that differ in more than punctuation and case".into(),
            });
        }
    }
    if !without.is_empty() {
        let _ = writeln!(t, "// Registered, without a CUDA side: {}", without.join(", "));
    }
    t.push_str("}  // namespace mk\n");
    Ok(())
}

fn list<'a>(t: &mut String, name: &str, entries: impl Iterator<Item = &'a TableEntry>) {
    let _ = write!(t, "#define {name}(X)");
    for e in entries {
        let _ = write!(t, " \\\n    X({}, {})", e.opcode, e.device_struct);
    }
    t.push('\n');
}

/// What both sides say of a handler must be the same.
fn agreement(t: &mut String, registry: &Registry, entries: &[TableEntry]) {
    t.push_str("\n// Both sides of a handler mean the same arguments and pages.\nnamespace mk {\n");
    t.push_str("template <class A, class B> constexpr bool same_struct = false;\n");
    t.push_str("template <class A> constexpr bool same_struct<A, A> = true;\n");
    t.push_str("}  // namespace mk\n");
    for e in entries {
        let args = registry.handlers()[e.opcode as usize].abi().0;
        let s = &e.device_struct;
        let id = id(&registry.handlers()[e.opcode as usize]);
        let _ = writeln!(t, "static_assert(mk::same_struct<{s}::Args, mk::{args}>, \"{id}: Args\");");
        if e.stream == Stream::Compute {
            let _ = writeln!(t, "static_assert({s}::pages == {}, \"{id}: pages\");", e.pages);
        }
    }
}
