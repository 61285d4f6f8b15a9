//! The registry: which handlers and transports a deployment has.

use crate::{
    Caps, CommOp, Error, Handler, HandlerRef, Hardware, Heap, Limits, LinkModel, Meeting, Rank, RunError,
    Topology, Transport, World,
};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// A transport with its handlers and the capabilities that all ranks agreed on.
struct Registered {
    transport: Box<dyn Transport>,
    agreed: Caps,
    ops: BTreeMap<CommOp, u16>,
}

/// Handlers and transports, complete and checked. Opcodes are places in the list of handlers, which is sorted by name.
///
/// Cheap to clone.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    world: World,
    handlers: Vec<HandlerRef>,
    by_name: HashMap<&'static str, u16>,
    transports: Vec<Registered>,
    /// Index of the transport that registered a handler.
    transport_of: Vec<Option<usize>>,
}

/// Puts a [`Registry`] together.
#[derive(Default)]
pub struct RegistryBuilder {
    transports: Vec<Box<dyn Transport>>,
    handlers: Vec<HandlerRef>,
    offers: HashMap<String, Vec<Caps>>,
}

impl RegistryBuilder {
    /// Registers a transport and its handlers.
    #[must_use]
    pub fn transport(mut self, transport: impl Transport) -> Self {
        self.transports.push(Box::new(transport));
        self
    }

    /// Registers one handler.
    #[must_use]
    pub fn handler(mut self, handler: impl Handler) -> Self {
        self.handlers.push(Arc::new(handler));
        self
    }

    /// Registers a crate's handlers.
    #[must_use]
    pub fn handlers(mut self, handlers: impl IntoIterator<Item = HandlerRef>) -> Self {
        self.handlers.extend(handlers);
        self
    }

    /// What the ranks offer for the transport of this name, as each of them probed it. Without this call the own
    /// probe stands for all. Capabilities are the AND over all offers.
    #[must_use]
    pub fn offers(mut self, transport: &str, offers: impl IntoIterator<Item = Caps>) -> Self {
        self.offers.insert(transport.into(), offers.into_iter().collect());
        self
    }

    /// Checks names and limits, probes the transports and agrees on capabilities.
    ///
    /// # Errors
    /// Two handlers or transports of one name, too many handlers, offers for an unknown transport, a failed probe.
    pub fn build(self, world: &World) -> Result<Registry, Error> {
        let mut handlers: Vec<(HandlerRef, Option<(usize, CommOp)>)> =
            self.handlers.into_iter().map(|h| (h, None)).collect();
        let mut transports: Vec<Registered> = Vec::new();
        let mut offers = self.offers;
        for (i, transport) in self.transports.into_iter().enumerate() {
            if transports.iter().any(|t| t.transport.name() == transport.name()) {
                return Err(twice("transport", transport.name()));
            }
            handlers.extend(transport.handlers().into_iter().map(|(op, h)| (h, Some((i, op)))));
            let agreed = match offers.remove(transport.name()) {
                Some(offers) => Caps::agree(offers),
                None => transport.probe()?,
            };
            transports.push(Registered { transport, agreed, ops: BTreeMap::new() });
        }
        if let Some(name) = offers.keys().next() {
            return Err(Error::input(
                "offers for a transport that is not registered",
                name,
                "the registered transports",
                "register the transport first",
            ));
        }
        handlers.sort_by_key(|(h, _)| h.name());
        if let Some(w) = handlers.windows(2).find(|w| w[0].0.name() == w[1].0.name()) {
            return Err(twice("handler", w[0].0.name()));
        }
        if handlers.len() as u64 > Limits::HANDLERS {
            return Err(Error::input(
                "too many handlers",
                handlers.len(),
                format!("at most {}", Limits::HANDLERS),
                "register only what the deployment uses",
            ));
        }
        for (opcode, (_, from)) in handlers.iter().enumerate() {
            if let Some((i, op)) = *from {
                transports[i].ops.insert(op, opcode as u16);
            }
        }
        let by_name = handlers.iter().enumerate().map(|(i, (h, _))| (h.name(), i as u16)).collect();
        let transport_of = handlers.iter().map(|(_, from)| from.map(|(i, _)| i)).collect();
        let handlers = handlers.into_iter().map(|(h, _)| h).collect();
        let world = world.clone();
        Ok(Registry(Arc::new(Inner { world, handlers, by_name, transports, transport_of })))
    }
}

fn twice(what: &str, name: &str) -> Error {
    Error::input(
        format!("two of one {what}"),
        name,
        format!("each {what} name once"),
        "remove one registration, or give one another name",
    )
}

impl Registry {
    /// An empty registry to fill.
    pub fn builder() -> RegistryBuilder {
        RegistryBuilder::default()
    }

    /// The world that it was built for.
    pub fn world(&self) -> &World {
        &self.0.world
    }

