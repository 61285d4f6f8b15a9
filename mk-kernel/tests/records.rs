//! The records of a stream as a model: what `device/records.cuh` keeps in registers, step by step, for every place and length of a
//! lane's own stream, and for queues that lanes share in random orders.
//!
//! Registers are told by the record that each quarter of the warp holds. A ticket comes at some time between its claim and its use.

/// Records of a batch: one for each quarter of the warp.
const BATCH: u32 = 4;
/// In `claimed`, as on the device.
const UNASKED: u32 = u32::MAX;
const NONE: u32 = UNASKED - 1;

/// A mistake that is planted, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A stream begins without the batch behind its first.
    NothingAhead,
    /// The batch ahead is read over before it is taken.
    AheadTooEarly,
    /// The first word of a record is always that behind the one before it, in whatever batch.
    WordOfOldBatch,
    /// The counter of a queue goes back to 0 one claim too late.
    CounterTooFar,
    /// A lane whose ticket was past the end claims another one.
    ClaimsAfterEnd,
}

/// Tasks of one stream, in the rank's table.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    first: u32,
    count: u32,
}

impl Range {
    fn end(self) -> u32 {
        self.first + self.count
    }
}

/// What all lanes share.
struct Rank {
    /// Records of the table: more would be read beyond it.
    records: u32,
    queue: Range,
    lanes: u32,
    counter: u32,
    bug: Option<Bug>,
}

impl Rank {
    fn of(records: u32, queue: Range, lanes: u32, bug: Option<Bug>) -> Rank {
        Rank { records, queue, lanes, counter: 0, bug }
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// `atom.inc`.
    fn increment(&mut self) -> u32 {
        let last = self.queue.count + self.lanes - u32::from(!self.is(Bug::CounterTooFar));
        let was = self.counter;
        self.counter = if was >= last { 0 } else { was + 1 };
        was
    }
}

/// The record that each quarter of the warp holds; none: never read.
type Registers = [Option<u32>; BATCH as usize];

/// What one call of `next` hands out.
#[derive(Debug, PartialEq, Eq)]
struct Taken {
    /// `c.task`.
    task: u32,
    /// The record that `write` would write.
    content: Option<u32>,
    /// The record that `op_and_flags` is the first word of.
    first_word: Option<u32>,
}

impl Taken {
    fn right(task: u32) -> Taken {
        Taken { task, content: Some(task), first_word: Some(task) }
    }
}

/// `Records`, of one lane in one epoch.
struct Records {
    is_ahead: bool,
    own: Range,
    own_next: u32,
    batch: Registers,
    ahead: Registers,
    first_word: Option<u32>,
    upcoming: Option<u32>,
    ticket: Option<u32>,
    is_claiming: bool,
    claimed: u32,
}

impl Records {
    fn new(rank: &Rank, is_ahead: bool, own: Range) -> Result<Records, String> {
        let (mut batch, mut ahead) = (Registers::default(), Registers::default());
        read(rank, &mut batch, own.first, own.end())?;
        if is_ahead && !rank.is(Bug::NothingAhead) {
            read(rank, &mut ahead, own.first + BATCH, own.end())?;
        }
        Ok(Records {
            is_ahead,
            own,
            own_next: own.first,
            batch,
            ahead,
            first_word: None,
            upcoming: None,
            ticket: None,
            is_claiming: false,
            claimed: UNASKED,
        })
    }

    fn next(&mut self, rank: &mut Rank) -> Result<Option<Taken>, String> {
        let own = self.next_own(rank)?;
        if own.is_some() { Ok(own) } else { self.next_claimed(rank) }
    }

    fn taken(&self, task: u32) -> Option<Taken> {
        Some(Taken { task, content: self.word(task), first_word: self.first_word })
    }

    /// First word of a record, as far as the batch is the one that it lies in.
    fn word(&self, i: u32) -> Option<u32> {
        self.batch[(i % BATCH) as usize]
    }

    fn next_own(&mut self, rank: &Rank) -> Result<Option<Taken>, String> {
        if self.own_next == self.own.end() {
            return Ok(None);
        }
        let (task, place) = (self.own_next, self.own_next % BATCH);
        self.own_next += 1;
        self.first_word = self.upcoming;
        if place == 0 || task == self.own.first {
            if task != self.own.first {
                self.take_batch(rank, task)?;
            }
            if task == self.own.first || !rank.is(Bug::WordOfOldBatch) {
                self.first_word = self.word(task);
            }
        }
        let read_at = if rank.is(Bug::AheadTooEarly) { BATCH - 1 } else { 1 };
        if self.is_ahead && place == read_at {
            let from = if rank.is(Bug::AheadTooEarly) { task + 1 + BATCH } else { task - 1 + BATCH };
            read(rank, &mut self.ahead, from, self.own.end())?;
        }
        self.upcoming = self.word(task + 1);
        Ok(self.taken(task))
    }

    fn take_batch(&mut self, rank: &Rank, task: u32) -> Result<(), String> {
        if self.is_ahead {
            self.batch = self.ahead;
            return Ok(());
        }
        read(rank, &mut self.batch, task, self.own.end())
    }

    fn next_claimed(&mut self, rank: &mut Rank) -> Result<Option<Taken>, String> {
        if rank.queue.count == 0 {
            return Ok(None);
        }
        if self.claimed == UNASKED {
            self.is_claiming = true;
            self.redeem(rank)?;
        }
        if self.claimed == NONE {
            return Ok(None);
        }
        let task = self.claimed;
        self.batch = self.ahead;
        self.first_word = self.word(task);
        self.redeem(rank)?;
        Ok(self.taken(task))
    }

