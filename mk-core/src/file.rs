//! Program files: one line of header, then JSON lines that people can read and `diff`.
//!
//! ```text
//! {"format":"mk-program","version":1,"blake3":"6a…","bytes":1234}
//! {"program":"ag-gemm","ranks":2,"lanes":[8,8],"handlers":["gemm@1"],"labels":["","tile 0"],"regions":1,…}
//! {"region":{"name":"a","kind":"bound","io":"input","dtype":"bf16","shape":{"uniform":[512,1024]}}}
//! {"signal":{"name":"arrival","kind":"add","first":0,"words":4}}
//! {"stream":"compute","rank":0,"queue":{"lane":0},"tasks":1}
//! {"op":"gemm","label":"tile 0","waits":[{"signal":"arrival","word":3,"posts":1}],"args":{"a":0,…}}
//! ```
//!
//! A file is *canonical*: a program has exactly one, so that ranks compare programs by [`Program::hash`]. Opcodes are
//! not in it; they are given when a program is loaded. A field that is left out has its usual value: one word, one
//! block, no lag, all posts.

mod lines;

use crate::{Error, Limits, OpId, Program, Registry, StreamTasks, Task};
use lines::{Head, Names, RegionLine, SignalLine, StreamLine, TaskLine, to_line};
use serde::{Deserialize, Serialize};
use std::io::Write;

/// The `format` of a program file.
const FORMAT: &str = "mk-program";
/// Its version: raised whenever an older reader would misread a file.
const VERSION: u64 = 1;
/// Bytes of the longest header that is looked at.
const HEADER_BYTES: usize = 256;
/// Bytes of the shortest task line: no more tasks than this allows are allocated for, whatever a file says.
const TASK_LINE_BYTES: usize = 12;

#[derive(Serialize, Deserialize)]
struct Header<'a> {
    format: &'a str,
    version: u64,
    blake3: &'a str,
    bytes: u64,
}

/// The part of a header that all versions have.
#[derive(Deserialize)]
struct AnyHeader<'a> {
    #[serde(borrow)]
    format: std::borrow::Cow<'a, str>,
    version: u64,
}

impl Program {
    /// Writes the program as a file.
    ///
    /// # Errors
    /// A handler is not registered, a record has no meaning in a file, or `to` fails.
    pub fn write(&self, registry: &Registry, to: &mut impl Write) -> Result<(), Error> {
        let mut body = Vec::with_capacity(self.tasks.len() * 200);
        self.body(registry, &mut |lines| body.extend_from_slice(lines))?;
        let head = header(&body);
        to.write_all(&head).and_then(|()| to.write_all(&body)).map_err(|e| Error::File {
            path: format!("program '{}'", self.name),
            message: format!("it cannot be written: {e}"),
            hint: "check the space and the rights of the folder".into(),
        })
    }

