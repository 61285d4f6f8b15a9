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

// After a fault, by one thread of a role that leaves: writes the record if the fault is its own, and raises the abort words
// of all ranks in reach. (2: a peer's fault.)
DEV void tell_all(const Context& c) {
    if (!c.dead) return;
    c.report();
    for (u32 rank = 0; rank < c.params.ranks; rank++) {
        Fault* const fault = c.params.faults[rank];
        if (fault) ptx::compare_and_swap(&fault->abort, 0, 2);
    }
}

// ---------------------------------------------------------------------------------------------- fetch

// Reads records ahead, simulates the ring, and publishes each record with its first page.

template <class H>
constexpr u32 traits = (has_load<H> ? Brief::LOADS : 0) | (has_math<H> ? Brief::COMPUTES : 0) |
                       (math_writes<H> ? Brief::MATH_WRITES : 0) | H::pages << 4;

// What the roles are told of a task of this handler; `page` moves on to behind it. False: it cannot be run.
template <class H>
DEV bool describe(Frame& f, const Task& t, u32& bits, u32& page) {
    static_assert(!has_math<H> || has_load<H>, "math begins when something has been loaded");
    const typename H::Args& a = args_of<H>(t);
    const u32 reason = H::check(f, a);
    if (reason != 0) {
        f.fail(reason, 0, 0, 0);
        return false;
    }
    u32 first = (page + H::pages - 1) / H::pages * H::pages;
    if (first == RING_PAGES) first = 0;
    bits |= traits<H> | first;
    page = first;
    if constexpr (has_load<H>) {
        const u64 groups = H::groups(f, a);
        bits |= (groups < 15 ? (u32)groups : 15) << 8;
        page = (first + (u32)(groups % RING_PAGES) * H::pages) % RING_PAGES;
    }
    return true;
}

DEV bool prepare(Frame& f, u32 op_and_flags, Brief& brief, u32& page) {
    const u32 op = op_and_flags & 0xffff;
    brief.bits = op << Brief::OP_AT | op_and_flags >> 16 << Brief::FLAGS_AT;
    brief.task = f.task;
    switch (op) {
#define MK_CASE(code, H) \
    case code: return describe<H>(f, f.current(), brief.bits, page);
        MK_COMPUTE_HANDLERS(MK_CASE)
#undef MK_CASE
    }
    f.fail(FAULT_OPCODE, op, 0, op);
    return false;
}

DEV void publish(Frame& f, const Brief& brief) {
    if (threadIdx.x % WARP == 0) {
        *(Brief*)(shared_memory + Arena::BRIEFS + f.slot * 8) = brief;
        f.arrive(Arena::SLOT_FULL + f.slot * Arena::BARRIER);
    }
}

// The records of one run.
DEV void fetch_run(Frame& f, Records<true>& records, u32& page) {
    for (bool more = true; more;) {
        f.record = Arena::RECORDS + f.slot * sizeof(Task);
        const u32 empty = Arena::SLOT_EMPTY + f.slot * Arena::BARRIER;
        if (!__all_sync(~0u, ptx::mbarrier_try_wait(f.shared + empty, f.slot_parity))) {
            f.wait_barrier(empty, f.slot_parity);
            f.dead = __any_sync(~0u, f.dead);
        }
        if (f.dead) return;
        more = records.next();
        Brief brief{Brief::LEAVE, 0};
        if (more) {
            records.write(f.record);
            if (!prepare(f, records.op_and_flags, brief, page)) return;
        }
        publish(f, brief);
        f.next_slot();
    }
}

DEV void fetch_role(const Launch& launch) {
    Frame f(ROLE_FETCH);
    Lane lane(launch, f);
    u32 page = 0;
    f.slot_parity = 1;  // all slots are free at first
    while (lane.take()) {
        Records<true> records(f, STREAM_COMPUTE);
        if (!lane.begin()) break;
        fetch_run(f, records, page);
        if (threadIdx.x % WARP == 0) tell_all(f);
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

DEV void load_role() {
    Frame f(ROLE_LOAD);
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
                f.reach(~0u);
            }
            f.trace_ends();
            end_task(f);
        }
        end_task(f);  // the record that says so
        f.trace_closes();
        f.let_copies_land();
        tell_all(f);
        f.end_run();
    }
}

