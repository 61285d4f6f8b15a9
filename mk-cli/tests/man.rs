//! Manual pages: one a command, and what `man` makes of them.

#![allow(clippy::unwrap_used)]

mod common;

use common::mk;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// All pages, by name.
fn pages() -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let done = mk(&["man", "--out", folder.path().to_str().unwrap()]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let read = |path: &Path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        (name, fs::read_to_string(path).unwrap())
    };
    fs::read_dir(folder.path()).unwrap().map(|e| read(&e.unwrap().path())).collect()
}

/// A page as a terminal shows it, and what groff complains about; nothing where there is no groff.
fn shown(page: &str) -> Option<(String, String)> {
    let mut groff = Command::new("groff");
    groff.args(["-man", "-ww", "-Tascii", "-P-c", "-P-b", "-P-u"]).stdin(Stdio::piped());
    let mut groff = groff.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    groff.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let done = groff.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Some((text(done.stdout), text(done.stderr)))
}

/// The commands that the help of `path` lists, and those below.
fn commands(path: &[&str]) -> Vec<Vec<String>> {
    let mut found = vec![path.iter().map(ToString::to_string).collect()];
    let help = mk(&[path, &["-h"]].concat()).out;
    let headings = ["Commands:", "Operators:", "Benchmarks, and what belongs to them:"];
    let mut lines = help.lines().skip_while(|l| !headings.contains(l)).skip(1);
    while let Some(line) = lines.next().filter(|l| !l.is_empty()) {
        // A description that goes on in the next line is indented further.
        let name = line.strip_prefix("  ").filter(|l| !l.starts_with(' ')).and_then(|l| l.split(' ').next());
        if let Some(name) = name.filter(|n| *n != "help") {
            found.extend(commands(&[path, &[name]].concat()));
        }
    }
    found
}

#[test]
fn every_command_has_a_page_that_names_its_options() {
    let pages = pages();
    let commands = commands(&[]);
    assert!(commands.len() >= 8, "{commands:?}");
    let names: Vec<String> =
        commands.iter().map(|c| [&["mk".to_string()], &c[..]].concat().join("-")).collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(sorted, pages.keys().cloned().collect::<Vec<_>>());
    for (command, name) in commands.iter().zip(&names) {
        let page = &pages[name];
        assert!(page.contains(".TH") && page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{page}");
        let help = mk(&[&command.iter().map(String::as_str).collect::<Vec<_>>()[..], &["-h"]].concat()).out;
        for line in help.lines().map(str::trim).filter(|l| l.starts_with("--") || l.starts_with("-h, ")) {
            let option = line.split([' ', '[', '=']).find(|w| w.starts_with("--")).unwrap();
            let written = option.replace('-', "\\-");
            assert!(page.contains(&written), "{name}: no {option} in {page}");
        }
    }
}

#[test]
fn groff_has_nothing_to_complain_about_and_keeps_the_lines_of_examples() {
    for (name, page) in pages() {
        let Some((text, complaints)) = shown(&page) else { return };
        assert_eq!(complaints, "", "{name}");
        assert!(text.contains("SYNOPSIS"), "{name}: {text}");
        if name == "mk-doctor" {
            let line =
                "  mk doctor --require gpu       for scripts: exit code 5 if something is missing for GPUs\n";
            assert!(text.contains(line), "{text}");
        }
    }
}

#[test]
fn the_page_of_mk_goes_to_stdout() {
    let done = mk(&["man"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert_eq!(done.out, pages()["mk"]);
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let done = mk(&["man", "--out", "/no/such/folder"]);
    assert_eq!(done.code, Some(2));
    assert!(done.err.contains("no folder") && done.err.contains("create it first"), "{}", done.err);
}
