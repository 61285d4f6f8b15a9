//! What the compiler says of the machine code that it made, and what of it may not be.

use crate::abi::{Geometry, SHARED_SYMBOL};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Registers, memory and facts of one compiled kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The entry, and each function that was not inlined.
    pub functions: Vec<Function>,
    /// Registers that a role's threads take or give back by `setmaxnreg`, each value once, ascending.
    pub role_registers: Vec<u32>,
    /// Dynamic shared memory that the kernel wants, in bytes; `None` if it does not say.
    pub dynamic_shared_bytes: Option<u32>,
    /// wgmma instructions in the PTX.
    pub wgmma: u32,
    /// Tensor and bulk copies (`cp.async.bulk`) in the PTX.
    pub bulk_copies: u32,
    /// Loads through the non-coherent path (`ld.global.nc`) in the PTX.
    pub non_coherent_loads: u32,
    /// Barriers of the whole block, which all roles share, in the PTX.
    pub block_barriers: u32,
    /// Barriers of some warps in the PTX.
    pub role_barriers: u32,
    /// Calls of functions that were not inlined, in the PTX.
    pub calls: u32,
    /// Other warnings of the compiler, as `file:line: text`.
    pub warnings: Vec<String>,
    /// What the assembler says of lost speed, by its code: `C7510 ...`.
    pub advice: Vec<String>,
}

/// What the assembler says of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Registers of a thread at entry; 0 for a function that is not one.
    pub registers: u32,
    /// Barriers that it uses.
    pub barriers: u32,
    /// Stack of a thread, in bytes.
    pub stack_bytes: u32,
    /// Registers that did not fit, written to memory, in bytes.
    pub spill_store_bytes: u32,
    /// The same, read back.
    pub spill_load_bytes: u32,
    /// Static shared memory, in bytes.
    pub shared_bytes: u32,
    /// Constant memory, all banks, in bytes.
    pub constant_bytes: u32,
}

/// Why a kernel that compiles may not be run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Registers did not fit.
    Spill {
        /// The function.
        function: String,
        /// Bytes written.
        store_bytes: u32,
        /// Bytes read back.
        load_bytes: u32,
    },
    /// C7510 and its like: wgmma instructions wait for one another.
    WgmmaSerialised(String),
    /// C7507 and its like: `setmaxnreg` has no effect.
    SetmaxnregIgnored(String),
    /// A barrier that cannot time out is shared by roles.
    SharedBarrier {
        /// How many there are.
        found: u32,
    },
    /// Memory that changes between epochs is read through a path that does not see it.
    NonCoherentLoad {
        /// How many there are.
        found: u32,
    },
    /// More shared memory than a block has.
    SharedMemory {
        /// Static and dynamic, in bytes.
        bytes: u32,
    },
}

/// Barriers of the whole block that are no waiting of one role for another: the one when shared memory is set up, before the
/// roles part.
const BLOCK_BARRIERS: u32 = 1;
/// Barriers of one role: number and threads. Each math warpgroup has one.
const ROLE_BARRIERS: [[u32; 2]; 2] = [[1, 128], [2, 128]];

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Spill { function, store_bytes, load_bytes } => {
                write!(
                    f,
                    "{function} spills registers: {store_bytes} bytes stored, {load_bytes} bytes loaded"
                )
            }
            Violation::WgmmaSerialised(text) => write!(f, "wgmma is serialised: {text}"),
            Violation::SetmaxnregIgnored(text) => write!(f, "setmaxnreg is ignored: {text}"),
            Violation::SharedBarrier { found } => {
                write!(
                    f,
                    "{found} barriers of the whole block: at most {BLOCK_BARRIERS} are no barrier between roles"
                )
            }
            Violation::NonCoherentLoad { found } => write!(f, "{found} non-coherent loads (ld.global.nc)"),
            Violation::SharedMemory { bytes } => {
                write!(f, "{bytes} bytes of shared memory: a block has {}", Geometry::SHARED_BYTES)
            }
        }
    }
}