DEV void store_role() {
    Frame f(ROLE_STORE);
    while (f.begin_run()) {
        f.trace_opens();
        while (f.take()) {
            f.trace_begins();
            if (!f.has(Brief::LOADS) && f.has(Brief::GUARDS)) {  // nobody else waits
                f.open_guards();
                f.reach(~0u);
            }
            f.open_store();
#define MK_CASE(code, H) \
    case code: store_task<H>(f, f.current()); break;
            MK_ROLE(MK_CASE)
#undef MK_CASE
            f.close_store();
            f.trace_ends();
            end_task(f);
        }
        end_task(f);
        f.trace_closes();
        ptx::bulk_wait_landed<0>();
        tell_all(f);
        f.end_run();
    }
}

DEV void math_role() {
    Frame f(ROLE_MATH);
    const bool first = threadIdx.x == WARPGROUP, leader = threadIdx.x % WARP == 0;
    const bool first_group = threadIdx.x < 2 * WARPGROUP;
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
            __syncwarp();
            if (leader) f.free_slot();
            f.next_slot();
        }
        if (leader) f.free_slot();
        f.next_slot();
        if (first) f.trace_closes();
        if (leader) ptx::bulk_wait_landed<0>();
        __syncwarp();
        f.dead = __any_sync(~0u, f.dead);
        if (leader) tell_all(f);
        if (leader) f.end_run();
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

// The tasks of one run.
DEV void comm_run(Comm& c, bool first) {
    Records<false> records(c, STREAM_COMM);
    while (!c.dead && records.next()) {
        records.write(c.record);
        if (first) c.trace_begins();
        const u32 op_and_flags = records.op_and_flags, op = op_and_flags & 0xffff;
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
        if (first) c.trace_ends();
        __syncwarp();
    }
}

DEV void comm_role() {
    Comm c;
    const bool first = threadIdx.x % WARP == 0;
    while (c.begin_run()) {
        if (first) c.trace_opens();
        comm_run(c, first);
        if (first) c.trace_closes();
        c.drain();
        if (first) tell_all(c);
        __syncwarp();
        if (first) c.end_run();
    }
}

// ---------------------------------------------------------------------------------------------- the block

DEV void init_barriers(u32 shared) {
    for (u32 i = 0; i < RING_PAGES; i++) {
        const u32 at = shared + i * Arena::BARRIER;
        ptx::mbarrier_init(at + Arena::FULL_MATH, 1);
        ptx::mbarrier_init(at + Arena::FULL_STORE, 1);
        ptx::mbarrier_init(at + Arena::EMPTY, MATH_GROUPS);
        ptx::mbarrier_init(at + Arena::DONE, MATH_WARPS);
    }
    for (u32 i = 0; i < TASK_SLOTS; i++) {
        const u32 at = shared + i * Arena::BARRIER;
        ptx::mbarrier_init(at + Arena::SLOT_FULL, 1);
        ptx::mbarrier_init(at + Arena::SLOT_EMPTY, MATH_WARPS + 2);  // and load, and store
        ptx::mbarrier_init(at + Arena::LOADED, MATH_WARPS);
        ptx::mbarrier_init(at + Arena::MAY_STORE, 1);
        ptx::mbarrier_init(at + Arena::STORED, MATH_WARPS);
    }
    for (u32 i = 0; i < Arena::COMM_SLOTS; i++) ptx::mbarrier_init(shared + Arena::COMM_FULL + i * Arena::BARRIER, 1);
    ptx::mbarrier_init(shared + Arena::RUN_BEGINS, 1);
    ptx::mbarrier_init(shared + Arena::RUN_ENDS, MATH_WARPS + 3);  // and load, store and comm
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
}

}  // namespace mk

extern "C" {

// Dynamic shared memory of a block: the compiler's report does not tell it.
__device__ const mk::u32 mk_shared_bytes = mk::Arena::BYTES;

__global__ void __launch_bounds__(mk::THREADS, 1) mk_kernel(const __grid_constant__ mk::Launch launch) {
    using namespace mk;
    if (threadIdx.x == 0) init_barriers(ptx::shared_address(shared_memory));
    __syncthreads();
    const u32 warp = threadIdx.x / WARP;
    if (warp >= WARPGROUP / WARP) {
        ptx::take_registers_up_to<MATH_REGISTERS>();
        math_role();
        return;
    }
    ptx::release_registers_down_to<OTHER_REGISTERS>();
    if (warp == 0 && threadIdx.x == 0) load_role();
    if (warp == 1) fetch_role(launch);
    if (warp == 2) comm_role();
    if (warp == 3 && threadIdx.x % WARP == 0) store_role();
}
}
