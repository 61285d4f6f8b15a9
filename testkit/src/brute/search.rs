//! Exploring a graph of micro-actions.

use super::build::{Graph, Raise, What};
use super::{Bounds, Example, Outcome, Report, Search};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A set of actions.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Set(Vec<u64>);

impl Set {
    fn new(len: usize) -> Set {
        Set(vec![0; len.div_ceil(64)])
    }
    fn has(&self, i: u32) -> bool {
        self.0[i as usize / 64] >> (i % 64) & 1 == 1
    }
    fn put(&mut self, i: u32) {
        self.0[i as usize / 64] |= 1 << (i % 64);
    }
}

/// An execution so far.
#[derive(Clone)]
struct Run<'a> {
    graph: &'a Graph<'a>,
    done: Set,
    count: usize,
    needs: Vec<u32>,
    /// Actions that need nothing more, but perhaps a word.
    ready: Vec<u32>,
    words: Vec<u64>,
    memory: Vec<u64>,
    /// What each action read.
    regs: Vec<u64>,
}

impl<'a> Run<'a> {
    fn new(graph: &'a Graph<'a>) -> Run<'a> {
        let n = graph.actions.len();
        let needs: Vec<u32> = graph.actions.iter().map(|a| a.needs).collect();
        let ready = (0..n as u32).filter(|&i| needs[i as usize] == 0).collect();
        Run {
            graph,
            done: Set::new(n),
            count: 0,
            needs,
            ready,
            words: vec![0; graph.words],
            memory: (0..graph.cells.len() as u64).collect(),
            regs: vec![0; n],
        }
    }

    fn enabled(&self, action: u32) -> bool {
        self.graph.actions[action as usize].waits.iter().all(|&(w, v)| self.words[w as usize] >= v)
    }

    /// Executes an action that is ready and enabled.
    fn step(&mut self, action: u32) {
        let graph = self.graph;
        let a = &graph.actions[action as usize];
        if !a.reads.is_empty() {
            self.regs[action as usize] = a.seen(&self.memory);
        }
        for &c in &a.writes {
            self.memory[c as usize] = a.value(c, &self.regs);
        }
        match a.post {
            Some((w, Raise::Add)) => self.words[w as usize] += 1,
            Some((w, Raise::Set(v))) => self.words[w as usize] = v,
            None => {}
        }
        self.done.put(action);
        self.count += 1;
        self.ready.retain(|&r| r != action);
        for &t in &a.then {
            self.needs[t as usize] -= 1;
            if self.needs[t as usize] == 0 {
                self.ready.push(t);
            }
        }
    }

    /// Executes whatever can be, except `held`, until `until` is done.
    fn advance(&mut self, held: Option<u32>, until: Option<u32>) {
        loop {
            let before = self.count;
            for action in self.ready.clone() {
                if Some(action) != held && self.enabled(action) {
                    self.step(action);
                    if Some(action) == until {
                        return;
                    }
                }
            }
            if self.count == before {
                return;
            }
        }
    }

    fn finished(&self) -> bool {
        self.count == self.graph.actions.len()
    }

    /// What the callers take, by action.
    fn outputs(&self) -> Vec<(u32, u64)> {
        let exits = self.graph.actions.iter().enumerate().filter(|(_, a)| a.what == What::Exit);
        exits.map(|(i, _)| (i as u32, self.regs[i])).collect()
    }

    /// A fingerprint of everything that the future depends on.
    fn key(&self) -> u128 {
        let half = |salt: u64| {
            let mut h = DefaultHasher::new();
            (salt, &self.done, &self.words, &self.memory, &self.regs).hash(&mut h);
            h.finish() as u128
        };
        half(1) << 64 | half(2)
    }

    fn stuck(&self) -> Example {
        let stuck: Vec<u32> = self.ready.clone();
        let tasks = stuck.iter().map(|&a| self.graph.name(a)).collect();
        let program = self.graph.program;
        let words = program.words().max(1) as u32;
        let detail = stuck
            .iter()
            .map(|&a| {
                let action = &self.graph.actions[a as usize];
                let unmet = action.waits.iter().find(|&&(w, v)| self.words[w as usize] < v);
                let what = unmet.map_or(String::new(), |&(w, v)| {
                    let rank = mk_core::Rank((w / words) as u16);
                    let seen = self.words[w as usize];
                    format!(" for {} = {v}, which stands at {seen}", program.word_name(rank, w % words))
                });
                format!("{} waits{what} (epoch {})", self.graph.name(a), action.epoch)
            })
            .collect::<Vec<_>>()
            .join("; ");
        Example { tasks, detail }
    }
}

