//! How a program of copies is put together.

use crate::context::Context;
use crate::network::Network;
use mk_core::{CommOp, SignalKind};

/// When a copy tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tell {
    /// All has landed.
    Done,
    /// All has been read.
    Loaded,
    /// Every so many units.
    Units(u64),
}

/// How a program of copies is put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) network: Network,
    /// What copies.
    pub(super) op: CommOp,
    /// A signal tells the peer, not the copy itself.
    pub(super) relay: bool,
    pub(super) tell: Tell,
    /// Of the words that tell the peer.
    pub(super) kind: SignalKind,
    /// All copies post to one word, and each reader waits for a prefix of them.
    pub(super) prefix: bool,
    /// Waits are joined by wait tasks.
    pub(super) join: bool,
    /// Most copies go to one rank, so many that several tasks join them.
    pub(super) gathers: bool,
    /// Tasks are claimed by ticket.
    pub(super) tickets: bool,
}

/// The branches that programs of copies of any kind take.
const COMMON: [&str; 14] = [
    "several units",
    "a partial unit",
    "an empty unit",
    "no elements",
    "to itself",
    "to a peer",
    "both ways",
    "several copies",
    "read when all has arrived",
    "rotating regions",
    "staging memory",
    "integers",
    "NaN in the data",
    "joined waits",
];

impl Style {
    /// The branches that programs for this operation must take.
    pub(super) fn branches(op: CommOp, network: Network) -> Vec<&'static str> {
        let (mapped, may_tell) = (network == Network::Mapped, may_tell(op, network));
        let mut all = COMMON.to_vec();
        let mut add = |possible, branches: &[&'static str]| all.extend(branches.iter().filter(|_| possible));
        add(mapped, &["a ticket queue"]);
        add(may_tell, &["told by a signal", "told by itself"]);
        add(may_tell && op != CommOp::Get, &["told in units"]);
        add(may_tell || op == CommOp::Get, &["read unit by unit"]);
        add(mapped && op == CommOp::Get, &["told when loaded"]);
        add(op == CommOp::ReducePut, &["several adds to one place"]);
        add(may_tell && writes(op), &["a prefix of a stream", "packets"]);
        all
    }

    /// The branches of [`Style::signals`].
    pub(super) fn signal_branches(network: Network) -> Vec<&'static str> {
        let mut all = COMMON.to_vec();
        all.push("read unit by unit");
        all.extend((network == Network::Mapped).then_some("a ticket queue"));
        all
    }

    /// The branches of [`Style::waits`].
    pub(super) fn wait_branches(network: Network) -> Vec<&'static str> {
        let mut all = Style::branches(CommOp::PutSignal, network);
        all.retain(|b| !["a prefix of a stream", "read unit by unit"].contains(b));
        all.push("several joins of a rank");
        all
    }

    /// Any style for programs of `op`.
    pub(super) fn draw(c: &mut Context, op: CommOp) -> Style {
        let (relay, join) = (Style::relays(c, op), c.random.one_in(5));
        Style::with(c, op, relay, join)
    }

    /// Every copy is told of by a signal.
    pub(super) fn signals(c: &mut Context) -> Style {
        let (op, join) = (c.random.pick(&[CommOp::Put, CommOp::Get]), c.random.one_in(5));
        Style::with(c, op, true, join)
    }

    /// All waits are joined.
    pub(super) fn waits(c: &mut Context) -> Style {
        let relay = Style::relays(c, CommOp::PutSignal);
        Style { gathers: true, ..Style::with(c, CommOp::PutSignal, relay, true) }
    }

    fn relays(c: &mut Context, op: CommOp) -> bool {
        if !may_tell(op, c.network) {
            return true;
        }
        let relay = c.choose("told by a signal", true, 5);
        c.note("told by itself", !relay);
        relay
    }

    fn with(c: &mut Context, op: CommOp, relay: bool, join: bool) -> Style {
        let network = c.network;
        let kind = if network == Network::Mapped { c.random.pick(&KINDS) } else { SignalKind::Set };
        let tell = Tell::Done;
        let mut style =
            Style { network, op, relay, tell, kind, prefix: false, join, gathers: false, tickets: false };
        c.note("joined waits", join);
        style.draw_words(c);
        style.draw_streams(c);
        style
    }

    fn draw_words(&mut self, c: &mut Context) {
        let (mapped, itself) = (self.network == Network::Mapped, !self.relay);
        if c.choose("packets", itself && writes(self.op), 5) {
            self.kind = SignalKind::Packet;
        }
        if c.choose("told in units", itself && self.op != CommOp::Get, 2) {
            self.tell = Tell::Units(c.random.range(1, 3));
        } else if c.choose("told when loaded", itself && self.op == CommOp::Get && mapped, 2) {
            self.tell = Tell::Loaded;
        }
    }

    fn draw_streams(&mut self, c: &mut Context) {
        let one_word = self.tell == Tell::Done && self.kind != SignalKind::Packet && writes(self.op);
        self.prefix = c.choose("a prefix of a stream", one_word && !self.relay && !self.join, 2);
        let adds = self.kind == SignalKind::Add && !self.prefix;
        self.tickets = c.choose("a ticket queue", adds && self.network == Network::Mapped, 3);
    }

    /// The transport's name for an operation.
    pub(super) fn name_of(&self, op: CommOp) -> &'static str {
        match (self.network, op) {
            (Network::Mapped, CommOp::Put) => "nvlink.put",
            (Network::Mapped, CommOp::Get) => "nvlink.get",
            (Network::Mapped, CommOp::PutSignal) => "nvlink.put_signal",
            (Network::Mapped, CommOp::Signal) => "nvlink.signal",
            (Network::Mapped, CommOp::Wait) => "nvlink.wait",
            (Network::Mapped, CommOp::ReducePut) => "nvlink.reduce_put",
            (_, CommOp::Put) => "rdma.put",
            (_, CommOp::Get) => "rdma.get",
            (_, CommOp::PutSignal) => "rdma.put_signal",
            (_, CommOp::Signal) => "rdma.signal",
            (_, CommOp::Wait) => "rdma.wait",
            (_, CommOp::ReducePut) => "rdma.reduce_put",
        }
    }

    /// The handler that copies.
    pub(super) fn handler(&self) -> &'static str {
        self.name_of(self.op)
    }

    /// Whether what arrives can be read unit by unit.
    pub(super) fn by_unit(&self) -> bool {
        self.op == CommOp::Get || (matches!(self.tell, Tell::Units(_)) && !self.join)
    }
}

const KINDS: [SignalKind; 3] = [SignalKind::Add, SignalKind::Add, SignalKind::Set];

/// Whether the operation can tell the peer by itself: over a network, only what carries its own signals does.
fn may_tell(op: CommOp, network: Network) -> bool {
    network == Network::Mapped || matches!(op, CommOp::PutSignal | CommOp::ReducePut)
}

/// Whether it overwrites memory of the peer.
fn writes(op: CommOp) -> bool {
    matches!(op, CommOp::Put | CommOp::PutSignal)
}
