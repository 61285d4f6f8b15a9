// What every role of a lane has: shared memory, waits, posts, faults, regions, trace.
//
// A wait is an acquire at system scope, with the proxy fence that TMA and bulk copies of what it guards need. A post is a
// release, at system scope or, of a word of the own rank, at this GPU's, made by one thread after all that it covers has landed. Every wait ends: it
// looks at the abort word and at a bound in SM clocks. After a fault (`dead`) waits return at once and posts do nothing.
#pragma once
#include "mk/ptx.cuh"

namespace mk {

extern __shared__ __align__(1024) unsigned char shared_memory[];

constexpr u32 WARP = 32, WARPGROUP = 128;  // threads
constexpr u32 MATH_GROUPS = 2;             // warpgroups
constexpr u32 MATH_WARPS = MATH_GROUPS * WARPGROUP / WARP;

// ---------------------------------------------------------------------------------------------- shared memory

// Offsets in bytes. Pages first: 128-byte swizzle wants them aligned to 1024.
namespace Arena {
constexpr u32 BARRIER = 8;
constexpr u32 RING = 0;
constexpr u32 STAGING = RING + RING_PAGES * PAGE_BYTES;
constexpr u32 COMM_RING = STAGING + STAGING_PAGES * PAGE_BYTES;
constexpr u32 RECORDS = COMM_RING + COMM_PAGES * PAGE_BYTES;  // of the compute stream
constexpr u32 COMM_RECORD = RECORDS + TASK_SLOTS * sizeof(Task);
constexpr u32 COMM_JOB = COMM_RECORD + sizeof(Task);  // what the comm warp moves
constexpr u32 JOB_BYTES = 80;
constexpr u32 PARAMS = COMM_JOB + JOB_BYTES;  // of the run
constexpr u32 RUN = PARAMS + sizeof(Params);
constexpr u32 RUN_BYTES = 32;
constexpr u32 BRIEFS = RUN + RUN_BYTES;
constexpr u32 LEDGERS = BRIEFS + TASK_SLOTS * 8;  // by warp
constexpr u32 LEDGER_BYTES = 40;
constexpr u32 LOGS = LEDGERS + THREADS / WARP * LEDGER_BYTES;  // by role
constexpr u32 LOG_BYTES = 24;
constexpr u32 EPOCHS = LOGS + ROLES * LOG_BYTES;  // by clock, read once a run
constexpr u32 ROTATIONS = EPOCHS + CLOCKS * 8;  // by depth: the rotating copy of this epoch, a u32 each
constexpr u32 ROTATIONS_BYTES = (MAX_DEPTH + 2) / 2 * 8;

// By page: what has been loaded for math, or for store; what is free; what math has passed on to store.
constexpr u32 FULL_MATH = ROTATIONS + ROTATIONS_BYTES;
constexpr u32 FULL_STORE = FULL_MATH + RING_PAGES * BARRIER;
constexpr u32 EMPTY = FULL_STORE + RING_PAGES * BARRIER;
constexpr u32 EMPTY_ARRIVALS = 2 * MATH_GROUPS;  // of the pair, where it shares an operand
constexpr u32 DONE = EMPTY + RING_PAGES * BARRIER;

// By slot: a record is there (all roles wait for it, each time, and none can be lapped, for fetch refills a slot only when
// all have freed it); every role is done with it. The other three are used only by tasks that need them: math has consumed
// all groups; the store waits are met; math's stores have landed. One each a slot: a single one can be lapped.
constexpr u32 SLOT_FULL = DONE + RING_PAGES * BARRIER;
constexpr u32 SLOT_EMPTY = SLOT_FULL + TASK_SLOTS * BARRIER;
constexpr u32 LOADED = SLOT_EMPTY + TASK_SLOTS * BARRIER;
constexpr u32 MAY_STORE = LOADED + TASK_SLOTS * BARRIER;
constexpr u32 STORED = MAY_STORE + TASK_SLOTS * BARRIER;

constexpr u32 COMM_SLOTS = 2;
constexpr u32 COMM_FULL = STORED + TASK_SLOTS * BARRIER;

// A run begins (all roles wait for it, each time, and none can be lapped, for a run begins only when all have ended the one
// before); all roles have ended it.
constexpr u32 RUN_BEGINS = COMM_FULL + COMM_SLOTS * BARRIER;
constexpr u32 RUN_ENDS = RUN_BEGINS + BARRIER;
#ifdef MK_PACE_GB_PER_S
constexpr u32 DUE = RUN_ENDS + BARRIER;  // by slot of the comm ring: when what is in it has come
constexpr u32 BYTES = DUE + COMM_SLOTS * 8;
#else
constexpr u32 BYTES = RUN_ENDS + BARRIER;
#endif
static_assert(BYTES <= SHARED_BYTES, "a block of Hopper has 227 KB");
static_assert(RECORDS % 16 == 0 && PARAMS % 16 == 0 && BRIEFS % 8 == 0 && LEDGERS % 8 == 0 && EPOCHS % 8 == 0 && FULL_MATH % 8 == 0, "alignment");
}  // namespace Arena

// ---------------------------------------------------------------------------------------------- context

#ifdef MK_PACE_GB_PER_S
// A link that is not there: when it is free, in eighths of nanoseconds of the global timer.
__device__ u64 mk_link;
#endif

// How long a role that leaves waits for copies that are under way: SM clocks, a millisecond. A copy of 16 KB takes microseconds.
constexpr u64 COPIES_PATIENCE = 2'000'000;

// A wait for another role lasts as long as that role's waits for signals, one after the other; of several tasks, where fetch
// waits. Its own bound is only for a fault of the kernel itself, which must not be blamed before the signal that everybody
// waits for, and must be told before the host gives the whole run up.
constexpr u64 BARRIER_PATIENCE = 16;  // times the bound of a signal

DEV u32 wait_at(const Wait& w) { return w.bits & 15; }
DEV u32 wait_lag(const Wait& w) { return w.bits >> 4; }
DEV u32 post_at(const Post& p) { return p.bits & 3; }
DEV u32 post_kind(const Post& p) { return p.bits >> 2 & 3; }
DEV u32 post_clock(const Post& p) { return p.bits >> 4 & 7; }

// What a warp keeps in shared memory, for it is seldom needed and registers are scarce outside of math. All of its threads
// write the same.
struct Ledger {
    // The fault that the warp saw; reason 0: none.
    u32 reason, word;
    u64 expected, seen;
    // Waits: the block before which the next word of a Block wait is due; words met so far, 16 bits for each wait; whether
    // a wait has been met that was not met at once, so that the long bound of the start is over.
    u32 guard, guard_words, started;
    // Comm: words raised of Block posts, 16 bits for each post.
    u32 raised_words;
};
static_assert(sizeof(Ledger) <= Arena::LEDGER_BYTES, "as the arena has it");

// What a role keeps for its trace.
struct Log {
    u64 began_ns, waited_ns, events;
};
static_assert(sizeof(Log) <= Arena::LOG_BYTES, "as the arena has it");

// What a lane keeps of its runs, in shared memory: registers are scarce.
struct Run {
    u32 stop;    // there is none: the lane ends
    u32 failed;  // a role has seen a fault
    u64 number;  // of the run
    u64 told;    // the first lane of a resident kernel: of the last command that it has told
    u32 filled_math, filled_store;  // parities, a bit for each page: of the copies that load has issued
};
static_assert(sizeof(Run) <= Arena::RUN_BYTES, "as the arena has it");

// Where a rectangle of a region begins.
struct Place {
    u8* at;
    u32 pitch;  // bytes from row to row; 32 bits, for registers are scarce outside of math

