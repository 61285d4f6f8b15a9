//! `mk man`: manual pages, made from the command line itself.

use crate::args::{Args, ManArgs};
use crate::console::Console;
use crate::error::Failure;
use crate::target;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use serde_json::json;
use std::io;
use std::path::Path;

/// `mk man`.
pub(crate) fn man(args: &ManArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    match &args.out {
        Some(folder) => all(&command, folder, console),
        None => {
            let page = page(&command).map_err(|e| Failure::file(Path::new("mk.1"), e, ""))?;
            console.text(&page);
            console.object(&json!({ "command": "man", "page": page }));
            Ok(())
        }
    }
}

/// Writes the pages of a command and of all below it.
fn all(command: &Command, folder: &Path, console: &mut Console<'_>) -> Result<(), Failure> {
    let mut commands = Vec::new();
    collect(command, &mut commands);
    let mut files = Vec::new();
    for command in commands {
        let path = folder.join(Man::new(command.clone()).get_filename());
        target::write(&path, |to| to.write_all(page(command)?.as_bytes()))?;
        files.push(path.display().to_string());
    }
    console.say("wrote", files.join(", "));
    console.object(&json!({ "command": "man", "out": files }));
    Ok(())
}

fn collect<'c>(command: &'c Command, into: &mut Vec<&'c Command>) {
    into.push(command);
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        collect(below, into);
    }
}

/// One page. The sections are those of [`Man::render`], but for the examples, whose lines and columns are kept.
fn page(command: &Command) -> io::Result<String> {
    let examples = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut page = String::from_utf8_lossy(&page).into_owned();
    if let Some(examples) = examples {
        page.push_str(&verbatim("NOTES", &examples));
    }
    page.push_str(".SH VERSION\n");
    page.push_str(&escaped(concat!("mk ", env!("CARGO_PKG_VERSION"))));
    page.push('\n');
    Ok(page)
}

/// A section whose lines are not filled.
fn verbatim(title: &str, text: &str) -> String {
    let lines: Vec<String> = text.lines().map(escaped).collect();
    format!(".SH {title}\n.nf\n{}\n.fi\n", lines.join("\n"))
}

/// A line of text, without anything that roff acts on.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_roff_acts_on_is_escaped() {
        assert_eq!(escaped(r".so a\b --c"), r"\&.so a\eb \-\-c");
        assert_eq!(escaped("'x'"), r"\&'x'");
    }
}
