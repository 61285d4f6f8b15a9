//! Two lanes of a pair that load an operand once for both, as a model, under random and priority-based schedules.
//!
//! ```text
//!   lane 0   load --own, and every other shared piece--> pages --> math --free--> both loads
//!   lane 1   load --own, and the other shared pieces---> pages --> math --free--> both loads
//! ```
//!
//! The model has the barriers, parities and turns of `load_shared_box`, `acquire` and `release` in `device/frame.cuh`, with a smaller ring. It
//! checks that no piece lands in a page that somebody still reads, in either lane; that each block finds its own pieces; and that both lanes come
//! to their end, also when tasks that share nothing, and take other groups, follow, and then another run.

use crate::barrier::Barrier;
use crate::mistakes::{are_found, failure};
use crate::schedules::{by_priority, random};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Arc, Barrier as Meeting, Mutex};
use shuttle::thread;

const PAGES: u32 = 4;
/// Math warpgroups of a lane.
const GROUPS: usize = 2;
/// One after the other, as of a resident kernel.
const RUNS: u32 = 2;
/// Who waits for a free page: the load role of its lane.
const LOAD: usize = 0;

/// A mistake that is planted, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Math frees a page in its own lane only.
    FreedForOneOnly,
    /// Both lanes load each shared piece.
    NoTurns,
    /// The ring of one lane does not begin where the other's does.
    OtherFirstPage,
    /// One lane does not know that it shares.
    SharedByOne,
    /// Load does not wait for a page to be free.
    NotAwaited,
    /// It takes the first page of a group for all of them, though they were freed apart.
    FirstPageAlways,
}

impl Bug {
    const ALL: [Bug; 6] = [
        Bug::FreedForOneOnly,
        Bug::NoTurns,
        Bug::OtherFirstPage,
        Bug::SharedByOne,
        Bug::NotAwaited,
        Bug::FirstPageAlways,
    ];
}

/// What a lane does one after the other.
#[derive(Clone, Copy, Debug)]
struct Task {
    id: u32,
    shared: bool,
    blocks: u32,
    /// Of a group, which is one block.
    pages: u32,
}

/// What lies in one half of a group: whose it is, and of which block.
type Piece = Option<(u32, u32, u32)>;

/// A barrier that completes when all pieces that were announced have come; they may come before they are announced.
struct Full(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    announced: bool,
    missing: i32,
    completed: u64,
}

impl Full {
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut c = self.0.lock().expect("whole");
        change(&mut c);
        if c.announced && c.missing == 0 {
            *c = Counts { completed: c.completed + 1, ..Counts::default() };
        }
    }

    fn announce(&self, pieces: i32) {
        self.count(|c| {
            assert!(!c.announced, "a group is announced twice");
            c.announced = true;
            c.missing += pieces;
        });
    }

    fn come(&self) {
        self.count(|c| c.missing -= 1);
    }

    fn completed(&self) -> u64 {
        self.0.lock().expect("whole").completed
    }
}

/// One lane's part of shared memory.
struct Lane {
    tasks: Vec<Task>,
    full: Vec<Full>,
    empty: Vec<Barrier>,
    /// By page: the two halves of the group that begins there; and math warpgroups that read the page.
    held: Vec<Mutex<([Piece; 2], u32)>>,
}

impl Lane {
    fn readers(&self, page: u32, pages: u32, change: impl Fn(&mut u32)) {
        for held in &self.held[page as usize..(page + pages) as usize] {
            change(&mut held.lock().expect("whole").1);
        }
    }
}

/// A piece that is on its way to a lane.
struct Copy {
    lane: usize,
    page: u32,
    pages: u32,
    half: usize,
    piece: Piece,
}

struct Pair {
    lanes: [Lane; 2],
    under_way: Mutex<Vec<Copy>>,
    /// Load roles that may still start copies.
    loading: Mutex<u32>,
    /// Where all roles of both lanes come between two runs. Parities go on.
    between: Meeting,
    bug: Option<Bug>,
}

impl Pair {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn shares(&self, lane: usize, task: Task) -> bool {
        task.shared && !(self.has(Bug::SharedByOne) && lane == 1)
    }

    fn first_page(&self, lane: usize) -> u32 {
        if self.has(Bug::OtherFirstPage) && lane == 1 { 2 } else { 0 }
    }

    fn run(self: Arc<Pair>) {
        let mut threads = Vec::new();
        for lane in 0..2 {
            let pair = Arc::clone(&self);
            threads.push(thread::spawn(move || pair.load(lane)));
            for _ in 0..GROUPS {
                let pair = Arc::clone(&self);
                threads.push(thread::spawn(move || pair.math(lane)));
            }
        }
        let pair = Arc::clone(&self);
        threads.push(thread::spawn(move || pair.move_copies()));
        threads.into_iter().for_each(|t| t.join().expect("a thread of the model"));
    }

    /// Copies land in any order.
    fn move_copies(&self) {
        loop {
            let last = *self.loading.lock().expect("whole") == 0;
            let mut copies = self.under_way.lock().expect("whole");
            if copies.is_empty() {
                drop(copies);
                if last {
                    return;
                }
                thread::yield_now();
                continue;
            }
            let next = thread_rng().gen_range(0..copies.len());
            let copy = copies.swap_remove(next);
            drop(copies);
            let lane = &self.lanes[copy.lane];
            lane.readers(copy.page, copy.pages, |n| {
                assert_eq!(*n, 0, "a piece lands in a page that is read")
            });
            lane.held[copy.page as usize].lock().expect("whole").0[copy.half] = copy.piece;
            lane.full[copy.page as usize].come();
        }
    }