    DEV u8* row(u32 r, u32 byte = 0) const { return at + (u64)r * pitch + byte; }
};

// Rows that lie one after the other in shared memory, and with a pitch elsewhere: how they are cut into copies.
struct Cut {
    u32 pieces, bytes;

    DEV Cut(u32 rows, u32 row_bytes, u32 pitch) {
        const bool whole = row_bytes == pitch;
        pieces = row_bytes == 0 ? 0 : whole ? min(rows, 1u) : rows;
        bytes = whole ? rows * row_bytes : row_bytes;
    }
};

// Shared memory that copies fill.
struct Group {
    u32 at;       // its address
    u32 barrier;  // completes when all of it is there
};

// What every role has: where it is, whether it still lives, its waits and posts. One object a thread, in registers.
//
// Threads of a warp go the same way: each waits, decides and notes what all of them do, and one of them acts (`leads`). No loop is entered by some threads alone, and none has an end
// that hangs on `threadIdx`: the compiler then lets go of all care for threads that have parted, which costs 50 clocks in
// each turn of each loop of the kernel, and puts what seldom happens out of the way.
struct Context {
    const u32 shared;  // address of shared_memory
    const Params& params;
    const u32 role;
    const u32 warp;               // of the block
    u32 record = Arena::RECORDS;  // of the current task
    u32 task = 0;                 // its place in params.tasks
    bool dead = false;            // a fault was seen
    u32 run_parity = 0;           // of the next run's beginning

