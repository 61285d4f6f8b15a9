// The persistent kernel: what each warp of a lane does, over the table of registered handlers.
//
//   warpgroup 0      warp 0 load, warp 1 fetch, warp 2 comm, warp 3 store    OTHER_REGISTERS a thread
//   warpgroups 1, 2  math                                                    MATH_REGISTERS a thread
//
// One block is one lane. There is one split of registers for all handlers: it cannot change from task to task.
#pragma once
#include "mk/abi.cuh"
#include "mk/comm.cuh"
#include "mk/frame.cuh"
#include "mk/lane.cuh"
#include "mk/records.cuh"
#include "mk/table.cuh"

namespace mk {

// ---------------------------------------------------------------------------------------------- what a handler has

#define MK_HAS(role)                   \
    template <class H, class = void>   \
    constexpr bool has_##role = false; \
    template <class H>                 \
    constexpr bool has_##role<H, decltype((void)&H::role)> = true;
MK_HAS(group_pages)
MK_HAS(load)
MK_HAS(math)
MK_HAS(store)
#undef MK_HAS

template <class H>
constexpr bool math_writes = has_math<H> && !has_store<H>;

template <class H>
DEV const typename H::Args& args_of(const Task& t) {
    return *(const typename H::Args*)t.args;
}

// ---------------------------------------------------------------------------------------------- faults

// After a fault, when a role leaves: writes the record if the fault is its own, and raises the abort words of all ranks in
// reach. (2: a peer's fault.)
DEV void tell_all(const Context& c) {
    if (!c.dead) return;
    c.report();
    for (u32 rank = 0; rank < c.params.ranks; rank++) {
        Fault* const fault = c.params.faults[rank];
        if (fault) c.raise_abort(fault, 2);
    }
}

// ---------------------------------------------------------------------------------------------- fetch

// Reads records ahead, simulates the ring, and publishes each record with its first page: up to four at a time, a thread each.

// So many tasks that were claimed are with the roles at most: another lane might do the next one sooner.
constexpr u32 CLAIMED_TASKS = 4;

// What the roles are told of a task, and what it does to the ring. `reason`: why it cannot be run.
struct Described {
    u32 bits = 0, reason = 0;
    u32 ring = 0;  // pages of a group; 8 bits from bit 8 on: pages of all its groups, modulo the ring; above: 1 / the first, * 256

    // (A division of what is not known at compile time would be the longest part of a short task.)
    DEV void takes(u32 pages, u64 groups) {
        static_assert(RING_PAGES == 12, "these are its divisors");
        const u32 reciprocal = pages == 1 ? 256 : pages == 2 ? 128 : pages == 3 ? 86 : pages == 4 ? 64 : pages == 6 ? 43 : 22;
        const u32 all = (u32)(groups % RING_PAGES) * pages % RING_PAGES;
        ring = pages | all << 8 | reciprocal << 16;
    }
};

template <class H>
constexpr u32 traits = (has_load<H> ? Brief::LOADS : 0) | (has_math<H> ? Brief::COMPUTES : 0) |
                       (math_writes<H> ? Brief::MATH_WRITES : 0);

template <class H>
DEV u32 group_pages(const typename H::Args& a) {
    static_assert(RING_PAGES % H::pages == 0, "a group never wraps");
    if constexpr (has_group_pages<H>) {
        return H::group_pages(a);
    } else {
        return H::pages;
    }
}

template <class H>
DEV void describe(const Context& c, const Task& t, Described& d) {
    static_assert(has_load<H> || (!has_math<H> && !has_store<H>), "something must be loaded first");
    const typename H::Args& a = args_of<H>(t);
    d.reason = H::check(c, a);
    const u32 pages = group_pages<H>(a);
    d.bits |= traits<H> | pages << 4;
    u64 groups = 0;
    if constexpr (has_load<H>) {
        if (d.reason == 0) groups = H::groups(c, a);
    }
    d.bits |= (groups < 15 ? (u32)groups : 15) << 8;
    d.takes(pages, groups);
}

DEV Described describe(const Context& c, const Task& t, u32 op_and_flags) {
    const u32 op = op_and_flags & 0xffff;
    Described d;
    d.bits = op << Brief::OP_AT | (op_and_flags >> 16 & Brief::FLAGS) << Brief::FLAGS_AT;
    switch (op) {
#define MK_CASE(code, H) \
    case code: describe<H>(c, t, d); break;
        MK_COMPUTE_HANDLERS(MK_CASE)
#undef MK_CASE
        default: d.reason = FAULT_OPCODE;
    }
    return d;
}

struct Fetch {
    using Batch = Records<true>;