    fn start(&self, lane: usize, [page, pages]: [u32; 2], half: usize, piece: Piece) {
        self.under_way.lock().expect("whole").push(Copy { lane, page, pages, half, piece });
    }

    fn load(&self, me: usize) {
        let mut uses = [0u64; PAGES as usize];
        for _ in 0..RUNS {
            self.load_run(me, &mut uses);
            self.between.wait();
        }
        *self.loading.lock().expect("whole") -= 1;
    }

    fn load_run(&self, me: usize, uses: &mut [u64; PAGES as usize]) {
        let lane = &self.lanes[me];
        let mut page = self.first_page(me);
        for &task in &lane.tasks {
            page = aligned(page, task.pages);
            for block in 0..task.blocks {
                let again = block * task.pages >= PAGES || self.has(Bug::FirstPageAlways);
                let awaited = if again { 1 } else { task.pages };
                for i in page..page + awaited {
                    let uses = uses[i as usize];
                    while !self.has(Bug::NotAwaited) && !lane.empty[i as usize].test_for(1 - uses % 2, uses) {
                        thread::yield_now();
                    }
                }
                (page..page + task.pages).for_each(|i| uses[i as usize] += 1);
                lane.full[page as usize].announce(2);
                let at = [page, task.pages];
                self.start(me, at, 0, Some((me as u32, task.id, block)));
                if !self.shares(me, task) {
                    self.start(me, at, 1, Some((me as u32, task.id, block)));
                } else if (block as usize ^ me).is_multiple_of(2) || self.has(Bug::NoTurns) {
                    (0..2).for_each(|to| self.start(to, at, 1, Some((2, task.id, block))));
                }
                page = (page + task.pages) % PAGES;
            }
        }
    }

    fn math(&self, me: usize) {
        let mut seen = [0u64; PAGES as usize];
        for _ in 0..RUNS {
            self.math_run(me, &mut seen);
            self.between.wait();
        }
    }

    fn math_run(&self, me: usize, seen: &mut [u64; PAGES as usize]) {
        let lane = &self.lanes[me];
        let mut page = self.first_page(me);
        for &task in &lane.tasks {
            page = aligned(page, task.pages);
            let shares = self.shares(me, task);
            for block in 0..task.blocks {
                let at = page as usize;
                while lane.full[at].completed() & 1 == seen[at] & 1 {
                    thread::yield_now();
                }
                seen[at] += 1;
                assert_eq!(lane.full[at].completed(), seen[at], "a parity stands for another lap");
                let owner = if shares { 2 } else { me as u32 };
                let want = [Some((me as u32, task.id, block)), Some((owner, task.id, block))];
                lane.readers(page, task.pages, |n| *n += 1);
                thread::yield_now();
                assert_eq!(lane.held[at].lock().expect("whole").0, want, "a block finds what is not its own");
                lane.readers(page, task.pages, |n| *n -= 1);
                for i in at..at + task.pages as usize {
                    let both = shares && !self.has(Bug::FreedForOneOnly);
                    lane.empty[i].arrive(if both { 1 } else { 2 });
                    if both {
                        thread::yield_now();
                        self.lanes[1 - me].empty[i].arrive(1);
                    }
                }
                page = (page + task.pages) % PAGES;
            }
        }
    }
}

/// Groups are aligned to their size.
fn aligned(page: u32, pages: u32) -> u32 {
    page.next_multiple_of(pages) % PAGES
}

/// Tasks that share come first, and are the same in both lanes.
fn random_pair(bug: Option<Bug>) -> Pair {
    let mut rng = thread_rng();
    let mut task =
        |id, shared| Task { id, shared, blocks: rng.gen_range(1..7), pages: [1, 2, 4][rng.gen_range(0..3)] };
    let first: Vec<Task> = (0..2).map(|id| task(id, true)).collect();
    let lanes = [0, 1].map(|_| {
        let tasks = first.iter().copied().chain((2..4).map(|id| task(id, false))).collect();
        let pages = 0..PAGES;
        Lane {
            tasks,
            full: pages.clone().map(|_| Full(Mutex::new(Counts::default()))).collect(),
            empty: pages.clone().map(|_| Barrier::free("empty", 2 * GROUPS as u32, LOAD + 1)).collect(),
            held: pages.map(|_| Mutex::new(([None; 2], 0))).collect(),
        }
    });
    let between = Meeting::new(2 * (1 + GROUPS));
    Pair { lanes, under_way: Mutex::new(Vec::new()), loading: Mutex::new(2), between, bug }
}

fn run(bug: Option<Bug>) {
    Arc::new(random_pair(bug)).run();
}

/// A role that spins for ever uses up its steps.
const STEPS: usize = 200_000;

#[test]
fn both_lanes_find_what_is_theirs_and_end() {
    random(STEPS, 500, || run(None));
    by_priority(STEPS, 500, || run(None));
}

#[test]
fn planted_mistakes_are_found_in_pairs() {
    are_found(&Bug::ALL, |bug| {
        let test = move || run(Some(bug));
        failure(move || random(STEPS, 1000, test)).or_else(|| failure(move || by_priority(STEPS, 1000, test)))
    });
}