impl Violation {
    /// What to do.
    pub fn hint(&self) -> &'static str {
        match self {
            Violation::Spill { .. } => {
                "keep fewer values alive across the handler's loops, or read arguments again"
            }
            Violation::WgmmaSerialised(_) => {
                "make no call reachable from the wgmma loop, touch no accumulator between wgmma.fence and the wait, and use NVRTC 13: \
                 version 12 serialises what 13 does not"
            }
            Violation::SetmaxnregIgnored(_) => {
                "make no call reachable from a role, so that its registers are known"
            }
            Violation::SharedBarrier { .. } => {
                "use the frame's waits, which end when a rank fails, not __syncthreads"
            }
            Violation::NonCoherentLoad { .. } => {
                "read regions by the frame's loads, not by __ldg or const __restrict__ pointers"
            }
            Violation::SharedMemory { .. } => "use the frame's pages, not shared memory of the handler's own",
        }
    }
}

impl Report {
    /// Reads the compiler's log (with `--ptxas-options=-v`) and the PTX.
    pub fn parse(log: &str, ptx: &str) -> Report {
        let mut report = Report::default();
        report.read_log(log);
        report.read_ptx(ptx);
        report
    }

    /// What may not be.
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for f in &self.functions {
            if f.spill_store_bytes > 0 || f.spill_load_bytes > 0 {
                found.push(Violation::Spill {
                    function: f.name.clone(),
                    store_bytes: f.spill_store_bytes,
                    load_bytes: f.spill_load_bytes,
                });
            }
            let bytes = f.shared_bytes.saturating_add(self.dynamic_shared_bytes.unwrap_or(0));
            if bytes > Geometry::SHARED_BYTES {
                found.push(Violation::SharedMemory { bytes });
            }
        }
        for text in &self.advice {
            // By its words: the codes differ with the cause (C7510, C7512, C7515, C7518; C7506, C7507, C7508).
            if text.contains("wgmma.mma_async instructions are serialized") {
                found.push(Violation::WgmmaSerialised(text.clone()));
            } else if text.contains("'setmaxnreg' ignored") {
                found.push(Violation::SetmaxnregIgnored(text.clone()));
            }
        }
        if self.block_barriers > BLOCK_BARRIERS {
            found.push(Violation::SharedBarrier { found: self.block_barriers });
        }
        if self.non_coherent_loads > 0 {
            found.push(Violation::NonCoherentLoad { found: self.non_coherent_loads });
        }
        found
    }

    fn read_log(&mut self, log: &str) {
        for line in log.lines() {
            if let Some((_, name)) = line.split_once("Function properties for ") {
                self.functions.push(Function { name: name.trim().into(), ..Function::default() });
            } else if let Some(text) = advice(line) {
                self.advice.push(text);
            } else if let Some(text) = diagnostic(line, "warning") {
                self.warnings.push(text);
            } else if let Some(f) = self.functions.last_mut() {
                f.read(line);
            }
        }
    }

    fn read_ptx(&mut self, ptx: &str) {
        for line in ptx.lines() {
            let code = line.split("//").next().unwrap_or_default();
            if let Some(bytes) = shared_symbol(code) {
                self.dynamic_shared_bytes = Some(bytes);
            }
            for statement in code.split([';', '{', '}']) {
                self.read_statement(statement.trim());
            }
        }
        self.role_registers.sort_unstable();
        self.role_registers.dedup();
    }

    fn read_statement(&mut self, statement: &str) {
        let mut words = statement.split_whitespace();
        let mut op = words.next().unwrap_or_default();
        // A predicate comes first: `@%p1 bar.sync 0`.
        if op.starts_with('@') {
            op = words.next().unwrap_or_default();
        }
        let parts: Vec<&str> = op.split('.').collect();
        match parts.as_slice() {
            ["wgmma", "mma_async", ..] => self.wgmma += 1,
            ["cp", "async", "bulk", rest @ ..] if !matches!(rest, ["commit_group" | "wait_group", ..]) => {
                self.bulk_copies += 1;
            }
            ["ld", rest @ ..] if rest.contains(&"nc") => self.non_coherent_loads += 1,
            ["call", ..] => self.calls += 1,
            ["setmaxnreg", ..] => {
                self.role_registers.extend(words.next().and_then(|n| n.parse::<u32>().ok()))
            }
            ["bar" | "barrier", rest @ ..] => match barrier(rest, statement) {
                Some(of) if ROLE_BARRIERS.contains(&of) => self.role_barriers += 1,
                Some(_) => self.block_barriers += 1,
                None => {}
            },
            _ => {}
        }
    }
}