/// What is done in the end while `held` is held back, in a monotone graph: values do not matter.
fn reachable(graph: &Graph<'_>, held: u32) -> Set {
    let mut needs: Vec<u32> = graph.actions.iter().map(|a| a.needs).collect();
    let mut words = vec![0u64; graph.words];
    // Actions that wait for a word to rise, by that word.
    let mut asleep: Vec<Vec<u32>> = vec![Vec::new(); graph.words];
    let mut done = Set::new(graph.actions.len());
    let mut ready: Vec<u32> = (0..needs.len() as u32).filter(|&i| needs[i as usize] == 0).collect();
    while let Some(action) = ready.pop() {
        let a = &graph.actions[action as usize];
        if action == held {
            continue;
        }
        if let Some(&(w, _)) = a.waits.iter().find(|&&(w, v)| words[w as usize] < v) {
            asleep[w as usize].push(action);
            continue;
        }
        done.put(action);
        if let Some((w, raise)) = a.post {
            let word = &mut words[w as usize];
            *word = match raise {
                Raise::Add => *word + 1,
                Raise::Set(v) => v,
            };
            ready.append(&mut asleep[w as usize]);
        }
        for &t in &a.then {
            needs[t as usize] -= 1;
            if needs[t as usize] == 0 {
                ready.push(t);
            }
        }
    }
    done
}

/// For each action, those that conflict with it in a way that can reach an output.
fn conflicts(graph: &Graph<'_>) -> Vec<Vec<u32>> {
    let relevant = relevant_cells(graph);
    let mut readers: Vec<Vec<u32>> = vec![Vec::new(); graph.cells.len()];
    let mut writers = readers.clone();
    for (i, a) in graph.actions.iter().enumerate() {
        a.reads.iter().for_each(|&c| readers[c as usize].push(i as u32));
        a.writes.iter().for_each(|&c| writers[c as usize].push(i as u32));
    }
    let mut with: Vec<Vec<u32>> = vec![Vec::new(); graph.actions.len()];
    for c in (0..graph.cells.len()).filter(|&c| relevant[c]) {
        for (i, &w) in writers[c].iter().enumerate() {
            for &o in writers[c][i + 1..].iter().chain(&readers[c]) {
                with[w as usize].push(o);
                with[o as usize].push(w);
            }
        }
    }
    for list in &mut with {
        list.sort_unstable();
        list.dedup();
    }
    with
}

/// Cells whose value can reach an output.
fn relevant_cells(graph: &Graph<'_>) -> Vec<bool> {
    let mut relevant = vec![false; graph.cells.len()];
    for a in graph.actions.iter().filter(|a| a.what == What::Exit) {
        a.reads.iter().for_each(|&c| relevant[c as usize] = true);
    }
    loop {
        let before = relevant.iter().filter(|r| **r).count();
        for a in &graph.actions {
            if a.writes.iter().any(|&c| relevant[c as usize]) {
                for &i in &a.inputs {
                    graph.actions[i as usize].reads.iter().for_each(|&c| relevant[c as usize] = true);
                }
            }
        }
        if relevant.iter().filter(|r| **r).count() == before {
            return relevant;
        }
    }
}

/// The first difference between the outputs of two complete executions.
fn difference(a: &[(u32, u64)], b: &[(u32, u64)]) -> Option<u32> {
    a.iter().zip(b).find(|(x, y)| x.1 != y.1).map(|(x, _)| x.0)
}

/// How the outputs of two graphs over the same cells differ, in one execution of each.
pub(super) fn compare(graph: &Graph<'_>, expected: &Graph<'_>) -> Option<Example> {
    let (mut a, mut b) = (Run::new(graph), Run::new(expected));
    a.advance(None, None);
    b.advance(None, None);
    let by_place = |run: &Run<'_>| -> Vec<_> { run.outputs().into_iter().map(|o| o.1).collect() };
    let (x, y) = (by_place(&a), by_place(&b));
    let at = x.iter().zip(&y).position(|(x, y)| x != y)?;
    let exit = a.outputs()[at].0;
    let epoch = graph.actions[exit as usize].epoch;
    let detail = format!("the outputs of {} are others in epoch {epoch}", graph.name(exit));
    Some(Example { tasks: vec![], detail })
}

struct Explorer<'a> {
    graph: &'a Graph<'a>,
    with: Vec<Vec<u32>>,
    /// `after[a]`: what can be done while `a` is held back; only for monotone graphs.
    without: Vec<Option<Set>>,
}