    Frame& f;
    u32 turn = 0;  // tasks since the kernel began: slot and parity follow from it
    u32 page = 0;  // the next one of the ring
    u32 ahead = 0;    // tasks that are described before their run begins
    Described first;  // of them, that of this thread

    DEV explicit Fetch(Frame& f) : f(f) {}

    // The lane's first records, before the run begins: what that takes is over when it does.
    DEV void look_ahead(Batch& records) {
        ahead = records.has_own() ? records.next() : 0;
        first = describe_all(records, ahead);
    }

    // The records of one run, and one that says that there are no more.
    DEV void run(Batch& records) {
        u32 count;
        page = 0;  // the ring is empty, and lanes of a pair begin alike
        if (ahead > 0 && !hand_out(records, ahead, first)) return;
        do {
            const bool late = records.late();  // a claim binds a task to this lane: not before its turn
            if (late && !are_free(turn + 1, CLAIMED_TASKS)) return;
            count = records.next();
            if (!late && !are_free(turn + (count > 0 ? count : 1), TASK_SLOTS)) return;
            if (count > 0 && !hand_out(records, count, describe_all(records, count))) return;
        } while (count > 0);
        tell(0, f.leads(), Brief{Brief::LEAVE, 0});
        turn++;
    }

 private:
    static DEV u32 slot(u32 turn) { return turn % TASK_SLOTS; }

    // Waits until of those before `end` the roles have `limit` still to do, or fewer. They do them in order.
    DEV bool are_free(u32 end, u32 limit) {
        const u32 last = end - 1 - limit, parity = last / TASK_SLOTS & 1;
        const u32 empty = Arena::SLOT_EMPTY + slot(last) * Arena::BARRIER;
        if (!RARE(!__all_sync(~0u, ptx::mbarrier_try_wait(f.shared + empty, parity)))) return true;
        f.keep_waiting(empty, parity);
        f.dead = __any_sync(~0u, f.dead);
        return !f.dead;
    }

    // Whether this thread is the one that describes the record that it holds a part of.
    static DEV bool describes(const Batch& records, u32 count) {
        return records.place() < count && records.offset() == 0;
    }

    // Thread t has part t % 8 of record t / 8; the first of each eight describes it.
    DEV Described describe_all(const Batch& records, u32 count) {
        const u32 place = records.place(), record = Arena::RECORDS + slot(turn + place) * sizeof(Task);
        ptx::store_shared_128_if(place < count, f.shared + record + records.offset(), records.batch);
        __syncwarp();
        Described d;
        if (describes(records, count)) d = describe(f, f.at<const Task>(record), records.batch.x);
        return d;
    }

    // Tells the roles of them. False: one of them cannot be run.
    DEV bool hand_out(const Batch& records, u32 count, const Described& d) {
        const u32 place = records.place();
        const u32 failed = __ballot_sync(~0u, d.reason != 0);
        if (RARE(failed != 0)) return fail(records, d, __ffs(failed) - 1);
        const u32 first_page = lay_out(d, count);
        tell(place, describes(records, count), Brief{d.bits | first_page, records.first + place});
        turn += count;
        f.task = records.first + count - 1;
        f.record = Arena::RECORDS + slot(turn - 1) * sizeof(Task);
        return true;
    }

    // Lays the groups of all tasks into the ring, aligned to their size. Returns the first page of this thread's task.
    DEV u32 lay_out(const Described& d, u32 count) {
        u32 mine = 0;
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            const u32 ring = __shfl_sync(~0u, d.ring, i * Batch::PARTS), pages = ring & 0xff;
            const u32 up = ((page + pages - 1) * (ring >> 16) >> 8) * pages, first = up < RING_PAGES ? up : 0;
            const u32 behind = first + (ring >> 8 & 0xff);
            if (i == threadIdx.x % WARP / Batch::PARTS) mine = first;
            page = behind < RING_PAGES ? behind : behind - RING_PAGES;
        }
        return mine;
    }

    DEV void tell(u32 place, bool mine, const Brief& brief) {
        const u32 at = slot(turn + place);
        if (mine) f.at<Brief>(Arena::BRIEFS + at * sizeof(Brief)) = brief;
        f.arrive(Arena::SLOT_FULL + at * Arena::BARRIER, mine);
    }

