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

/// Events of a short time, or of a far one.
#[derive(Default)]
struct Heap(Vec<Event>);

impl Heap {
    #[inline]
    fn push(&mut self, event: Event) {
        let heap = &mut self.0;
        let mut at = heap.len();
        heap.push(event);
        while at > 0 {
            let parent = (at - 1) / WIDTH;
            if !event.before(&heap[parent]) {
                break;
            }
            heap[at] = heap[parent];
            at = parent;
        }
        heap[at] = event;
    }

    #[inline]
    fn pop(&mut self) -> Option<Event> {
        let heap = &mut self.0;
        let last = heap.pop()?;
        let Some(&first) = heap.first() else { return Some(last) };
        let (len, mut at) = (heap.len(), 0);
        loop {
            let from = at * WIDTH + 1;
            if from >= len {
                break;
            }
            let mut least = from;
            for child in from + 1..(from + WIDTH).min(len) {
                if heap[child].before(&heap[least]) {
                    least = child;
                }
            }
            if !heap[least].before(&last) {
                break;
            }
            heap[at] = heap[least];
            at = least;
        }
        heap[at] = last;
        Some(first)
    }
}

/// Buckets of the near future, and the time of one: 2^16 ps are 66 ns, in which a thousand lanes have a handful of
/// events; 4096 buckets reach further than a task takes.
const BUCKETS: u64 = 4096;
const BUCKET_BITS: u32 = 16;

/// What is going to happen: the present in a small heap, the near future in unsorted buckets, the rest in a heap.
pub(crate) struct Queue {
    present: Heap,
    near: Vec<Vec<Event>>,
    /// Which buckets hold anything.
    used: Vec<u64>,
    far: Heap,
    /// The bucket of the present.
    at: u64,
    pushed: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            present: Heap::default(),
            near: vec![Vec::new(); BUCKETS as usize],
            used: vec![0; BUCKETS as usize / 64],
            far: Heap::default(),
            at: 0,
            pushed: 0,
        }
    }
}

impl Queue {
    /// Adds an event. Events of one time leave in the order of `chance`, then of their arrival.
    #[inline]
    pub(crate) fn push(&mut self, mut event: Event, chance: u16) {
        event.tie = u64::from(chance) << 48 | self.pushed;
        self.pushed += 1;
        let bucket = event.time >> BUCKET_BITS;
        if bucket <= self.at {
            self.present.push(event);
        } else if bucket - self.at < BUCKETS {
            let i = (bucket % BUCKETS) as usize;
            self.near[i].push(event);
            self.used[i / 64] |= 1 << (i % 64);
        } else {
            self.far.push(event);
        }
    }

    /// Takes the next event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Event> {
        if self.present.0.is_empty() {
            self.advance()?;
        }
        self.present.pop()
    }

    /// Makes the next bucket that holds anything the present.
    fn advance(&mut self) -> Option<()> {
        let far = self.far.0.first().map(|e| e.time >> BUCKET_BITS);
        let near = self.next_used();
        self.at = near.into_iter().chain(far).min()?;
        if near == Some(self.at) {
            let i = (self.at % BUCKETS) as usize;
            self.used[i / 64] &= !(1 << (i % 64));
            let mut events = std::mem::take(&mut self.near[i]);
            events.drain(..).for_each(|e| self.present.push(e));
            // Its memory is used again.
            self.near[i] = events;
        }
        while let Some(event) = self.far.0.first().filter(|e| e.time >> BUCKET_BITS <= self.at) {
            let event = *event;
            self.far.pop();
            self.present.push(event);
        }
        Some(())
    }

    /// The first bucket after the present that holds anything.
    fn next_used(&self) -> Option<u64> {
        let (words, from) = (self.used.len(), ((self.at + 1) % BUCKETS) as usize);
        // The word of `from` is looked at twice: its upper part first, its lower part last.
        let i = (0..=words).find_map(|n| {
            let w = (from / 64 + n) % words;
            let above = !0u64 << (from % 64);
            let mask = if n == 0 {
                above
            } else if n == words {
                !above
            } else {
                !0
            };
            let bits = self.used[w] & mask;
            (bits != 0).then(|| w * 64 + bits.trailing_zeros() as usize)
        })?;
        Some(self.at + 1 + (i as u64 + BUCKETS - from as u64) % BUCKETS)
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

    #[test]
    fn near_and_far_events_leave_as_from_a_sorted_list() {
        let mut random = Random::new(2);
        for scale in [4, 20, 26, 29, 34, 44] {
            let (mut queue, mut all, mut now) = (Queue::default(), std::collections::BTreeSet::new(), 0);
            for i in 0..20_000u32 {
                if random.chance(0.45) && !all.is_empty() {
                    let event = queue.pop().unwrap();
                    assert_eq!(Some((event.time, event.arg)), all.pop_first());
                    now = event.time;
                } else {
                    let bits = random.below(scale) as u32;
                    let time = now + random.below(1 << bits);
                    queue.push(Event::new(time, What::Post, 0, 0, i), 0);
                    all.insert((time, i));
                }
            }
            while let Some(event) = queue.pop() {
                assert_eq!(Some((event.time, event.arg)), all.pop_first());
            }
            assert!(all.is_empty());
        }
    }
}