    DEV Context(u32 role, u32 warp)
        : shared(ptx::shared_address(shared_memory)), params(at<const Params>(Arena::PARAMS)), role(role), warp(warp) {}

    // What lies in shared memory, at `offset`.
    template <class T>
    DEV T& at(u32 offset) const {
        return ptx::shared_object<T>(shared + offset);
    }

    DEV const Task& current() const { return at<const Task>(record); }
    DEV Ledger& ledger() const { return at<Ledger>(Arena::LEDGERS + warp * Arena::LEDGER_BYTES); }
    // One thread of this warp.
    DEV bool leads() const { return threadIdx.x % WARP == 0; }
    // What one of them has seen, all have. Not where some may still wait: each wait ends for itself.
    DEV void agree() { dead = __any_sync(~0u, dead); }
    DEV u32 lane() const { return blockIdx.x - params.first_block; }

    // The epoch of a clock, from 1. It is in device memory, was read at the start, and changes only when all have left.
    DEV u64 epoch(u32 clock = 0) const { return at<const u64>(Arena::EPOCHS + clock * 8); }

    // -- faults

    // A fault is only noted where it is seen (the code of every wait contains this), and reported when the role leaves.
    DEV void fail(u32 reason, u32 word, u64 expected, u64 seen) {
        dead = true;
        Ledger& l = ledger();
        l.word = word;
        l.expected = expected;
        l.seen = seen;
        l.reason = reason;
    }

    // Before a role leaves. The first fault of a rank wins: it writes the record, its reason last.
    DEV void report() const {
        const Ledger& n = ledger();
        Fault* const f = params.fault;
        if (n.reason == 0 || !raise_abort(f, 1)) return;
        ptx::store_relaxed(&f->rank, params.rank);
        ptx::store_relaxed(&f->lane, lane());
        ptx::store_relaxed(&f->role, role);
        ptx::store_relaxed(&f->task, task);
        ptx::store_relaxed(&f->op, current().op);
        ptx::store_relaxed(&f->word, n.word);
        ptx::store_relaxed(&f->expected, n.expected);
        ptx::store_relaxed(&f->seen, n.seen);
        ptx::store_relaxed(&f->epoch, epoch());
        ptx::store_relaxed(&f->generation, params.generation);
        ptx::store_release(&f->reason, n.reason);
    }

    // False: it was raised already.
    DEV bool raise_abort(Fault* of, u32 why) const {
        u32 was = 0;
        if (leads()) was = ptx::compare_and_swap(&of->abort, 0, why);
        return __shfl_sync(~0u, was, 0) == 0;
    }

    // Whether somebody else has raised the abort word.
    DEV bool aborted() const { return ptx::load_relaxed(&params.fault->abort) != 0; }

    // -- barriers in shared memory

    DEV bool barrier_complete(u32 barrier, u32 parity) const {
        return ptx::mbarrier_test_wait(shared + barrier, parity);
    }

    DEV void wait_barrier(u32 barrier, u32 parity) {
        if (RARE(!ptx::mbarrier_try_wait(shared + barrier, parity))) keep_waiting(barrier, parity);
    }

    DEV void keep_waiting(u32 barrier, u32 parity) {
        const u64 since = ptx::clock();
        for (u32 turn = 1; !dead && !ptx::mbarrier_try_wait(shared + barrier, parity); turn++) {
            if (turn % 16 != 0) continue;
            if (aborted()) {
                dead = true;
            } else if (ptx::clock() - since >
                       params.bounds.start_clocks + BARRIER_PATIENCE * params.bounds.run_clocks) {
                fail(FAULT_BARRIER, barrier, parity, 0);
            }
        }
    }

    // -- runs

    DEV Run& run() const { return at<Run>(Arena::RUN); }

    // Waits for the next run; false: there is none. It ends as the fetch warp's wait for the next run does.
    DEV bool begin_run() {
        while (!ptx::mbarrier_try_wait(shared + Arena::RUN_BEGINS, run_parity)) {
        }
        run_parity ^= 1;
        return run().stop == 0;
    }

    // Copies that load has issued and that are under way read the caller's memory and write to shared memory, so the run must
    // outlive them. After a fault of any role nobody else waits for them.
    DEV void let_copies_land(u32 filled_math, u32 filled_store) const {
        const u64 since = ptx::clock();
        for (u32 i = 0; i < 2 * RING_PAGES; i++) {
            const u32 page = i / 2, filled = i % 2 == 0 ? filled_math : filled_store;
            const u32 barrier = (i % 2 == 0 ? Arena::FULL_MATH : Arena::FULL_STORE) + page * Arena::BARRIER;
            bool late = false;
            while (!barrier_complete(barrier, (~filled >> page) & 1) && !late) late = ptx::clock() - since > COPIES_PATIENCE;
        }
    }