    DEV bool fail(const Batch& records, const Described& d, u32 thread) {
        const u32 place = thread / Batch::PARTS, op = records.first_word(place) & 0xffff;
        const u32 reason = __shfl_sync(~0u, d.reason, thread);
        f.task = records.first + place;
        f.record = Arena::RECORDS + slot(turn + place) * sizeof(Task);
        f.fail(reason, reason == FAULT_OPCODE ? op : 0, 0, reason == FAULT_OPCODE ? op : 0);
        return false;
    }
};

DEV void fetch_role(u32 warp, const Launch& launch) {
    Frame f(ROLE_FETCH, warp);
    Lane lane(launch, f);
    Fetch fetch(f);
    while (lane.take()) {
        lane.keep();
        Records<true> records(f, STREAM_COMPUTE);
        records.start();
        records.keep();
        Records<false>(f, STREAM_COMM).keep();
        fetch.look_ahead(records);
        f.acquire_maps();
        if (!lane.is_admitted()) break;
        lane.begin();
        fetch.run(records);
        tell_all(f);
        lane.end();
    }
    lane.stop();
}

// ---------------------------------------------------------------------------------------------- load, math, store

template <class H>
DEV void load_task(Frame& f, const Task& t) {
    if constexpr (has_load<H>) H::load(f, args_of<H>(t));
}

template <class H>
DEV void math_task(Frame& f, const Task& t) {
    if constexpr (has_math<H>) H::math(f, args_of<H>(t));
}

template <class H>
DEV void store_task(Frame& f, const Task& t) {
    if constexpr (has_store<H>) H::store(f, args_of<H>(t));
}

DEV void end_task(Frame& f) {
    f.free_slot();
    f.next_slot();
}

#define MK_ROLE(role_task) \
    switch (f.op()) { MK_COMPUTE_HANDLERS(role_task) }

DEV void load_role(u32 warp) {
    Frame f(ROLE_LOAD, warp);
    while (f.begin_run()) {
        f.trace_opens();
        while (f.take()) {
            f.trace_begins();
            if (f.has(Brief::LOADS)) {
                if (f.has(Brief::GUARDS)) f.open_guards();
#define MK_CASE(code, H) \
    case code: load_task<H>(f, f.current()); break;
                MK_ROLE(MK_CASE)
#undef MK_CASE
                if (f.has(Brief::GUARDS)) f.reach(~0u);
            }
            f.trace_ends();
            end_task(f);
        }
        end_task(f);  // the record that says so
        f.trace_closes();
        f.agree();
        tell_all(f);
        if (f.dead) f.let_copies_land(f.filled_math, f.filled_store);
        f.run().filled_math = f.filled_math;
        f.run().filled_store = f.filled_store;
        f.end_run();
    }
}

DEV void store_role(u32 warp) {
    Frame f(ROLE_STORE, warp);
    while (f.begin_run()) {
        f.trace_opens();
        while (f.take()) {
            f.trace_begins();
            if (f.has(Brief::WAITS_OR_POSTS)) f.open_store();
            if (f.stores()) {
#define MK_CASE(code, H) \
    case code: store_task<H>(f, f.current()); break;
                MK_ROLE(MK_CASE)
#undef MK_CASE
            }
            if (f.has(Brief::WAITS_OR_POSTS)) f.close_store();
            f.trace_ends();
            end_task(f);
        }
        end_task(f);
        f.trace_closes();
        ptx::bulk_wait_landed<0>();
        f.agree();
        tell_all(f);
        f.end_run();
    }
}

DEV void math_role(u32 warp) {
    Frame f(ROLE_MATH, warp);
    const bool first = warp == WARPGROUP / WARP;  // this one traces for all
    const bool first_group = warp < 2 * WARPGROUP / WARP;
    while (f.begin_run()) {
        if (first) f.trace_opens();
        for (;;) {
            const bool go = f.take();
            // Wgmma needs all four warps, so they leave after the same task. All of them come here once a task, for every
            // wait on the way ends.
            if (first_group ? ptx::barrier_any<1, WARPGROUP>(!go) : ptx::barrier_any<2, WARPGROUP>(!go)) break;
            if (first) f.trace_begins();
#define MK_CASE(code, H) \
    case code: math_task<H>(f, f.current()); break;
            if (f.has(Brief::COMPUTES)) {
                MK_ROLE(MK_CASE)
                f.math_ends();
            }
#undef MK_CASE
            if (first) f.trace_ends();
            end_task(f);
        }
        end_task(f);
        if (first) f.trace_closes();
        ptx::bulk_wait_landed<0>();
        f.agree();
        tell_all(f);
        f.end_run();
    }
}
#undef MK_ROLE

// ---------------------------------------------------------------------------------------------- comm

