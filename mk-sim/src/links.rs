//! Links: latency, shared ports, order, and what faults do to a message.

use crate::faults::Faults;
use crate::hash::Map;
use crate::random::Random;
use crate::report::LinkReport;
use mk_core::{Caps, Hardware, LinkModel, Rank, Registry, Route};

/// Picoseconds in a nanosecond. Times are integers, so that a sum does not depend on its order.
pub(crate) const NS: f64 = 1000.0;
/// Picoseconds in a microsecond.
pub(crate) const US: f64 = 1e6;

/// The link of a rank to itself.
pub(crate) const LOCAL: u32 = u32::MAX;

/// A place that traffic shares.
struct Port {
    ps_per_byte: f64,
    /// From when on nothing is booked.
    free: u64,
    /// Before that: what is not booked, in order. A message books its way in when it leaves, so that one that leaves later may
    /// be there first.
    gaps: Vec<(u64, u64)>,
}

impl Port {
    /// Books the first time from `from` on (`now` or later) in which `bytes` can pass: from when to when.
    fn pass(&mut self, now: u64, from: u64, bytes: f64) -> (u64, u64) {
        let took = (bytes * self.ps_per_byte) as u64;
        self.gaps.retain(|gap| gap.1 > now);
        let fits = |gap: &(u64, u64)| gap.0.max(from) + took <= gap.1;
        if let Some(i) = self.gaps.iter().position(fits) {
            let (begin, end) = self.gaps[i];
            let start = begin.max(from);
            let left = [(begin, start), (start + took, end)].into_iter().filter(|gap| gap.0 < gap.1);
            self.gaps.splice(i..=i, left);
            return (start, start + took);
        }
        let start = self.free.max(from);
        if start > self.free {
            self.gaps.push((self.free, start));
        }
        self.free = start + took;
        (start, self.free)
    }
}

/// One direction between two ranks over one transport.
pub(crate) struct Link {
    pub(crate) transport: &'static str,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// Picoseconds.
    pub(crate) latency: f64,
    pub(crate) ordered: bool,
    /// What one lane can copy through it: limits links of mapped memory only, elsewhere the NIC moves the bytes.
    lane_ps_per_byte: f64,
    egress: u32,
    ingress: u32,
    /// The last arrival, on a link that keeps order; and that of a signal.
    last: u64,
    last_signal: u64,
    /// The last arrival of a signal that GPU atomics carry.
    last_atomic: u64,
    pub(crate) bytes: u64,
    pub(crate) busy: u64,
    pub(crate) signals: u64,
    transfers: u64,
}

/// How a transfer goes.
pub(crate) struct Transfer {
    /// When the last byte has left the sender.
    pub(crate) left: u64,
    /// When all of it has arrived, for the last time.
    pub(crate) arrival: u64,
    /// When it arrived for the first time, if it arrives twice.
    pub(crate) early: Option<u64>,
    /// The NIC says, at `arrival`, that it failed.
    pub(crate) failed: bool,
}

/// How a signal goes.
pub(crate) struct Sent {
    pub(crate) arrival: u64,
    /// When it arrives for a second time.
    pub(crate) again: Option<u64>,
}

/// All links that programs of a session use.
pub(crate) struct Links {
    registry: Registry,
    hardware: Hardware,
    pub(crate) all: Vec<Link>,
    ports: Vec<Port>,
    ids: Map<(usize, Rank, Rank), u32>,
    port_ids: Map<(usize, u32), u32>,
    /// By opcode + 1, or 0 for GPU atomics.
    found: Map<(u32, Rank, Rank), Option<u32>>,
    /// The answer of the last question: tasks that follow each other often ask the same.
    recent: ((u32, Rank, Rank), Option<u32>),
}

/// How much later than its fellows an overtaken message arrives, in latencies.
const OVERTAKEN: f64 = 4.0;

impl Links {
    pub(crate) fn new(registry: &Registry, hardware: &Hardware) -> Links {
        Links {
            registry: registry.clone(),
            hardware: hardware.clone(),
            all: Vec::new(),
            ports: Vec::new(),
            ids: Map::default(),
            port_ids: Map::default(),
            found: Map::default(),
            recent: ((u32::MAX, Rank(0), Rank(0)), None),
        }
    }

    /// The link by which a frame raises words of `to`.
    pub(crate) fn atomic(&mut self, from: Rank, to: Rank) -> Option<u32> {
        self.find(0, from, to)
    }

    /// The link of a handler: its transport's, or that of mapped memory if it belongs to none.
    pub(crate) fn of_handler(&mut self, opcode: u16, from: Rank, to: Rank) -> Option<u32> {
        let key = if self.registry.is_transports(opcode) { u32::from(opcode) + 1 } else { 0 };
        self.find(key, from, to)
    }