    // This warp does nothing more of this run. What it wrote by bulk copies has landed.
    DEV void end_run() {
        if (dead) run().failed = 1;
        __syncwarp();
        ptx::mbarrier_arrive_if(leads(), shared + Arena::RUN_ENDS);
    }

    // -- signals: words of the own rank. Each poll invalidates the L1, so no more warps than need it poll.

    DEV const u64* word(const Wait& w, u32 j) const {
        return params.signals[params.rank] + (w.word + j * (u32)w.stride);
    }

    DEV u64 target(const Wait& w) const {
        const i64 epochs = (i64)epoch(w.clock) - 1 - wait_lag(w);
        const i64 target = epochs * w.total + w.upto;
        return target > 0 ? target : 0;
    }

    DEV u64 signal_bound() const { return ledger().started ? params.bounds.run_clocks : params.bounds.start_clocks; }

    DEV bool word_met(const Wait& w, u32 j) const { return ptx::load_acquire(word(w, j)) >= target(w); }

    // Waits for word `j` of it. The caller then needs `fence_proxy_async_global` before TMA or bulk copies of what it guards.
    DEV void wait_word(const Wait& w, u32 j) {
        const u64* const at = word(w, j);
        const u64 want = target(w);
        u64 seen = ptx::load_acquire(at);
        if (seen < want) {
            const u64 since = ptx::clock();
            trace_wait_begins();
            for (u32 turn = 1; !dead && (seen = ptx::load_acquire(at)) < want; turn++) {
                if (turn % 16 != 0) continue;
                if (aborted()) {
                    dead = true;
                } else if (ptx::clock() - since > signal_bound()) {
                    const u32 reason = ledger().started ? FAULT_SIGNAL : FAULT_START;
                    fail(reason, w.word + j * (u32)w.stride, want, seen);
                }
            }
            trace_wait_ends();
            ledger().started = true;
        }
    }

    // All words of the task's waits that are due at `at`.
    DEV void wait_all(u32 at) {
        const Task& t = current();
        bool any = false;
#pragma unroll 1
        for (u32 i = 0; i < WAITS; i++) {
            const Wait& w = t.waits[i];
            if (w.total == 0 || wait_at(w) != at) continue;
            for (u32 j = 0; j < w.count && !dead; j++) wait_word(w, j);
            any = true;
        }
        if (any) ptx::fence_proxy_async_global();
    }

    // Before the first block of a task with TASK_GUARDS.
    DEV void open_guards() {
        wait_all(WAIT_AT_START);
        ledger().guard = ledger().guard_words = 0;
    }

    // Whether all words that are due before block `block` are met. If it is patient, it waits for them.
    template <bool PATIENT>
    DEV bool pass_guards(u32 block) {
        const Task& t = current();
        const u32 known = ledger().guard_words;
        u32 words = known, next = ~0u;
        bool all = true;
        __syncwarp();  // before one of them writes it
#pragma unroll 1
        for (u32 i = 0; i < WAITS; i++) {
            const Wait& w = t.waits[i];
            if (w.total == 0 || wait_at(w) != WAIT_AT_BLOCK) continue;
            const u32 every = w.every > 0 ? w.every : 1, before = known >> (16 * i) & 0xffff;
            u32 met = before;
            for (; met < w.count && met * every <= block; met++) {
                if constexpr (PATIENT) {
                    wait_word(w, met);
                    if (dead) break;
                } else if (!word_met(w, met)) {
                    all = false;
                    break;
                }
            }
            words += (met - before) << (16 * i);
            if (met < w.count && met * every < next) next = met * every;
        }
        ledger().guard = next;
        ledger().guard_words = words;
        if (words != known) ptx::fence_proxy_async_global();
        return all;
    }

    // Raises the `nth` word of a post. What it covers has been seen to land by this thread, or by one that it has
    // synchronised with: the release is cumulative, and whoever sees that a bulk copy has ended sees its bytes, too, without a fence.
    // Words of the own rank are waited for on this GPU alone.
    DEV void post(const Post& p, u32 nth = 0) {
        if (dead) return;
        u64* const words = params.signals[p.rank];
        if (!words) return fail(FAULT_UNREACHABLE, p.word, 0, p.rank);
        u64* const at = words + (p.word + nth);
        if (post_kind(p) == SIGNAL_ADD) {
            if (p.rank == params.rank) {
                ptx::add_release_gpu_if(leads(), at, 1);
            } else {
                ptx::add_release_if(leads(), at, 1);
            }
        } else {
            ptx::store_release_if(leads(), at, (epoch(post_clock(p)) - 1) * p.total + p.ordinal);
        }
    }