    /// The BLAKE3 hash of the file's body, as 64 hexadecimal digits: the same on all ranks if the program is.
    ///
    /// # Errors
    /// As [`Program::write`].
    pub fn hash(&self, registry: &Registry) -> Result<String, Error> {
        let mut hasher = blake3::Hasher::new();
        self.body(registry, &mut |lines| {
            hasher.update(lines);
        })?;
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Reads a program file. What it accepts is well-formed, but not proved: see [`Program::verify`].
    ///
    /// # Errors
    /// Anything but a whole, unchanged file of this version, whose handlers are registered in these versions. The
    /// error names the line. Memory stays within a small multiple of the size of the file.
    pub fn read(file: &[u8], registry: &Registry) -> Result<Program, Error> {
        let mut lines = Lines { rest: check_header(file)?, number: 1, scratch: Vec::new() };
        let head: Head = lines.next()?;
        let mut program = head.program().map_err(|e| lines.bad(&e.explain().message, e.explain().given))?;
        for _ in 0..head.regions {
            program.regions.push(lines.next::<RegionLine>()?.region);
        }
        for _ in 0..head.signals {
            program.signals.push(lines.next::<SignalLine>()?.signal);
        }
        program.check_parts()?;
        let opcodes = program.opcodes(registry)?;
        let mut tasks = Vec::with_capacity((head.tasks as usize).min(lines.rest.len() / TASK_LINE_BYTES));
        let names = Names::new(&program);
        let mut streams = Vec::new();
        for _ in 0..head.streams {
            let stream: StreamLine = lines.next()?;
            let first = tasks.len() as u32;
            for _ in 0..stream.tasks {
                tasks.push(lines.task(&names, registry, &opcodes)?);
            }
            let StreamLine { stream, rank, queue, tasks: len } = stream;
            streams.push(StreamTasks { rank, queue, stream, first, len });
        }
        if !lines.rest.is_empty() || tasks.len() as u64 != head.tasks as u64 {
            let given = format!("{} tasks, {} bytes left over", tasks.len(), lines.rest.len());
            return Err(lines.bad("the streams do not hold the tasks that the head counts", given));
        }
        (program.streams, program.tasks) = (streams, tasks);
        program.check_tasks(registry, &opcodes)?;
        Ok(program)
    }

    /// The lines of the file behind its header, a stream of tasks at a time.
    fn body(&self, registry: &Registry, to: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        self.check_parts()?;
        let opcodes = self.opcodes(registry)?;
        self.check_tasks(registry, &opcodes)?;
        let mut body = Vec::new();
        to_line(&Head::of(self), &mut body);
        for region in &self.regions {
            to_line(&RegionLine { region: region.clone() }, &mut body);
        }
        for signal in &self.signals {
            to_line(&SignalLine { signal: signal.clone() }, &mut body);
        }
        let names = Names::new(self);
        let mut args = Vec::new();
        for s in &self.streams {
            to_line(&StreamLine { stream: s.stream, rank: s.rank, queue: s.queue, tasks: s.len }, &mut body);
            for id in s.tasks() {
                self.task_line(self.task(id), &names, registry, &opcodes, &mut args, &mut body).map_err(
                    |message| {
                        Error::build(
                            format!("{} cannot be written: {message}", self.task_name(id)),
                            "make programs with a ProgramBuilder",
                        )
                    },
                )?;
            }
            to(&body);
            body.clear();
        }
        to(&body);
        Ok(())
    }

    fn task_line(
        &self,
        task: &Task,
        names: &Names<'_>,
        registry: &Registry,
        opcodes: &[u16],
        args: &mut Vec<u8>,
        body: &mut Vec<u8>,
    ) -> Result<(), String> {
        let handler = &registry.handlers()[opcodes[task.op.index()] as usize];
        args.clear();
        handler.write_args(&task.args, args).map_err(|e| e.to_string())?;
        let raw = serde_json::from_slice(args).map_err(|e| e.to_string())?;
        let line = TaskLine::of(task, handler.name(), names, raw)?;
        to_line(&line, body);
        Ok(())
    }
}

/// The header line of a body.
fn header(body: &[u8]) -> Vec<u8> {
    let blake3 = blake3::hash(body).to_hex();
    let mut line = Vec::new();
    to_line(
        &Header { format: FORMAT, version: VERSION, blake3: &blake3, bytes: body.len() as u64 },
        &mut line,
    );
    line
}

/// A body under a header that fits, for tests that look behind the checksum.
pub(crate) fn with_header(body: &[u8]) -> Vec<u8> {
    [&header(body), body].concat()
}

/// Checks the header against the body, which it returns.
fn check_header(file: &[u8]) -> Result<&[u8], Error> {
    let refuse = |message: &str, given: String, allowed: String, hint: &str| {
        Err(Error::input(format!("program file: {message}"), given, allowed, hint))
    };
    const AGAIN: &str = "the file was changed or cut off: write it again with `mk plan --out`";
    if file.len() as u64 > Limits::FILE_BYTES {
        let allowed = format!("at most {} bytes", Limits::FILE_BYTES);
        return refuse("it is too large", format!("{} bytes", file.len()), allowed, "plan with larger tiles");
    }
    let end = file.iter().take(HEADER_BYTES).position(|&b| b == b'\n');
    let line = &file[..end.unwrap_or(0)];
    let wanted = format!(r#"{{"format":"{FORMAT}","version":{VERSION},...}} in the first line"#);
    let Some(any) = serde_json::from_slice::<AnyHeader<'_>>(line).ok().filter(|h| h.format == FORMAT) else {
        let shown = String::from_utf8_lossy(&file[..file.len().min(40)]).into_owned();
        return refuse("this is not one", format!("{shown:?}"), wanted, "make one with `mk plan --out`");
    };
    if any.version != VERSION {
        let (given, allowed) = (format!("version {}", any.version), format!("version {VERSION}"));
        return refuse(
            "it has another version",
            given,
            allowed,
            "plan it again, or use the build that made it",
        );
    }
    let body = &file[line.len() + 1..];
    let header = serde_json::from_slice::<Header<'_>>(line);
    let mut canonical = Vec::new();
    if let Ok(h) = &header {
        to_line(h, &mut canonical);
    }
    let (Ok(header), true) = (header, canonical == file[..line.len() + 1]) else {
        let given = String::from_utf8_lossy(line).into_owned();
        return refuse("its header is damaged", given, wanted, AGAIN);
    };
    if header.bytes != body.len() as u64 {
        let (given, allowed) = (format!("{} bytes", body.len()), format!("{} bytes", header.bytes));
        return refuse("its length is not what its header says", given, allowed, AGAIN);
    }
    let hash = blake3::hash(body).to_hex();
    if hash.as_str() != header.blake3 {
        return refuse("its checksum does not fit", hash.to_string(), header.blake3.into(), AGAIN);
    }
    Ok(body)
}

/// The lines of a body, from the top.
struct Lines<'a> {
    rest: &'a [u8],
    /// Number of the last line taken; the header is line 1.
    number: usize,
    scratch: Vec<u8>,
}