template <class H>
DEV void comm_task(Comm& c, const Task& t) {
    const typename H::Args& a = args_of<H>(t);
    const u32 reason = H::check(c, a), units = H::units(a);
    if (reason != 0) return c.fail_together(reason, 0, 0);
    if (units > 0) c.units = units;
    H::comm(c, a);
}

// The task of the `i`th record of those that were taken.
DEV void comm_task(Comm& c, const Records<false>& records, u32 i) {
    c.task = records.first + i;
    ptx::store_shared_128_if(records.place() == i, c.shared + c.record + records.offset(), records.batch);
    __syncwarp();
    const u32 op_and_flags = records.first_word(i), op = op_and_flags & 0xffff;
    c.open(op_and_flags >> 16);
    const Task& t = c.current();
    switch (op) {
#define MK_CASE(code, H) \
    case code: comm_task<H>(c, t); break;
        MK_COMM_HANDLERS(MK_CASE)
#undef MK_CASE
        default: c.fail_together(FAULT_OPCODE, op, op);
    }
    if (c.asked) Transfer(c).run();
    c.close();
    __syncwarp();
}

// The tasks of one run.
DEV void comm_run(Comm& c) {
    Records<false> records(c, STREAM_COMM);
    u32 count;
    do {
        count = records.next();
        for (u32 i = 0; i < count && !c.dead; i++) {
            c.trace_begins();
            comm_task(c, records, i);
            c.trace_ends();
        }
    } while (count > 0 && !c.dead);
}

DEV void comm_role(u32 warp) {
    Comm c(warp);
    while (c.begin_run()) {
        c.trace_opens();
        comm_run(c);
        c.trace_closes();
        c.drain();
        c.agree();
        tell_all(c);
        c.end_run();
    }
}

// ---------------------------------------------------------------------------------------------- the block

// By one thread of each warp: what there is one of for each page by warp `page`, and so on. (The threads of one warp take turns
// at it, and at the fences behind it: by all of them, each for its own, it was the longest part of a launch's start.)
DEV void init_barriers(u32 shared, u32 warp) {
    static_assert(RING_PAGES <= THREADS / WARP && TASK_SLOTS <= THREADS / WARP, "a warp for each");
    const u32 at = shared + warp * Arena::BARRIER;
    if (warp < RING_PAGES) {
        ptx::mbarrier_init(at + Arena::FULL_MATH, 1);
        ptx::mbarrier_init(at + Arena::FULL_STORE, 1);
        ptx::mbarrier_init(at + Arena::EMPTY, Arena::EMPTY_ARRIVALS);
        ptx::mbarrier_init(at + Arena::DONE, MATH_WARPS);
    }
    if (warp < TASK_SLOTS) {
        ptx::mbarrier_init(at + Arena::SLOT_FULL, 1);
        ptx::mbarrier_init(at + Arena::SLOT_EMPTY, MATH_WARPS + 2);  // and load, and store
        ptx::mbarrier_init(at + Arena::LOADED, MATH_WARPS);
        ptx::mbarrier_init(at + Arena::MAY_STORE, 1);
        ptx::mbarrier_init(at + Arena::STORED, MATH_WARPS);
    }
    if (warp < Arena::COMM_SLOTS) ptx::mbarrier_init(at + Arena::COMM_FULL, 1);
    if (warp == 0) {
        ptx::mbarrier_init(shared + Arena::RUN_BEGINS, 1);
        ptx::mbarrier_init(shared + Arena::RUN_ENDS, MATH_WARPS + 3);  // and load, store and comm
    }
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async_shared();
}

}  // namespace mk

extern "C" {

// Dynamic shared memory of a block: the compiler's report does not tell it.
__device__ const mk::u32 mk_shared_bytes = mk::Arena::BYTES;

__global__ void __launch_bounds__(mk::THREADS, 1) mk_kernel(const __grid_constant__ mk::Launch launch) {
    using namespace mk;
    const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP, 0);
    if (threadIdx.x % WARP == 0) init_barriers(ptx::shared_address(shared_memory), warp);
    __syncwarp();
    ptx::pair_barrier();
    if (warp >= WARPGROUP / WARP) {
        ptx::take_registers_up_to<MATH_REGISTERS>();
        math_role(warp);
    } else {
        ptx::release_registers_down_to<OTHER_REGISTERS>();
        switch (warp) {
            case 0: load_role(warp); break;
            case 1: fetch_role(warp, launch); break;
            case 2: comm_role(warp); break;
            case 3: store_role(warp);
        }
    }
    __syncwarp();
    ptx::pair_barrier();  // neither reaches into what the other has left
}
}
