//! What is going to happen, in order of time.

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum What {
    /// A compute task has loaded its blocks up to `arg`.
    Loaded,
    /// A compute task has computed.
    Computed,
    /// A part of a compute task's stores lands, or all of them for a first time.
    StoreEarly,
    /// A compute task has stored.
    Stored,
    /// A comm task has read block `arg`.
    Read,
    /// A part of block `arg` lands, or all of it for a first time.
    LandEarly,
    /// Block `arg` of a comm task has landed.
    Land,
    /// A post arrives: `arg` is its place among those that are under way.
    Post,
    /// The same `Set` post arrives for a second time.
    PostAgain,
    /// A transfer of block `arg` failed.
    NicError,
    /// Rank `arg` is killed.
    Kill,
    /// The survivors miss rank `arg`.
    Missed,
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// When, in picoseconds.
    pub(crate) time: u64,
    /// Orders events of one time.
    tie: u64,
    pub(crate) what: What,
    pub(crate) slot: u8,
    pub(crate) unit: u32,
    pub(crate) arg: u32,
}

impl Event {
    pub(crate) fn new(time: u64, what: What, unit: u32, slot: u8, arg: u32) -> Event {
        Event { time, tie: 0, what, slot, unit, arg }
    }

    #[inline]
    fn before(&self, other: &Event) -> bool {
        (self.time, self.tie) < (other.time, other.tie)
    }
}

/// Children of a node: a flat heap touches fewer cache lines than a binary one.
const WIDTH: usize = 4;

/// A heap of events.
#[derive(Default)]
pub(crate) struct Queue {
    heap: Vec<Event>,
    pushed: u64,
}

impl Queue {
    /// Adds an event. Events of one time leave in the order of `chance`, then of their arrival.
    #[inline]
    pub(crate) fn push(&mut self, mut event: Event, chance: u16) {
        event.tie = u64::from(chance) << 48 | self.pushed;
        self.pushed += 1;
        let mut at = self.heap.len();
        self.heap.push(event);
        while at > 0 {
            let parent = (at - 1) / WIDTH;
            if !event.before(&self.heap[parent]) {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = event;
    }

    /// Takes the next event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let last = self.heap.pop()?;
        let Some(&first) = self.heap.first() else { return Some(last) };
        let (len, mut at) = (self.heap.len(), 0);
        loop {
            let from = at * WIDTH + 1;
            if from >= len {
                break;
            }
            let mut least = from;
            for child in from + 1..(from + WIDTH).min(len) {
                if self.heap[child].before(&self.heap[least]) {
                    least = child;
                }
            }
            if !self.heap[least].before(&last) {
                break;
            }
            self.heap[at] = self.heap[least];
            at = least;
        }
        self.heap[at] = last;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn events_leave_in_order_of_time_then_of_arrival() {
        let (mut queue, mut random) = (Queue::default(), Random::new(1));
        let mut all: Vec<(u64, u32)> = (0..1000).map(|i| (random.below(50), i)).collect();
        for &(time, i) in &all {
            queue.push(Event::new(time, What::Post, 0, 0, i), 0);
        }
        all.sort();
        let left: Vec<(u64, u32)> = std::iter::from_fn(|| queue.pop()).map(|e| (e.time, e.arg)).collect();
        assert_eq!(left, all);
    }
}
