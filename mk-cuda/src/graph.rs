//! Recorded work, for any number of replays.

use crate::context::{Context, Shared};
use crate::error::Error;
use crate::ledger::{Entry, Kind};
use crate::stream::Stream;
use cudarc::driver::sys;
use std::fmt;
use std::ptr;

/// Work that a stream was given while it recorded, to be done again and again.
pub struct Graph {
    recorded: Recorded,
    handle: Shared<sys::CUgraphExec_st>,
    entry: Entry,
}

impl Graph {
    /// Records the work that `give` gives to the stream; none of it is done yet.
    ///
    /// # Errors
    /// What `give` says, or made of [`Error::Call`]: the stream was recording already, or some of the work cannot be recorded.
    pub fn record<E: From<Error>>(stream: &Stream, give: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        let context = stream.context();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        context.call(|calls| unsafe { calls.cuStreamBeginCapture_v2(stream.handle(), mode) })?;
        let recording = Recording(stream);
        give()?;
        std::mem::forget(recording);
        Ok(Graph::of(Recorded::end(stream)?)?)
    }

    fn of(recorded: Recorded) -> Result<Graph, Error> {
        let context = recorded.context.clone();
        context.call(|calls| {
            let mut ready = ptr::null_mut();
            // SAFETY: it points at a handle of ours; the graph lives.
            unsafe { calls.cuGraphInstantiateWithFlags(&raw mut ready, recorded.handle.0, 0) }?;
            Ok(Graph { recorded, handle: Shared(ready), entry: context.open(Kind::Graph) })
        })
    }

    /// Does the recorded work, behind all work of the stream so far. Does not wait.
    ///
    /// # Errors
    /// [`Error::ContextLost`], [`Error::Call`].
    ///
    /// # Safety
    /// What was promised for the work that was recorded holds again.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: graph and stream live; the work is the caller's promise.
        self.recorded.context.call(|calls| unsafe { calls.cuGraphLaunch(self.handle.0, stream.handle()) })
    }
}

/// A stream that records: whatever ends what it is given, it does not go on.
struct Recording<'a>(&'a Stream);

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        // What was recorded is dropped. Why it was not whole is told already.
        let _ = Recorded::end(self.0);
    }
}

/// What was recorded, before it is made ready.
struct Recorded {
    context: Context,
    handle: Shared<sys::CUgraph_st>,
    entry: Entry,
}

impl Recorded {
    /// Ends the recording, also of work that could not be given.
    fn end(stream: &Stream) -> Result<Recorded, Error> {
        let context = stream.context();
        context.call(|calls| {
            let mut graph = ptr::null_mut();
            // SAFETY: the stream lives; it points at a handle of ours.
            unsafe { calls.cuStreamEndCapture(stream.handle(), &raw mut graph) }?;
            Ok(Recorded { context: context.clone(), handle: Shared(graph), entry: context.open(Kind::Graph) })
        })
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: recorded, and not destroyed yet.
        self.context.release(&self.entry, |calls| unsafe { calls.cuGraphDestroy(self.handle.0) });
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:?})", self.recorded.context)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let context = &self.recorded.context;
        // SAFETY: made in `of`, and not destroyed yet. Work that goes on keeps what it needs.
        context.release(&self.entry, |calls| unsafe { calls.cuGraphExecDestroy(self.handle.0) });
    }
}