    fn find(&mut self, key: u32, from: Rank, to: Rank) -> Option<u32> {
        if from == to {
            return Some(LOCAL);
        }
        let key = (key, from, to);
        if self.recent.0 == key {
            return self.recent.1;
        }
        let found = match self.found.get(&key) {
            Some(found) => *found,
            None => {
                let registry = self.registry.clone();
                let route = match key.0 {
                    0 => registry.route(from, to, Caps::ATOMIC_ADD).ok(),
                    opcode => registry.route_of((opcode - 1) as u16, from, to),
                };
                let found = route.map(|r| self.add(&r, from, to));
                self.found.insert(key, found);
                found
            }
        };
        self.recent = (key, found);
        found
    }

    fn add(&mut self, route: &Route<'_>, from: Rank, to: Rank) -> u32 {
        let transport = route.index();
        if let Some(&id) = self.ids.get(&(transport, from, to)) {
            return id;
        }
        let LinkModel { latency_ns, egress, ingress, ordered } = route.link(&self.hardware);
        let topology = self.registry.topology();
        let lane = if topology.mapped(from, to) { NS / self.hardware.sm_copy_gb_per_s } else { 0.0 };
        let mut port = |p: mk_core::Port| {
            let ports = &mut self.ports;
            *self.port_ids.entry((transport, p.id)).or_insert_with(|| {
                ports.push(Port { ps_per_byte: NS / p.gb_per_s, free: 0, gaps: Vec::new() });
                (ports.len() - 1) as u32
            })
        };
        let link = Link {
            transport: route.transport(),
            from,
            to,
            latency: latency_ns * NS,
            ordered,
            lane_ps_per_byte: lane,
            egress: port(egress),
            ingress: port(ingress),
            last: 0,
            last_signal: 0,
            last_atomic: 0,
            bytes: 0,
            busy: 0,
            signals: 0,
            transfers: 0,
        };
        let id = self.all.len() as u32;
        self.all.push(link);
        self.ids.insert((transport, from, to), id);
        id
    }

    /// What went through them since [`Links::restart`].
    pub(crate) fn report(&self) -> Vec<LinkReport> {
        let used = self.all.iter().filter(|l| l.bytes > 0 || l.signals > 0);
        let report = |l: &Link| LinkReport {
            transport: l.transport,
            from: l.from,
            to: l.to,
            bytes: l.bytes,
            busy_ns: l.busy / NS as u64,
            signals: l.signals,
        };
        used.map(report).collect()
    }

    /// Starts the clock of a run: nothing is under way.
    pub(crate) fn restart(&mut self) {
        for port in &mut self.ports {
            port.free = 0;
            port.gaps.clear();
        }
        for l in &mut self.all {
            (l.last, l.last_signal, l.last_atomic, l.bytes, l.busy, l.signals) = (0, 0, 0, 0, 0, 0);
        }
    }

    /// Sends `bytes` from `now` on. Both ports are held for as long as the bytes take to pass them: `weight` times what the
    /// profile says of the ports.
    pub(crate) fn transfer(
        &mut self,
        link: u32,
        now: u64,
        bytes: u64,
        weight: f64,
        chance: &mut Chance<'_>,
    ) -> Transfer {
        let mut transfer = self.reply(link, now, bytes, weight, chance);
        let l = &mut self.all[link as usize];
        if l.ordered {
            transfer.arrival = transfer.arrival.max(l.last + 1);
            l.last = transfer.arrival;
        }
        transfer
    }

    /// The same of bytes that were asked for: they keep no order with those that others ask for.
    pub(crate) fn reply(
        &mut self,
        link: u32,
        now: u64,
        bytes: u64,
        weight: f64,
        chance: &mut Chance<'_>,
    ) -> Transfer {
        let (l, weighed) = (&mut self.all[link as usize], bytes as f64 * weight);
        let (start, out) = self.ports[l.egress as usize].pass(now, now, weighed);
        let latency = chance.latency(l.latency);
        // A port that is both ways, as in a shared medium, is held once.
        let into = match l.egress == l.ingress {
            true => out + latency,
            false => self.ports[l.ingress as usize].pass(now, start + latency, weighed).1,
        };
        let left = out.max(now + (bytes as f64 * l.lane_ps_per_byte) as u64);
        let mut arrival = into.max(left + latency) + chance.late(l);
        let mut early = None;
        if !l.ordered && chance.random.chance(chance.faults.duplicate) {
            early = Some(arrival);
            arrival += 1 + (l.latency * chance.random.unit()) as u64;
        }
        l.bytes += bytes;
        l.busy += out - start;
        l.transfers += 1;
        let nic = chance.faults.nic_error;
        let failed = nic.is_some_and(|n| (n.from, n.to) == (l.from, l.to) && l.transfers > n.after_transfers);
        Transfer { left, arrival, early, failed }
    }

    /// Sends a signal by GPU atomics; those of one pair of ranks arrive in order.
    pub(crate) fn atomic_signal(&mut self, link: u32, now: u64, chance: &mut Chance<'_>) -> Sent {
        let l = &mut self.all[link as usize];
        l.signals += 1;
        let mut arrival = now + chance.latency(l.latency) + chance.late(l);
        arrival = arrival.max(l.last_atomic + 1);
        l.last_atomic = arrival;
        Sent { arrival, again: None }
    }

