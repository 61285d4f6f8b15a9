//! The records of a stream as a model: what `device/records.cuh` keeps in registers, thread by thread and step by step, for every
//! place and length of a lane's own stream, and for queues that lanes share in random orders.
//!
//! A register is told by the record, and the part of it, that was last read into it. A ticket comes at some time between its
//! claim and its use.

/// Threads of a warp, parts of a record (one a thread), and records that are taken at once.
const WARP: u32 = 32;
const PARTS: u32 = 8;
const BATCH: u32 = WARP / PARTS;
/// Records so far ahead are looked for in the L2.
const FAR: u32 = 8 * BATCH;
/// In `claimed`, as on the device.
const UNASKED: u32 = u32::MAX;
const NONE: u32 = UNASKED - 1;

/// A mistake that is planted, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A stream begins with nothing ahead.
    NothingAhead,
    /// What is ahead is read over before it is taken.
    AheadTooEarly,
    /// What is read ahead begins where the records do that are handed out.
    AheadFromFirst,
    /// As many records as a warp holds are handed out, also where the stream has fewer.
    BatchBeyondEnd,
    /// The end of the stream does not bound what is read.
    EndNotHeeded,
    /// The first word of record `i` is taken from thread `i`.
    WordOfThread,
    /// A lane that has taken all its own records counts the last of them as claimed.
    LateTooEarly,
    /// The counter of a queue goes back to 0 one claim too late.
    CounterTooFar,
    /// A lane whose ticket was past the end claims another one.
    ClaimsAfterEnd,
    /// A lane that has reached the end of the queue begins to claim once more.
    EndForgotten,
    /// The record of the next ticket is read before that of the last is taken.
    RedeemedTooEarly,
    /// A claimed record is named after the next ticket.
    NamedTooLate,
    /// Behind a claimed record others are read, as in a stream of the lane's own.
    NeighboursRead,
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

    /// A thread looks at record `i`, if that lies before `end`. Whether it does.
    fn look(&self, i: u32, end: u32) -> Result<bool, String> {
        expect(i >= end || i < self.records, || format!("record {i} is beyond the table"))?;
        Ok(i < end)
    }
}

/// By thread: which part of which record it holds; none: never read.
type Registers = [Option<(u32, u32)>; WARP as usize];

/// What one call of `next` hands out.
struct Taken {
    first: u32,
    count: u32,
    is_late: bool,
    batch: Registers,
}

impl Taken {
    /// What users make of record `i`: its first word, and all its parts.
    fn check(&self, i: u32, bug: Option<Bug>) -> Result<u32, String> {
        let task = self.first + i;
        let from = if bug == Some(Bug::WordOfThread) { i } else { i * PARTS };
        let word = self.batch[from as usize];
        expect(word == Some((task, 0)), || format!("{word:?} for the first word of {task}"))?;
        for (thread, held) in (0..WARP).zip(self.batch).filter(|(t, _)| t / PARTS == i) {
            expect(held == Some((task, thread % PARTS)), || format!("thread {thread}: {held:?} of {task}"))?;
        }
        Ok(task)
    }
}

/// `Records`, of one lane in one epoch.
struct Records {
    is_ahead: bool,
    own_next: u32,
    own_end: u32,
    first: u32,
    batch: Registers,
    ahead: Registers,
    ticket: Option<u32>,
    is_claiming: bool,
    claimed: u32,
}

impl Records {
    fn new(rank: &Rank, is_ahead: bool, own: Range) -> Result<Records, String> {
        let mut records = Records {
            is_ahead,
            own_next: own.first,
            own_end: own.end(),
            first: 0,
            batch: [None; WARP as usize],
            ahead: [None; WARP as usize],
            ticket: None,
            is_claiming: false,
            claimed: UNASKED,
        };
        if is_ahead && !rank.is(Bug::NothingAhead) {
            records.read_ahead(rank)?;
        }
        Ok(records)
    }

    /// None: there are no more.
    fn next(&mut self, rank: &mut Rank) -> Result<Option<Taken>, String> {
        let own = self.own_next != self.own_end;
        let count = if own { self.next_own(rank)? } else { self.next_claimed(rank)? };
        let taken = Taken { first: self.first, count, is_late: self.is_late(rank), batch: self.batch };
        Ok((count > 0).then_some(taken))
    }

    fn is_late(&self, rank: &Rank) -> bool {
        if rank.is(Bug::LateTooEarly) { self.own_next == self.own_end } else { self.claimed != UNASKED }
    }

    fn next_own(&mut self, rank: &Rank) -> Result<u32, String> {
        self.first = self.own_next;
        let left = self.own_end - self.first;
        let count = if rank.is(Bug::BatchBeyondEnd) { BATCH } else { left.min(BATCH) };
        self.own_next += count;
        if !self.is_ahead {
            read(rank, &mut self.batch, self.first, self.own_end)?;
        } else if rank.is(Bug::AheadTooEarly) {
            self.read_ahead(rank)?;
            self.batch = self.ahead;
        } else {
            self.batch = self.ahead;
            self.read_ahead(rank)?;
        }
        prefetch(rank, self.first + FAR, self.own_end)?;
        Ok(count)
    }

    fn read_ahead(&mut self, rank: &Rank) -> Result<(), String> {
        let from = if rank.is(Bug::AheadFromFirst) { self.first } else { self.own_next };
        read(rank, &mut self.ahead, from, self.own_end)
    }

