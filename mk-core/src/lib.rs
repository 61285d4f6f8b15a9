//! The ground floor of mKernel: programs, the handlers and transports that they are made of, and the verifier.
//!
//! A [`Program`] is a graph of tasks that one persistent kernel runs on every GPU of a [`World`]. Each task is one
//! [`Handler`]'s work; it waits for [`Signal`] words and posts them. A [`ProgramBuilder`] makes one,
//! [`Program::verify`] proves that it can neither deadlock nor race, and a [`Session`] runs it: a simulator on a
//! laptop, or GPUs.
//!
//! | module | what is there |
//! |---|---|
//! | [`ids`], [`limits`], [`dtype`], [`error`] | the words of the language |
//! | [`topology`], [`hardware`], [`caps`], [`transport`] | what connects ranks, and what it costs |
//! | [`region`], [`signal`], [`task`], [`program`], [`builder`], [`mod@file`] | programs |
//! | [`args`], [`handler`], [`comm`], [`registry`] | what tasks do |
//! | [`operator`], [`plans`] | what plans programs, and remembers them |
//! | [`mod@verify`], [`session`], [`trace`] | proving and running, and what happened when |

extern crate self as mk_core;

pub mod args;
pub mod builder;
pub mod caps;
pub mod comm;
mod config;
pub mod dtype;
pub mod error;
pub mod file;
#[doc(hidden)]
pub mod fuzz;
pub mod handler;
pub mod hardware;
pub mod ids;
mod launcher;
pub mod limits;
pub mod operator;
pub mod plans;
pub mod program;
pub mod region;
pub mod registry;
pub mod session;
pub mod signal;
pub mod task;
mod then;
pub mod topology;
pub mod trace;
pub mod transport;
pub mod verify;
mod well_formed;

pub use args::{DeviceAbi, DeviceField, Field};
pub use builder::{Label, Op, PostTo, ProgramBuilder, SignalRef, TaskRef, WaitFor, deal};
pub use caps::Caps;
pub use comm::{CommOp, CopyArgs, Direction, SyncArgs, copy_model, copy_spec, sync_spec};
pub use dtype::DType;
pub use error::{ArgError, Error, Explanation};
pub use handler::{
    Access, Carrier, Device, DynHandler, Env, Handler, HandlerRef, Mode, Phase, Proxy, Spec, Step, Stream,
    View, Views, Walk, Work,
};
pub use hardware::{Cost, Hardware};
pub use ids::{Lane, Node, OpId, Rank, RegionId, TaskId};
pub use limits::Limits;
pub use operator::Operator;
pub use plans::Plans;
pub use program::{HandlerId, Memory, Program, Queue, StreamTasks};
pub use region::{Io, Rect, Region, RegionKind, Shape};
pub use registry::{Registry, RegistryBuilder, Route};
pub use session::{Bindings, Fault, Reason, RunError, Session, Tensor};
pub use signal::{Signal, SignalKind};
pub use task::{Post, PostAt, Task, Wait, WaitAt};
pub use topology::{NodeSpec, Topology, World};
pub use trace::{Slice, TaskNames, Trace};
pub use transport::{Health, Heap, Link, LinkModel, Meeting, Port, Transport};
pub use verify::{Finding, Proof, Verdict, Verified};

/// What the macros of this crate need from others.
#[doc(hidden)]
pub mod macro_support {
    pub use serde::{self, Deserialize, Serialize};
}

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