impl<'a> Explorer<'a> {
    fn new(graph: &'a Graph<'a>, search: Search) -> Explorer<'a> {
        let with = conflicts(graph);
        let shortcut = graph.monotone && search == Search::Reduced;
        let without = (0..graph.actions.len() as u32)
            .map(|a| (shortcut && !with[a as usize].is_empty()).then(|| reachable(graph, a)))
            .collect();
        Explorer { graph, with, without }
    }

    /// Whether `b` can come before `a`, as far as is known.
    fn can_precede(&self, b: u32, a: u32) -> bool {
        self.without[a as usize].as_ref().is_none_or(|s| s.has(b))
    }

    /// Conflicting pairs that can come in both orders.
    fn races(&self) -> Vec<(u32, u32)> {
        let pairs = self.with.iter().enumerate().flat_map(|(a, w)| w.iter().map(move |&b| (a as u32, b)));
        pairs.filter(|&(a, b)| a < b && self.can_precede(b, a) && self.can_precede(a, b)).collect()
    }

    /// Whether executing `action` first loses no outcome.
    fn is_safe(&self, run: &Run<'_>, action: u32) -> bool {
        let a = &self.graph.actions[action as usize];
        if !self.graph.monotone && (a.post.is_some() || !a.waits.is_empty()) {
            return false;
        }
        self.with[action as usize].iter().all(|&o| run.done.has(o) || !self.can_precede(o, action))
    }

    /// Two executions of a racy pair with different outputs.
    fn witness(&self, first: &[(u32, u64)], races: &[(u32, u32)]) -> Option<Example> {
        for &(a, b) in races {
            for (held, until) in [(a, b), (b, a)] {
                let mut run = Run::new(self.graph);
                run.advance(Some(held), Some(until));
                run.advance(None, None);
                if let Some(exit) = difference(first, &run.outputs()) {
                    return Some(self.race(a, b, exit));
                }
            }
        }
        None
    }

    fn race(&self, a: u32, b: u32, exit: u32) -> Example {
        let g = self.graph;
        let (x, y) = (&g.actions[a as usize], &g.actions[b as usize]);
        let touched = |t: &super::build::Action, c: &u32| t.reads.contains(c) || t.writes.contains(c);
        let cell = x.reads.iter().chain(&x.writes).find(|c| touched(y, c));
        let place = cell.map_or(String::new(), |&c| g.cells.name(g.program, c));
        Example {
            tasks: vec![g.name(a), g.name(b)],
            detail: format!(
                "{} ({}, epoch {}) and {} ({}, epoch {}) have no order on {place}; it changes what {} sees",
                g.name(a),
                g.verb(a),
                x.epoch,
                g.name(b),
                g.verb(b),
                y.epoch,
                g.name(exit)
            ),
        }
    }

    /// Depth-first over all interleavings of what is not safe. `Ok` has the outputs that all have in common.
    fn search(&self, bounds: &Bounds) -> (Outcome, usize) {
        let mut seen: HashSet<u128> = HashSet::new();
        let mut common: Option<Vec<(u32, u64)>> = None;
        let mut stack = vec![Run::new(self.graph)];
        while let Some(mut run) = stack.pop() {
            while let Some(&safe) = run.ready.iter().find(|&&a| run.enabled(a) && self.is_safe(&run, a)) {
                run.step(safe);
            }
            if !seen.insert(run.key()) {
                continue;
            }
            if seen.len() > bounds.states {
                return (Outcome::TooLarge(format!("more than {} states", bounds.states)), seen.len());
            }
            let choices: Vec<u32> = run.ready.iter().copied().filter(|&a| run.enabled(a)).collect();
            if choices.is_empty() {
                if !run.finished() {
                    return (Outcome::Deadlock(run.stuck()), seen.len());
                }
                let outputs = run.outputs();
                let first = common.get_or_insert_with(|| outputs.clone());
                if let Some(exit) = difference(first, &outputs) {
                    return (Outcome::Differs(self.some_race(exit)), seen.len());
                }
            }
            for &choice in &choices {
                let mut next = run.clone();
                next.step(choice);
                stack.push(next);
            }
        }
        (Outcome::Harmless, seen.len())
    }

    fn some_race(&self, exit: u32) -> Example {
        match self.races().first() {
            Some(&(a, b)) => self.race(a, b, exit),
            None => {
                Example { tasks: vec![], detail: format!("{} sees different outputs", self.graph.name(exit)) }
            }
        }
    }
}

/// Explores both graphs of a program.
pub(super) fn explore(least: &Graph<'_>, most: &Graph<'_>, bounds: &Bounds) -> Report {
    let report = |outcome, states, races| Report { outcome, actions: most.actions.len(), states, races };
    if most.monotone {
        // All executions of a monotone graph do the same actions: one tells whether it is live.
        let mut run = Run::new(least);
        run.advance(None, None);
        if !run.finished() {
            return report(Outcome::Deadlock(run.stuck()), 0, 0);
        }
    } else {
        let (outcome, states) = Explorer::new(least, bounds.search).search(bounds);
        if outcome != Outcome::Harmless {
            return report(outcome, states, 0);
        }
    }
    let explorer = Explorer::new(most, bounds.search);
    if !most.monotone || bounds.search == Search::Naive {
        let (outcome, states) = explorer.search(bounds);
        return report(outcome, states, 0);
    }
    let races = explorer.races();
    if races.is_empty() {
        return report(Outcome::Harmless, 0, 0);
    }
    let mut first = Run::new(most);
    first.advance(None, None);
    if let Some(example) = explorer.witness(&first.outputs(), &races) {
        return report(Outcome::Differs(example), 0, races.len());
    }
    let (outcome, states) = explorer.search(bounds);
    report(outcome, states, races.len())
}