    /// Its topology.
    pub fn topology(&self) -> &Topology {
        &self.0.world.topology
    }

    /// All handlers; a handler's place is its opcode.
    pub fn handlers(&self) -> &[HandlerRef] {
        &self.0.handlers
    }

    /// The handler of this name and its opcode.
    ///
    /// # Errors
    /// No such handler: the error lists those that are registered.
    pub fn handler(&self, name: &str) -> Result<(u16, &HandlerRef), Error> {
        self.0.by_name.get(name).map(|&i| (i, &self.0.handlers[i as usize])).ok_or_else(|| {
            Error::input(
                "unknown handler",
                name,
                self.0.handlers.iter().map(|h| h.name()).collect::<Vec<_>>().join(", "),
                "register the crate that has it, or use a program made for these handlers",
            )
        })
    }

    /// Names of the transports, in the order of registration, which is the order of preference.
    pub fn transports(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.transports.iter().map(|t| t.transport.name())
    }

    /// The first transport that offers all of `need` from `from` to `to`.
    ///
    /// # Errors
    /// [`Error::MissingCapability`] names what is missing, the pair, and what is offered.
    pub fn route(&self, from: Rank, to: Rank, need: Caps) -> Result<Route<'_>, Error> {
        let mut found = Vec::new();
        for index in 0..self.0.transports.len() {
            let caps = self.caps(index, from, to);
            if !caps.is_empty() && caps.contains(need) {
                return Ok(Route { registry: self, index, from, to, caps });
            }
            found.push(format!("{}: {caps}", self.0.transports[index].transport.name()));
        }
        let found = if found.is_empty() { "no transport".into() } else { found.join(", ") };
        Err(Error::MissingCapability { need: need.to_string(), from, to, found })
    }

    /// The route that transport `name` serves from `from` to `to`, whatever it can do.
    pub fn route_of(&self, handler: u16, from: Rank, to: Rank) -> Option<Route<'_>> {
        let index = (*self.0.transport_of.get(handler as usize)?)?;
        let caps = self.caps(index, from, to);
        (!caps.is_empty()).then_some(Route { registry: self, index, from, to, caps })
    }

    /// Whether this handler belongs to a transport.
    #[inline]
    pub fn is_transports(&self, handler: u16) -> bool {
        self.0.transport_of.get(handler as usize).is_some_and(Option::is_some)
    }

    /// Makes memory on every rank that peers reach, by the first transport that does such a thing; `None` if none does. All
    /// processes of the meeting call it.
    ///
    /// # Errors
    /// As [`Transport::connect`].
    pub fn connect(&self, meeting: &Meeting) -> Result<Option<Box<dyn Heap>>, RunError> {
        for t in &self.0.transports {
            if let Some(heap) = t.transport.connect(meeting)? {
                return Ok(Some(heap));
            }
        }
        Ok(None)
    }

    fn caps(&self, index: usize, from: Rank, to: Rank) -> Caps {
        let t = &self.0.transports[index];
        if from == to { Caps::empty() } else { t.transport.caps(self.topology(), from, to) & t.agreed }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handlers: Vec<_> =
            self.0.handlers.iter().map(|h| format!("{}@{}", h.name(), h.version())).collect();
        let transports: Vec<_> = self.transports().collect();
        f.debug_struct("Registry").field("handlers", &handlers).field("transports", &transports).finish()
    }
}

/// A transport, for one pair of ranks.
#[derive(Clone, Copy)]
pub struct Route<'a> {
    registry: &'a Registry,
    index: usize,
    from: Rank,
    to: Rank,
    caps: Caps,
}

impl<'a> Route<'a> {
    /// The transport's name.
    pub fn transport(&self) -> &'static str {
        self.registry.0.transports[self.index].transport.name()
    }

    /// Its place among the registered transports.
    pub fn index(&self) -> usize {
        self.index
    }

    /// What all ranks agreed that it can do for this pair.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// The name of the handler that does `op`.
    ///
    /// # Errors
    /// The transport has no such handler.
    pub fn handler(&self, op: CommOp) -> Result<&'static str, Error> {
        let t = &self.registry.0.transports[self.index];
        t.ops.get(&op).map(|&i| self.registry.0.handlers[i as usize].name()).ok_or_else(|| {
            Error::MissingCapability {
                need: format!("{op:?}"),
                from: self.from,
                to: self.to,
                found: format!("{}: {:?}", self.transport(), t.ops.keys().collect::<Vec<_>>()),
            }
        })
    }

    /// The cost of a transfer.
    pub fn link(&self, hardware: &Hardware) -> LinkModel {
        let t = &self.registry.0.transports[self.index];
        let mut link = t.transport.link(self.registry.topology(), hardware, self.from, self.to);
        link.ordered &= self.caps.contains(Caps::ORDERED);
        link
    }
}
