//! The lines of a program file.

use crate::program::HandlerId;
use crate::{
    Error, Limits, OpId, Post, PostAt, Program, Queue, Rank, Region, Signal, SignalKind, Stream, Task, Wait,
    WaitAt,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;

/// Writes one line.
pub(super) fn to_line(value: &impl Serialize, to: &mut Vec<u8>) {
    serde_json::to_writer(&mut *to, value).expect("lines have string keys, and memory does not fail");
    to.push(b'\n');
}

/// What a program is, without its parts that have lines of their own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    program: String,
    ranks: u32,
    lanes: Vec<u16>,
    handlers: Vec<String>,
    labels: Vec<String>,
    pub(super) regions: u32,
    pub(super) signals: u32,
    pub(super) streams: u32,
    pub(super) tasks: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RegionLine {
    pub(super) region: Region,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignalLine {
    pub(super) signal: Signal,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamLine {
    pub(super) stream: Stream,
    pub(super) rank: Rank,
    pub(super) queue: Queue,
    pub(super) tasks: u32,
}

impl Head {
    pub(super) fn of(p: &Program) -> Head {
        Head {
            program: p.name.clone(),
            ranks: p.ranks,
            lanes: p.lanes.clone(),
            handlers: p.handlers.iter().map(|h| format!("{}@{}", h.name, h.version)).collect(),
            labels: p.labels.clone(),
            regions: p.regions.len() as u32,
            signals: p.signals.len() as u32,
            streams: p.streams.len() as u32,
            tasks: p.tasks.len() as u32,
        }
    }

    /// The program without regions, signals, streams and tasks.
    pub(super) fn program(&self) -> Result<Program, Error> {
        let handler = |text: &String| {
            text.rsplit_once('@')
                .and_then(|(name, v)| Some(HandlerId { name: name.into(), version: v.parse().ok()? }))
                .filter(|id| format!("{}@{}", id.name, id.version) == *text)
                .ok_or_else(|| {
                    Error::input("a handler has no version", text, "name@version", "plan it again")
                })
        };
        Ok(Program {
            name: self.program.clone(),
            ranks: self.ranks,
            lanes: self.lanes.clone(),
            regions: Vec::new(),
            signals: Vec::new(),
            handlers: self.handlers.iter().map(handler).collect::<Result<_, Error>>()?,
            labels: self.labels.clone(),
            streams: Vec::new(),
            tasks: Vec::new(),
        })
    }
}

/// Names in a program, both ways.
pub(super) struct Names<'a> {
    labels: Vec<&'a str>,
    /// The first label with a text.
    label_ids: HashMap<&'a str, u32>,
    ops: HashMap<&'a str, u16>,
    signals: HashMap<&'a str, (u32, u32)>,
    /// First word, number of words, name; in order of words, without empty signals.
    places: Vec<(u32, u32, &'a str)>,
}

impl<'a> Names<'a> {
    pub(super) fn new(p: &'a Program) -> Names<'a> {
        let labels: Vec<&str> = p.labels.iter().map(String::as_str).collect();
        let label_ids = labels.iter().enumerate().rev().map(|(i, l)| (*l, i as u32)).collect();
        let mut places: Vec<(u32, u32, &str)> =
            p.signals.iter().filter(|s| s.words > 0).map(|s| (s.first, s.words, s.name.as_str())).collect();
        places.sort_unstable();
        Names {
            labels,
            label_ids,
            ops: p.handlers.iter().enumerate().map(|(i, h)| (h.name.as_str(), i as u16)).collect(),
            signals: p.signals.iter().map(|s| (s.name.as_str(), (s.first, s.words))).collect(),
            places,
        }
    }

    pub(super) fn op(&self, name: &str) -> Option<u16> {
        self.ops.get(name).copied()
    }

    /// A label's text, or its number where an earlier one has the same text.
    fn label(&self, id: u32) -> Result<LabelName<'a>, String> {
        let text = *self.labels.get(id as usize).ok_or_else(|| format!("there is no label {id}"))?;
        Ok(if self.label_ids[text] == id { LabelName::Text(text.into()) } else { LabelName::Id(id) })
    }

    fn label_id(&self, label: &LabelName<'_>) -> Result<u32, String> {
        match label {
            LabelName::Text(t) => {
                self.label_ids.get(&**t).copied().ok_or_else(|| format!("there is no label '{t}'"))
            }
            LabelName::Id(id) if (*id as usize) < self.labels.len() => Ok(*id),
            LabelName::Id(id) => Err(format!("there is no label {id}")),
        }
    }

    /// The signal that has `word`, and the word's place in it. `last` must be in the same signal.
    fn place(&self, word: u32, last: u64) -> Result<(&'a str, u32), String> {
        let after = self.places.partition_point(|p| p.0 <= word);
        let found = after.checked_sub(1).map(|i| self.places[i]).filter(|p| word - p.0 < p.1);
        let (first, words, name) = found.ok_or_else(|| format!("no signal has word {word}"))?;
        if last - first as u64 >= words as u64 {
            return Err(format!("words {word} to {last} are not all in signal '{name}' of {words} words"));
        }
        Ok((name, word - first))
    }

    fn word(&self, signal: &str, place: u32) -> Result<u32, String> {
        let (first, words) =
            self.signals.get(signal).copied().ok_or_else(|| format!("there is no signal '{signal}'"))?;
        if place >= words {
            return Err(format!("signal '{signal}' has {words} words, not a word {place}"));
        }
        Ok(first + place)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum LabelName<'a> {
    #[serde(borrow)]
    Text(Cow<'a, str>),
    Id(u32),
}

/// One task.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskLine<'a> {
    #[serde(borrow)]
    pub(super) op: Cow<'a, str>,
    #[serde(borrow)]
    label: LabelName<'a>,
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    waits: Vec<WaitLine<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    posts: Vec<PostLine<'a>>,
    #[serde(borrow)]
    pub(super) args: &'a RawValue,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitLine<'a> {
    #[serde(borrow)]
    signal: Cow<'a, str>,
    word: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    words: u16,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    stride: u16,
    #[serde(default = "start", skip_serializing_if = "is_start")]
    at: WaitAt,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    every: u16,
    /// Posts that each word receives in an epoch.
    posts: u32,
    /// How many of them it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upto: Option<u32>,
    #[serde(default, skip_serializing_if = "is_zero")]
    lag: u8,
    #[serde(default, skip_serializing_if = "is_zero")]
    clock: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PostLine<'a> {
    rank: u16,
    #[serde(borrow)]
    signal: Cow<'a, str>,
    word: u32,
    at: PostAt,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    every: u16,
    kind: SignalKind,
    /// Posts that the word receives in an epoch.
    posts: u32,
    /// Its place among them, where the order matters.
    #[serde(default, skip_serializing_if = "is_none")]
    ordinal: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    clock: u8,
}

fn one() -> u16 {
    1
}
fn start() -> WaitAt {
    WaitAt::Start
}
// serde hands over references.
fn is_one(x: &u16) -> bool {
    *x == 1
}
fn is_zero(x: &u8) -> bool {
    *x == 0
}
fn is_none(x: &u32) -> bool {
    *x == 0
}
fn is_start(at: &WaitAt) -> bool {
    *at == WaitAt::Start
}

impl<'a> WaitLine<'a> {
    fn of(w: &Wait, names: &Names<'a>) -> Result<WaitLine<'a>, String> {
        let last = w.word as u64 + (w.count.max(1) as u64 - 1) * w.stride as u64;
        let (signal, word) = names.place(w.word, last)?;
        Ok(WaitLine {
            signal: signal.into(),
            word,
            words: w.count,
            stride: w.stride,
            at: w.at(),
            every: w.every,
            posts: w.total,
            upto: (w.upto != w.total).then_some(w.upto),
            lag: w.lag(),
            clock: w.clock,
        })
    }

    fn wait(&self, names: &Names<'_>) -> Result<Wait, String> {
        if self.words == 0 || self.every == 0 || self.posts == 0 || self.lag > Limits::LAG {
            return Err("words, every and posts of a wait are at least 1, and its lag at most 15".into());
        }
        Ok(Wait {
            word: names.word(&self.signal, self.word)?,
            total: self.posts,
            upto: self.upto.unwrap_or(self.posts),
            count: self.words,
            stride: self.stride,
            every: self.every,
            clock: self.clock,
            bits: Wait::pack(self.at, self.lag),
        })
    }
}

impl<'a> PostLine<'a> {
    fn of(p: &Post, names: &Names<'a>) -> Result<PostLine<'a>, String> {
        let (signal, word) = names.place(p.word, p.word as u64)?;
        Ok(PostLine {
            rank: p.rank,
            signal: signal.into(),
            word,
            at: p.at(),
            every: p.every as u16,
            kind: p.kind(),
            posts: p.total,
            ordinal: p.ordinal,
            clock: p.clock(),
        })
    }

    fn post(&self, names: &Names<'_>) -> Result<Post, String> {
        if !(1..=Limits::POST_EVERY).contains(&(self.every as u64)) || self.posts == 0 || self.clock > 7 {
            return Err(
                "every and posts of a post are at least 1, every at most 255, its clock at most 7".into()
            );
        }
        Ok(Post {
            word: names.word(&self.signal, self.word)?,
            total: self.posts,
            ordinal: self.ordinal,
            rank: self.rank,
            every: self.every as u8,
            bits: Post::pack(self.at, self.kind, self.clock),
        })
    }
}

impl<'a> TaskLine<'a> {
    /// The line of a task, if reading it gives the same task again.
    pub(super) fn of(
        task: &Task,
        op: &'a str,
        names: &Names<'a>,
        args: &'a RawValue,
    ) -> Result<TaskLine<'a>, String> {
        let line = TaskLine {
            op: op.into(),
            label: names.label(task.label)?,
            waits: task.waits().map(|w| WaitLine::of(w, names)).collect::<Result<_, _>>()?,
            posts: task.posts().map(|p| PostLine::of(p, names)).collect::<Result<_, _>>()?,
            args,
        };
        if line.task(task.op, names, task.args)? != *task {
            return Err("its record has bits without a meaning, or a gap in its waits or posts".into());
        }
        Ok(line)
    }

    pub(super) fn task(
        &self,
        op: OpId,
        names: &Names<'_>,
        args: [u8; Limits::ARG_BYTES],
    ) -> Result<Task, String> {
        let mut task = Task {
            op,
            flags: 0,
            label: names.label_id(&self.label)?,
            waits: Default::default(),
            posts: Default::default(),
            args,
        };
        if self.waits.len() > Limits::WAITS || self.posts.len() > Limits::POSTS {
            return Err(format!("a task has at most {} waits and {} posts", Limits::WAITS, Limits::POSTS));
        }
        for (to, from) in task.waits.iter_mut().zip(&self.waits) {
            *to = from.wait(names)?;
        }
        for (to, from) in task.posts.iter_mut().zip(&self.posts) {
            *to = from.post(names)?;
        }
        Ok(task)
    }
}