    DEV void post_all(u32 at) {
        const Task& t = current();
#pragma unroll 1
        for (u32 i = 0; i < POSTS; i++) {
            if (t.posts[i].total != 0 && post_at(t.posts[i]) == at) post(t.posts[i]);
        }
    }

    // -- regions

    DEV const RegionInfo& region(u32 id) const { return params.regions[id]; }

    // Which of its rotating copies this epoch uses.
    DEV u32 rotation(const RegionInfo& r) const {
        return at<const u32>(Arena::ROTATIONS + r.depth * 4);
    }

    // Where it lies on `rank` in this epoch; null if that is out of reach.
    DEV u8* base(u32 id, u32 rank) const {
        u8* const p = params.bases[(u64)rank * params.region_count + id];
        const RegionInfo& r = region(id);
        return p ? p + rotation(r) * r.copy_bytes : nullptr;
    }

    DEV Place place(u32 id, u32 rank, u64 row, u64 col) const {
        const RegionInfo& r = region(id);
        return Place{base(id, rank) + row * r.pitch_bytes + col * r.element_bytes, (u32)r.pitch_bytes};
    }

    // On this rank, where every region lies somewhere.
    DEV Place place(u32 id, u64 row, u64 col) const {
        const RegionInfo& r = region(id);
        const u32 pitch = (u32)r.pitch_bytes;
        return Place{r.own + rotation(r) * r.copy_bytes + row * pitch + col * r.element_bytes, pitch};
    }

    // 0, or why bulk copies cannot move these columns of it: their addresses and sizes are multiples of 16 bytes.
    DEV u32 check_rows(u32 id, u32 rank, u64 col, u64 cols) const {
        const u8* const p = base(id, rank);
        return p ? check_rows(p, region(id), col, cols) : FAULT_UNREACHABLE;
    }

    DEV u32 check_rows(u32 id, u64 col, u64 cols) const {
        const RegionInfo& r = region(id);
        return check_rows(r.own, r, col, cols);  // its copies lie multiples of 16 bytes from each other
    }

    static DEV u32 check_rows(const u8* at, const RegionInfo& r, u64 col, u64 cols) {
        const u32 all = (u32)(u64)at | (u32)r.pitch_bytes | (u32)(col | cols) * r.element_bytes;
        if (r.pitch_bytes >> 31 != 0) return FAULT_ARGUMENTS;
        return all % 16 != 0 ? FAULT_ALIGNMENT : 0;
    }

    DEV const TensorMap* map(u32 id, u32 kind) const { return params.maps + (id * MAP_KINDS + kind); }

    // -- trace: one event a task and role, in a ring of its own. Only in kernels that are built for it: the global timer
    // is slow to read. All threads of the warp write the same.
#ifdef MK_TRACE
    DEV Log& log() const { return at<Log>(Arena::LOGS + role * Arena::LOG_BYTES); }
    DEV u32 trace_ring() const { return lane() * ROLES + role; }
    DEV void trace_opens() {
        if (params.trace_events != 0) log().events = params.trace_counts[trace_ring()];
    }
    DEV void trace_begins() {
        log().began_ns = ptx::global_timer_ns();
        log().waited_ns = 0;
    }
    DEV void trace_wait_begins() { trace_waited(0 - ptx::global_timer_ns()); }
    DEV void trace_wait_ends() { trace_waited(ptx::global_timer_ns()); }
    DEV void trace_waited(u64 more_ns) {
        if (leads()) log().waited_ns += more_ns;
    }
    DEV void trace_ends() {
        const u32 capacity = params.trace_events;
        if (capacity == 0) return;
        Log& l = log();
        const u64 event = l.events;
        TraceEvent& e = params.trace[(u64)trace_ring() * capacity + (u32)event % capacity];
        e.start_ns = l.began_ns;
        e.end_ns = ptx::global_timer_ns();
        e.waited_ns = l.waited_ns;
        e.epoch = epoch();
        e.task = task;
        e.op = current().op;
        e.role = (u16)role;
        __syncwarp();
        l.events = event + 1;
    }
    DEV void trace_closes() {
        if (params.trace_events != 0) params.trace_counts[trace_ring()] = log().events;
    }
#else
    DEV void trace_opens() {}
    DEV void trace_begins() {}
    DEV void trace_wait_begins() {}
    DEV void trace_wait_ends() {}
    DEV void trace_ends() {}
    DEV void trace_closes() {}
#endif
};

}  // namespace mk