    /// The ticket that is under way comes.
    fn arrive(&mut self, rank: &mut Rank) {
        if self.is_claiming {
            self.ticket = Some(rank.increment());
            self.is_claiming = false;
        }
    }

    fn redeem(&mut self, rank: &mut Rank) -> Result<(), String> {
        self.arrive(rank);
        let place = self.ticket.take().ok_or("a ticket is used that was not claimed")?;
        let is_there = place < rank.queue.count;
        self.claimed = if is_there { rank.queue.first + place } else { NONE };
        if is_there {
            read(rank, &mut self.ahead, self.claimed, self.claimed + 1)?;
        }
        self.is_claiming = is_there || rank.is(Bug::ClaimsAfterEnd);
        Ok(())
    }
}

/// The batch with record `i`; nothing beyond `end` is read.
fn read(rank: &Rank, into: &mut Registers, i: u32, end: u32) -> Result<(), String> {
    for (quarter, held) in (0..BATCH).zip(into) {
        let mine = i / BATCH * BATCH + quarter;
        if mine < end {
            *held = Some(mine);
            expect(mine < rank.records, || format!("record {mine} is beyond the table"))?;
        }
    }
    Ok(())
}

fn expect(right: bool, wrong: impl Fn() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(wrong()) }
}

// -------------------------------------------------------------------------------------------- own streams

/// A lane's own stream, with records of others before it and, perhaps, behind it.
fn own_stream(own: Range, behind: u32, is_ahead: bool, bug: Option<Bug>) -> Result<(), String> {
    let mut rank = Rank::of(own.end() + behind, Range::default(), 1, bug);
    let mut records = Records::new(&rank, is_ahead, own)?;
    for task in own.first..own.end() {
        let taken = records.next(&mut rank)?;
        expect(taken == Some(Taken::right(task)), || format!("{taken:?} of {own:?}, not {task}"))?;
    }
    let surplus = records.next(&mut rank)?;
    expect(surplus.is_none(), || format!("{surplus:?} beyond {own:?}"))
}

fn all_own_streams(is_ahead: bool, bug: Option<Bug>) -> Result<(), String> {
    for (first, count, behind) in (0..10).flat_map(|f| (0..14).flat_map(move |c| [(f, c, 0), (f, c, 5)])) {
        own_stream(Range { first, count }, behind, is_ahead, bug)?;
    }
    Ok(())
}

#[test]
fn own_streams_are_handed_out_in_order_wherever_they_begin_and_end() {
    for is_ahead in [false, true] {
        all_own_streams(is_ahead, None).expect("every record once, in order");
    }
}

// -------------------------------------------------------------------------------------------- queues

/// Of which orders follow; never 0.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// One epoch: lanes take records, and their tickets come, in some order. What was handed out.
fn epoch(rank: &mut Rank, is_ahead: bool, owns: &[Range], random: &mut Random) -> Result<Vec<u32>, String> {
    let mut lanes = owns.iter().map(|o| Records::new(rank, is_ahead, *o)).collect::<Result<Vec<_>, _>>()?;
    let mut active: Vec<usize> = (0..lanes.len()).collect();
    let mut all = Vec::new();
    while !active.is_empty() {
        let at = random.below(active.len());
        let lane = &mut lanes[active[at]];
        if random.below(2) == 0 {
            lane.arrive(rank);
            continue;
        }
        match lane.next(rank)? {
            None => drop(active.swap_remove(at)),
            Some(taken) => {
                expect(taken == Taken::right(taken.task), || format!("{taken:?}"))?;
                all.push(taken.task);
            }
        }
    }
    expect(lanes.iter().all(|l| !l.is_claiming), || "a lane leaves with a ticket under way".into())?;
    Ok(all)
}

/// Some epochs of lanes that first take their own records, and then share a queue that lies behind those.
fn queue(
    [count, lanes, own]: [u32; 3],
    is_ahead: bool,
    bug: Option<Bug>,
    random: &mut Random,
) -> Result<(), String> {
    let gap = random.below(10) as u32;
    let owns: Vec<Range> = (0..lanes).map(|l| Range { first: gap + l * own, count: own }).collect();
    let shared = Range { first: gap + lanes * own, count };
    let mut rank = Rank::of(shared.end(), shared, lanes, bug);
    for n in 1..=3 {
        let mut all = epoch(&mut rank, is_ahead, &owns, random)?;
        all.sort_unstable();
        expect(all == (gap..shared.end()).collect::<Vec<_>>(), || format!("epoch {n}: {all:?}"))?;
        expect(rank.counter == 0, || format!("after epoch {n} the counter stands at {}", rank.counter))?;
    }
    Ok(())
}

fn all_queues(is_ahead: bool, bug: Option<Bug>) -> Result<(), String> {
    let mut random = Random(7);
    for (count, lanes) in (0..10).flat_map(|c| (1..5).map(move |l| (c, l))) {
        for own in [0, 0, 1, 6].repeat(25) {
            queue([count, lanes, own], is_ahead, bug, &mut random)?;
        }
    }
    Ok(())
}

#[test]
fn lanes_share_a_queue_and_leave_its_counter_as_it_was() {
    for is_ahead in [false, true] {
        all_queues(is_ahead, None).expect("every record once, the counter back at 0");
    }
}

// -------------------------------------------------------------------------------------------- mistakes

#[test]
fn planted_mistakes_are_found() {
    for bug in [Bug::NothingAhead, Bug::AheadTooEarly, Bug::WordOfOldBatch] {
        println!("{bug:?}: {}", all_own_streams(true, Some(bug)).expect_err("the model misses it"));
    }
    for bug in [Bug::CounterTooFar, Bug::ClaimsAfterEnd] {
        println!("{bug:?}: {}", all_queues(true, Some(bug)).expect_err("the model misses it"));
    }
}