    /// Sends a signal by the transport. Behind data that has just arrived on a link that keeps order it is there at
    /// once (`behind`).
    pub(crate) fn signal(&mut self, link: u32, now: u64, behind: bool, chance: &mut Chance<'_>) -> Sent {
        let l = &mut self.all[link as usize];
        l.signals += 1;
        let latency = if behind { 0 } else { chance.latency(l.latency) };
        let late = chance.late(l);
        let mut arrival = now + latency + late;
        if l.ordered {
            // What is still under way was sent behind the data that it follows, and comes later.
            let after = if behind && late == 0 { l.last_signal } else { l.last };
            arrival = arrival.max(after + 1);
            (l.last, l.last_signal) = (l.last.max(arrival), arrival);
            return Sent { arrival, again: None };
        }
        let again = chance.random.chance(chance.faults.duplicate);
        let again = again.then(|| arrival + 1 + (l.latency * chance.random.unit()) as u64);
        Sent { arrival, again }
    }
}

/// What a run leaves to chance on its links.
pub(crate) struct Chance<'a> {
    pub(crate) faults: &'a Faults,
    pub(crate) random: &'a mut Random,
    /// Latencies vary by this much even without faults (0 without a seed).
    pub(crate) spread: f64,
}

impl Chance<'_> {
    /// One latency, in picoseconds.
    #[inline]
    pub(crate) fn latency(&mut self, latency: f64) -> u64 {
        let spread = self.spread + self.faults.jitter;
        if spread == 0.0 {
            return latency as u64;
        }
        (latency * (1.0 + spread * self.random.unit())) as u64
    }

    /// How much later than it should a message arrives.
    #[inline]
    fn late(&mut self, l: &Link) -> u64 {
        let (faults, random) = (self.faults, &mut *self.random);
        let mut late = 0.0;
        if random.chance(faults.delay.probability) {
            late += faults.delay.max_us * US * random.unit();
        }
        while random.chance(faults.drop.probability) {
            late += faults.drop.retransmit_us * US;
        }
        if !l.ordered && random.chance(faults.reorder) {
            late += OVERTAKEN * l.latency * random.unit();
        }
        late as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(ordered: bool) -> Links {
        let registry = Registry::builder().build(&mk_core::World::local(2).unwrap()).unwrap();
        let mut links = Links::new(&registry, &Hardware::h200());
        links.ports = vec![
            Port { ps_per_byte: 1.0, free: 0, gaps: Vec::new() },
            Port { ps_per_byte: 2.0, free: 0, gaps: Vec::new() },
        ];
        links.all.push(Link {
            transport: "test",
            from: Rank(0),
            to: Rank(1),
            latency: 1e6,
            ordered,
            lane_ps_per_byte: 0.0,
            egress: 0,
            ingress: 1,
            last: 0,
            last_signal: 0,
            last_atomic: 0,
            bytes: 0,
            busy: 0,
            signals: 0,
            transfers: 0,
        });
        links
    }

    /// Arrivals of data and signals, in the order in which they were sent.
    fn arrivals(ordered: bool, faults: &str) -> Vec<u64> {
        let (mut links, mut random) = (link(ordered), Random::new(9));
        let faults = Faults::from_toml(faults).unwrap();
        let mut chance = Chance { faults: &faults, random: &mut random, spread: 0.25 };
        let send = |i: u64| match i % 2 {
            0 => links.transfer(0, i * 1000, 100, 1.0, &mut chance).arrival,
            _ => links.signal(0, i * 1000, false, &mut chance).arrival,
        };
        (0..200).map(send).collect()
    }

    #[test]
    fn only_links_without_order_let_messages_overtake() {
        for faults in [
            "",
            "reorder = 0.5",
            "delay = { probability = 0.5, max_us = 9.0 }",
            "duplicate = 0.5\njitter = 2.0",
        ] {
            assert!(arrivals(true, faults).windows(2).all(|a| a[0] < a[1]), "{faults}");
            assert!(!arrivals(false, faults).is_sorted(), "{faults}");
        }
    }

    #[test]
    fn a_transfer_takes_what_the_narrower_port_takes_and_one_latency() {
        let (mut links, mut random) = (link(true), Random::new(1));
        let mut chance = Chance { faults: &Faults::default(), random: &mut random, spread: 0.0 };
        let first = links.transfer(0, 0, 1000, 1.0, &mut chance);
        assert_eq!((first.left, first.arrival), (1000, 1_000_000 + 2000));
        // The second waits for both ports.
        let second = links.transfer(0, 0, 1000, 1.0, &mut chance);
        assert_eq!((second.left, second.arrival), (2000, 1_000_000 + 4000));
        assert_eq!(links.report()[0].bytes, 2000);
    }
}