/// Number and threads of a barrier that threads wait or arrive at: `bar.sync 1, 128`, `barrier.cta.red.or.pred p, 1, 128, q`.
/// Without a number of threads, or with one that is only known later, it is one of the whole block: 0 threads. `bar.warp` is
/// none.
fn barrier(op: &[&str], statement: &str) -> Option<[u32; 2]> {
    let op = if op.first() == Some(&"cta") { &op[1..] } else { op };
    let behind = statement.find("bar").and_then(|at| statement[at..].split_once(char::is_whitespace));
    let operands: Vec<&str> = behind.map_or(vec![], |(_, rest)| rest.split(',').map(str::trim).collect());
    let numbers = match (op.first(), operands.as_slice()) {
        (Some(&("sync" | "arrive")), [id, threads]) => [id, threads],
        (Some(&"red"), [_, id, threads, _]) => [id, threads],
        (Some(&("sync" | "arrive" | "red")), _) => return Some([0, 0]),
        _ => return None,
    };
    Some(numbers.map(|n| n.parse().unwrap_or(0)))
}

impl Function {
    /// One line of what the assembler says of it.
    fn read(&mut self, line: &str) {
        // `Used 168 registers, used 1 barriers, 1024 bytes smem, 600 bytes cmem[0]`, or
        // `0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads`.
        for part in line.split(',') {
            let words: Vec<&str> = part.split_whitespace().collect();
            let number =
                |behind: usize| words.iter().rev().nth(behind).and_then(|w| w.parse().ok()).unwrap_or(0);
            match words.as_slice() {
                [.., "stack", "frame"] => self.stack_bytes = number(3),
                [.., "spill", "stores"] => self.spill_store_bytes = number(3),
                [.., "spill", "loads"] => self.spill_load_bytes = number(3),
                [.., "registers"] => self.registers = number(1),
                [.., "barriers"] => self.barriers = number(1),
                [.., "bytes", "smem"] => self.shared_bytes = number(2),
                [.., "bytes", bank] if bank.starts_with("cmem") => {
                    self.constant_bytes = self.constant_bytes.saturating_add(number(2))
                }
                _ => {}
            }
        }
    }
}

/// `ptxas info : (C7510) Potential Performance Loss: ...` as `C7510 Potential ...`.
fn advice(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("(C")?;
    let (code, text) = rest.split_once(')')?;
    let is_code = code.len() == 4 && code.bytes().all(|b| b.is_ascii_digit());
    is_code.then(|| format!("C{code} {}", text.trim()))
}

/// `gemm.cuh(12): error: text` or `gemm.cuh(12): warning #177-D: text` as `gemm.cuh:12: text`.
pub(crate) fn diagnostic(line: &str, kind: &str) -> Option<String> {
    let (place, text) = line.split_once("): ")?;
    let (file, number) = place.rsplit_once('(')?;
    number.parse::<u32>().ok()?;
    // `error`, `catastrophic error`, `warning #177-D`.
    let (word, text) = text.split_once(": ")?;
    if !word.split(' ').any(|w| w == kind) {
        return None;
    }
    Some(format!("{file}:{number}: {}", text.trim()))
}

/// `.global .align 4 .u32 mk_shared_bytes = 231168;`
fn shared_symbol(code: &str) -> Option<u32> {
    let (name, value) = code.trim().trim_end_matches(';').split_once('=')?;
    (name.split_whitespace().last()? == SHARED_SYMBOL).then(|| value.trim().parse().ok())?
}

#[cfg(test)]
mod tests;
