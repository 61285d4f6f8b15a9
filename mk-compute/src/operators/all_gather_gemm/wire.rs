//! What a message costs on its way from one rank to another, by alpha and beta of the link.

use mk_core::{Caps, CommOp, Error, Hardware, Route};

/// What a byte and a message cost on the way from one rank to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Before the first byte can leave.
    pub(super) start_ns: f64,
    /// From the last byte sent to the signal seen; and a signal's alone.
    pub(super) latency_ns: f64,
    pub(super) way_ns: f64,
    /// What a byte holds the port for, and the lane that sends it.
    pub(super) port_ns: f64,
    pub(super) lane_ns: f64,
    /// From a message asked for to its first byte: nothing where messages are sent.
    pub(super) ask_ns: f64,
    /// Lanes that send or ask, each one message at a time.
    pub(super) lanes: u64,
}

impl Wire {
    /// Where nothing moves.
    pub(super) const NONE: Wire = Wire {
        start_ns: 0.0,
        latency_ns: 0.0,
        way_ns: 0.0,
        port_ns: 0.0,
        lane_ns: 0.0,
        ask_ns: 0.0,
        lanes: 1,
    };

    /// Inside an island: a port of each rank, and lanes that copy at their own pace.
    ///
    /// # Errors
    /// The transport has no handler for `op`.
    pub(super) fn inside(
        route: &Route<'_>,
        op: CommOp,
        lanes: u16,
        hardware: &Hardware,
    ) -> Result<Wire, Error> {
        let wire = Wire::new(route, op, lanes, hardware)?;
        let (way, copy) = (wire.way_ns, 1.0 / hardware.sm_copy_gb_per_s);
        Ok(match op {
            // A lane that pulls waits for the owner's signal, and asks for a message when it has the one before.
            CommOp::Get => Wire {
                start_ns: wire.start_ns + way,
                latency_ns: hardware.local_signal_ns,
                lane_ns: copy,
                ask_ns: 2.0 * way,
                ..wire
            },
            _ => Wire { lane_ns: copy, ..wire },
        })
    }

    /// A port, and lanes that need not copy themselves.
    ///
    /// # Errors
    /// The transport has no handler for `op`.
    pub(super) fn new(route: &Route<'_>, op: CommOp, lanes: u16, hardware: &Hardware) -> Result<Wire, Error> {
        let (link, name) = (route.link(hardware), route.handler(op)?);
        // GPU atomics raise the word when the bytes have landed; a network does so behind them or, without order, when they have
        // been acknowledged.
        let ways = match (route.caps().contains(Caps::ATOMIC_ADD), link.ordered) {
            (true, _) => 2.0,
            (false, true) => 1.0,
            (false, false) => 3.0,
        };
        let port_ns = hardware.factor(name) / link.egress.gb_per_s.min(link.ingress.gb_per_s);
        let (start_ns, way_ns) = (hardware.task_ns, link.latency_ns);
        Ok(Wire {
            start_ns,
            latency_ns: ways * way_ns,
            way_ns,
            port_ns,
            lane_ns: 0.0,
            ask_ns: 0.0,
            lanes: lanes.max(1).into(),
        })
    }

    /// A wire whose port so many ranks share.
    pub(super) fn shared(self, ranks: u32) -> Wire {
        Wire { port_ns: self.port_ns * f64::from(ranks), ..self }
    }

    /// When message `i` of `count` equal ones of `bytes` starts and ends to leave. As many of them as there are lanes are
    /// under way at a time, share the port evenly and leave it together; those of other lanes pass it while one asks.
    pub(super) fn passes(&self, i: u64, count: u64, bytes: f64) -> (f64, f64) {
        let first = i / self.lanes * self.lanes;
        let turns = |done: u64| done.div_ceil(self.lanes) as f64 * (self.ask_ns + bytes * self.lane_ns);
        let ported = |done: u64| self.ask_ns + done as f64 * bytes * self.port_ns;
        let at = |done: u64| self.start_ns + turns(done).max(ported(done));
        (at(first), at((first + self.lanes).min(count.max(first))))
    }
}

/// When the slices of a row block are there, in nanoseconds: the first, and the last; those between are spread evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct When {
    pub(super) first: f64,
    pub(super) last: f64,
}

impl When {
    /// A message that leaves from `start` to `end`, in `slices` slices.
    pub(super) fn of((start, end): (f64, f64), slices: f64, latency: f64) -> When {
        When { first: start + (end - start) / slices + latency, last: end + latency }
    }

    /// When slice `i` of `slices` is there.
    pub(super) fn slice(&self, i: u16, slices: u16) -> f64 {
        match slices {
            0 | 1 => self.last,
            _ => self.first + (self.last - self.first) * f64::from(i) / f64::from(slices - 1),
        }
    }
}