impl<'a> Lines<'a> {
    fn bad(&self, message: &str, given: impl ToString) -> Error {
        Error::input(
            format!("program file, line {}: {message}", self.number),
            given,
            "lines as `mk plan --out` writes them",
            "plan it again; a file that was edited by hand needs a fitting checksum and canonical lines",
        )
    }

    fn take(&mut self) -> Result<&'a [u8], Error> {
        self.number += 1;
        let Some(end) = self.rest.iter().position(|&b| b == b'\n') else {
            return Err(self.bad("the file ends too early", "no further line"));
        };
        let (line, rest) = self.rest.split_at(end + 1);
        self.rest = rest;
        Ok(line)
    }

    /// The next line, which must be as this build would write it.
    fn next<T: Deserialize<'a> + Serialize>(&mut self) -> Result<T, Error> {
        let line = self.take()?;
        let value = serde_json::from_slice(line).map_err(|e| self.bad(&e.to_string(), shown(line)))?;
        self.check_canonical(&value, line)?;
        Ok(value)
    }

    fn check_canonical(&mut self, value: &impl Serialize, line: &[u8]) -> Result<(), Error> {
        self.scratch.clear();
        to_line(value, &mut self.scratch);
        if self.scratch != line {
            return Err(self.bad("the line is not in its canonical form", shown(line)));
        }
        Ok(())
    }

    fn task(&mut self, names: &Names<'_>, registry: &Registry, opcodes: &[u16]) -> Result<Task, Error> {
        let line = self.take()?;
        let parsed: TaskLine<'_> =
            serde_json::from_slice(line).map_err(|e| self.bad(&e.to_string(), shown(line)))?;
        let bad = |s: &Lines<'_>, m: String| s.bad(&m, shown(line));
        let op = names.op(&parsed.op).ok_or_else(|| bad(self, format!("unknown handler '{}'", parsed.op)))?;
        let handler = &registry.handlers()[opcodes[op as usize] as usize];
        let args = handler.args_from_json(parsed.args).map_err(|e| bad(self, e.to_string()))?;
        let task = parsed.task(OpId(op), names, args).map_err(|m| bad(self, m))?;
        // The arguments as this build writes them, and the line around them.
        let mut text = Vec::new();
        handler.write_args(&args, &mut text).map_err(|e| bad(self, e.to_string()))?;
        let raw = serde_json::from_slice(&text).map_err(|e| self.bad(&e.to_string(), shown(line)))?;
        let again = TaskLine::of(&task, handler.name(), names, raw).map_err(|m| bad(self, m))?;
        self.check_canonical(&again, line)?;
        Ok(task)
    }
}

/// The start of a line, for a message.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests;