    fn next_claimed(&mut self, rank: &mut Rank) -> Result<u32, String> {
        if self.claimed >= NONE && !self.begins_to_claim(rank)? {
            return Ok(0);
        }
        self.first = self.claimed;
        if rank.is(Bug::RedeemedTooEarly) {
            self.redeem(rank)?;
            self.batch = self.ahead;
        } else {
            self.batch = self.ahead;
            self.redeem(rank)?;
        }
        if rank.is(Bug::NamedTooLate) {
            self.first = self.claimed;
        }
        Ok(1)
    }

    fn begins_to_claim(&mut self, rank: &mut Rank) -> Result<bool, String> {
        let has_ended = self.claimed == NONE && !rank.is(Bug::EndForgotten);
        if has_ended || rank.queue.count == 0 {
            return Ok(false);
        }
        self.is_claiming = true;
        self.redeem(rank)?;
        Ok(self.claimed != NONE)
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
        let more = place < rank.queue.count;
        self.is_claiming = more || rank.is(Bug::ClaimsAfterEnd);
        self.claimed = if more { rank.queue.first + place } else { NONE };
        let count = if rank.is(Bug::NeighboursRead) { BATCH } else { 1 };
        read(rank, &mut self.ahead, self.claimed, if more { self.claimed + count } else { 0 })?;
        let far = self.claimed.wrapping_add(4 * rank.lanes);
        prefetch(rank, far, if more { rank.queue.end() } else { 0 })
    }
}

/// The records from `i` on, as many as the warp holds; nothing beyond `end` is read.
fn read(rank: &Rank, into: &mut Registers, i: u32, end: u32) -> Result<(), String> {
    let end = if rank.is(Bug::EndNotHeeded) { u32::MAX } else { end };
    for (thread, held) in (0..WARP).zip(into) {
        let mine = i.wrapping_add(thread / PARTS);
        if rank.look(mine, end)? {
            *held = Some((mine, thread % PARTS));
        }
    }
    Ok(())
}

fn prefetch(rank: &Rank, i: u32, end: u32) -> Result<(), String> {
    (0..BATCH).try_for_each(|place| rank.look(i.wrapping_add(place), end).map(drop))
}

fn expect(right: bool, wrong: impl Fn() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(wrong()) }
}

// -------------------------------------------------------------------------------------------- own streams

/// A lane's own stream, with records of others before it and, perhaps, behind it.
fn own_stream(own: Range, behind: u32, is_ahead: bool, bug: Option<Bug>) -> Result<(), String> {
    let mut rank = Rank::of(own.end() + behind, Range::default(), 1, bug);
    let mut records = Records::new(&rank, is_ahead, own)?;
    let mut next = own.first;
    while let Some(taken) = records.next(&mut rank)? {
        expect(taken.first == next, || format!("{} of {own:?}, not {next}", taken.first))?;
        expect(!taken.is_late, || format!("{next} of {own:?} is said to be claimed"))?;
        // Only the last ones may be fewer than a warp holds.
        let count = BATCH.min(own.end() - next);
        expect(taken.count == count, || format!("{} from {next} on of {own:?}", taken.count))?;
        (0..count).try_for_each(|i| taken.check(i, bug).map(drop))?;
        next += count;
    }
    expect(next == own.end(), || format!("{own:?} ends at {next}"))
}

fn all_own_streams(is_ahead: bool, bug: Option<Bug>) -> Result<(), String> {
    for (first, count, behind) in (0..10).flat_map(|f| (0..45).flat_map(move |c| [(f, c, 0), (f, c, 5)])) {
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
            Some(taken) => hand_out(rank, &taken, &mut all)?,
        }
    }
    expect(lanes.iter().all(|l| !l.is_claiming), || "a lane leaves with a ticket under way".into())?;
    Ok(all)
}

fn hand_out(rank: &Rank, taken: &Taken, all: &mut Vec<u32>) -> Result<(), String> {
    let is_shared = taken.first >= rank.queue.first;
    expect(taken.is_late == is_shared, || format!("{} counts as claimed: {}", taken.first, taken.is_late))?;
    for i in 0..taken.count {
        let task = taken.check(i, rank.bug)?;
        expect(!all.contains(&task), || format!("{task} is handed out twice"))?;
        all.push(task);
    }
    Ok(())
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

/// Each of them, in streams that have the next records ahead, or not.
fn are_found(bugs: &[Bug], is_ahead: &[bool], all: impl Fn(bool, Option<Bug>) -> Result<(), String>) {
    for (&bug, &is_ahead) in bugs.iter().flat_map(|b| is_ahead.iter().map(move |a| (b, a))) {
        match all(is_ahead, Some(bug)) {
            Err(how) => println!("{bug:?}, ahead {is_ahead}: {how}"),
            Ok(()) => panic!("the model misses {bug:?}, ahead {is_ahead}"),
        }
    }
}

#[test]
fn planted_mistakes_in_own_streams_are_found() {
    are_found(&[Bug::NothingAhead, Bug::AheadTooEarly, Bug::AheadFromFirst], &[true], all_own_streams);
    let bugs = [Bug::BatchBeyondEnd, Bug::EndNotHeeded, Bug::WordOfThread, Bug::LateTooEarly];
    are_found(&bugs, &[false, true], all_own_streams);
}

#[test]
fn planted_mistakes_in_queues_are_found() {
    let bugs = [
        Bug::CounterTooFar,
        Bug::ClaimsAfterEnd,
        Bug::EndForgotten,
        Bug::RedeemedTooEarly,
        Bug::NamedTooLate,
        Bug::NeighboursRead,
    ];
    are_found(&bugs, &[false, true], all_queues);
}
