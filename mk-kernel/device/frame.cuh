// The frame: all that happens around a compute task, so that a handler holds nothing but its bytes and its arithmetic.
//
//   fetch --record--> load --page(full)--> math --page(done)--> store --page(empty)--> load ...
//
// The contract. A handler is a struct of static functions, one for each role that takes part in it:
//
//   using Args = ...;                                   the argument struct, as Rust declares it
//   static constexpr u32 pages;                         pages of one group, at most: 1, 2, 3, 4, 6 or 12
//   static DEV u32  group_pages(const Args&)            one thread: pages of one group of this task, of the same numbers
//   static DEV u32  check(const Context&, const Args&)  one thread: 0, or why this GPU cannot do it (FAULT_*)
//   static DEV u64  groups(const Context&, const Args&) one thread, if `check` gave 0: groups of pages that the task takes
//   static DEV void load(Frame&, const Args&)           a warp: fills each group; calls `reach` before each block
//   static DEV void math(Frame&, const Args&)           256 threads: takes each group; releases it, or passes it to store
//   static DEV void store(Frame&, const Args&)          a warp: writes each group and releases it
//
// `check`, `group_pages` and `groups` are called by threads that have parted, each for another task: no shuffle, no barrier, no
// `current()`; and perhaps before the run begins: no epoch, no rotation.
// In the others the threads of a warp go the same way (see Context), and all of them call the frame's functions:
//   load   before each block (as the walks of the Rust `spec` count them) `reach`; for each group `acquire` with exactly the bytes
//          that come (fewer, and its reader waits until its bound), then `load_rows` or `load_box`
//   math   for each group `wait_full<ROLE_MATH>`, then either `pass`, or `release` once all four warps of this warpgroup have read
//          it (after wgmma they have; else a named barrier), then `step`. What `release` takes of the task is `releaser()`, asked
//          for before the loop. A warpgroup without work does all of that, too. Its threads are threadIdx.x - WARPGROUP, from 0
//          to 255
//   store  for each group `wait_done` (`wait_full<ROLE_STORE>` where there is no math), `store_rows`, `end_group`; `end_groups`
//          in the end
//
// Two tasks that `Handler::shares` says have an operand in common may be asked to load it once for both (`shared_operand`): then
// `load` calls `load_shared_box` for all of it, and math releases the groups.
//
// Leave out `group_pages` where all tasks have groups of `pages`, `store` where the math warps write the result themselves (they
// call `begin_output` first), and `math` where bytes only move; `load`, `math`, `store` and `groups` where nothing is touched. All roles walk through the same groups in the same
// order. Something must be loaded before anything is written: a task without operands takes one group of no bytes, since
// it is the load role that waits for signals.
//
// What the frame does, and a handler cannot forget:
//   waits   WaitAt::Start before `load`, ::Block in `reach` (what is left after `load`), ::Store before the first store
//   posts   PostAt::Loaded once every group is consumed, ::Done once every byte has landed; both by the store role, in
//           the order of the stream
//   faults  every wait looks at the abort word and at its bound; after a fault waits return at once, nothing is loaded,
//           stored or posted, and each role leaves at the end of its task
//
// Rules that were learned by measurement, and shape this file:
//   - Each barrier has one role that waits for it, which waits for each completion once and keeps its own parity bit. A
//     barrier with two waiting roles aliases as soon as one of them skips a task.
//   - Groups are aligned to their size, so they never wrap. Fetch simulates the ring and publishes each task's first page:
//     a role that has no part in a task need not follow it.
//   - No function call is reachable from the math loop: it makes the compiler serialise wgmma (C7510) and ignore
//     setmaxnreg (C7507). So all of this is inlined, there is no 64-bit division and no exact f32 division.
#pragma once
#include "mk/context.cuh"

namespace mk {

// What fetch tells the other roles beside the record, so that they need not read it: in 64 bits, read once a task. Everything
// around a handler depends on this alone, and so is there once, not once for each handler: a change of handler finds it in the
// instruction cache.
struct alignas(8) Brief {
    // Bits of what the handler has, and of what the task waits for and posts (Task::flags; the host has looked).
    static constexpr u32 LEAVE = 1u << 12;  // no task: the stream has ended
    static constexpr u32 LOADS = 1u << 13, COMPUTES = 1u << 14, MATH_WRITES = 1u << 15;
    static constexpr u32 FLAGS_AT = 16, FLAGS = 15;
    static constexpr u32 GUARDS = TASK_GUARDS << FLAGS_AT, STORE_WAITS = TASK_STORE_WAITS << FLAGS_AT;
    static constexpr u32 LOADED_POSTS = TASK_LOADED_POSTS << FLAGS_AT, DONE_POSTS = TASK_DONE_POSTS << FLAGS_AT;
    static constexpr u32 WAITS_OR_POSTS = GUARDS | STORE_WAITS | LOADED_POSTS | DONE_POSTS;
    static constexpr u32 OP_AT = 20;

    u32 bits;  // first page, pages of a group, groups (more than the ring has: 15) in 4 bits each; then the above; opcode
    u32 task;
};
static_assert(RING_PAGES < 15 && MAX_HANDLERS <= 1u << 12, "as many bits as they need");

// ---------------------------------------------------------------------------------------------- pages and slots

// What the functions of a compute handler get. Each role uses its own part of it; the rest is never there.
struct Frame : Context {
    static constexpr u32 NONE = ~0u;

    u32 slot = 0, slot_parity = 0;  // not of fetch
    u32 page = 0;  // where this role is in the ring
    u32 brief = 0;  // Brief::bits of the task

    // Parities, a bit for each page or slot: of what the role waits for next.
    u32 seen = 0;                           // `empty` (load), or the role's own `full` (math, store)
    u32 done_seen = 0;                      // store
    u32 loaded_seen = 0, stored_seen = 0;   // store
    u32 may_store_seen = 0;                 // math
    u32 filled_math = 0, filled_store = 0;  // load: of what it has issued

    u32 held = NONE;            // store: first page of a group whose bytes may still be in shared memory
    bool loaded_due = false;    // store: the Loaded posts of this task are still to be made
    bool output_begun = false;  // math

    using Context::Context;

    // -- slots

    // Takes up the next record. False: the stream has ended, or a fault was seen; then record and task stay what they were, for
    // they are those of the fault.
    DEV bool take() {
        wait_barrier(Arena::SLOT_FULL + slot * Arena::BARRIER, slot_parity);
        if (dead) return false;
        record = Arena::RECORDS + slot * sizeof(Task);
        const Brief b = at<const Brief>(Arena::BRIEFS + slot * 8);
        brief = b.bits;
        task = b.task;
        page = brief & 15;
        return !has(Brief::LEAVE);
    }

    DEV bool has(u32 any) const { return brief & any; }
    // Whether there is something for the store role to write.
    DEV bool stores() const { return (brief & (Brief::LOADS | Brief::MATH_WRITES)) == Brief::LOADS; }
    DEV u32 op() const { return brief >> Brief::OP_AT; }
    DEV u32 group_pages() const { return brief >> 4 & 15; }
    DEV u32 groups() const { return brief >> 8 & 15; }

    // Whether this thread is the one that acts, while there is no fault.
    DEV bool acts() const { return leads() && !dead; }

    // A role that has seen a fault is silent: it tells nobody that anything is free, full or done. So no byte that was not
    // waited for goes on to a role that has not seen it yet.
    DEV void arrive(u32 barrier, bool mine) { ptx::mbarrier_arrive_if(mine && !dead, shared + barrier); }
    DEV void arrive(u32 barrier) { arrive(barrier, leads()); }

    DEV void free_slot() {
        __syncwarp();  // none of them reads the record any more
        arrive(Arena::SLOT_EMPTY + slot * Arena::BARRIER);
    }

    DEV void next_slot() {
        if (++slot == TASK_SLOTS) {
            slot = 0;
            slot_parity ^= 1;
        }
    }

    // Moves on by one group.
    DEV void step() {
        page += group_pages();
        if (page == RING_PAGES) page = 0;
    }

    DEV u32 page_address() const { return shared + Arena::RING + page * PAGE_BYTES; }

    // -- load

    // Whether there is something that `reach` may have to wait for: where the number of the block is dear.
    DEV bool guarded() const { return has(Brief::GUARDS); }

    // Meets the waits that guard block `block`, if they have not been met before.
    DEV void reach(u32 block) {
        if (has(Brief::GUARDS) && block >= ledger().guard) pass_guards<true>(block);
    }

    // Fetch: before the first box of a run.
    DEV void acquire_maps() {
        const u32 maps = params.maps ? params.region_count * MAP_KINDS : 0;
        for (u32 first = 0; first < maps; first += WARP) {
            const u32 i = first + threadIdx.x % WARP;
            if (i < maps) {
                ptx::fence_tensor_map(params.maps + i);
                ptx::prefetch_tensor_map(params.maps + i);
            }
        }
        __syncwarp();
    }

    // Takes the next group, and announces `bytes` to the role that will read it (ROLE_MATH or ROLE_STORE). `again`: this task has
    // filled the whole ring before, so the pages of the group are freed together.
    template <u32 READER>
    DEV Group acquire(u32 bytes, bool again = false) {
        static_assert(READER == ROLE_MATH || READER == ROLE_STORE, "who reads it");
        const u32 pages = group_pages(), end = page + (again ? 1 : pages);
#pragma unroll 1
        for (u32 i = page; i < end; i++) wait_barrier(Arena::EMPTY + i * Arena::BARRIER, (~seen >> i) & 1);
        constexpr u32 FULL = READER == ROLE_MATH ? Arena::FULL_MATH : Arena::FULL_STORE;
        const Group group{page_address(), shared + FULL + page * Arena::BARRIER};
        if (!dead) {
            seen ^= ((1u << pages) - 1) << page;
            (READER == ROLE_MATH ? filled_math : filled_store) ^= 1u << page;
        }
        ptx::mbarrier_arrive_expect_if(acts(), group.barrier, bytes);
        __syncwarp();  // before the copies of other threads
        step();
        return group;
    }

    // One box of a region's tensor map, to `offset` bytes into the group.
    DEV void load_box(const Group& g, u32 offset, const TensorMap* map, u32 col, u32 row, u32 copy) {
        ptx::tensor_load_if(!dead, g.at + offset, map, col, row, copy, g.barrier);
    }

    // A box of a `shared_operand`, to both lanes of the pair, if it is this one's turn: that of lanes 0, 2, 4, ... is even. Each
    // acquires groups of all bytes that come to it.
    DEV void load_shared_box(const Group& g, u32 offset, const TensorMap* map, u32 col, u32 row, u32 copy, u32 turn) {
        if (((turn ^ blockIdx.x) & 1) != 0) return;
        ptx::tensor_load_pair_if(!dead, g.at + offset, map, col, row, copy, g.barrier);
    }

    // An operand that the lanes of the pair load once for both, by its number from 1; 0: there is none. Such tasks come first in a
    // run, and wait for nothing, so both lanes come to them. They take the same groups, from the same page on: neither fills
    // a group before both have freed it.
    DEV u32 shared_operand() const { return current().flags / TASK_SHARES & TASK_SHARES_MASK; }

    // `rows` rows of `row_bytes` from memory with a pitch, to `offset` bytes into the group, one after the other.
    DEV void load_rows(const Group& g, u32 offset, const Place& from, u32 rows, u32 row_bytes) {
        const Cut cut(rows, row_bytes, from.pitch);
        for (u32 first = 0; first < cut.pieces; first += WARP) {
            const u32 i = first + threadIdx.x % WARP;
            const bool mine = i < cut.pieces && !dead;
            ptx::bulk_load_if(mine, g.at + offset + i * cut.bytes, from.row(i), cut.bytes, g.barrier);
        }
    }

    // -- math, and store where bytes only move

    // Waits for the next group, and gives its address; `page` is its first page until `step`.
    template <u32 READER>
    DEV u32 wait_full() {
        constexpr u32 FULL = READER == ROLE_MATH ? Arena::FULL_MATH : Arena::FULL_STORE;
        wait_barrier(FULL + page * Arena::BARRIER, (seen >> page) & 1);
        seen ^= 1u << page;
        return page_address();
    }

    // Math: what `release` needs to know of the task, asked for before the loop over groups: asked for in it, wgmma was
    // serialised (C7515).
    struct Releaser {
        u32 empty, other;  // the barrier that this thread arrives at for a group at page 0; and in the other block of the pair
        u32 arrivals;
        bool mine, shared;
    };
    DEV Releaser releaser() const {
        const u32 thread = threadIdx.x % WARPGROUP, empty = shared + Arena::EMPTY + thread * Arena::BARRIER;
        const bool both = shared_operand() != 0;
        const u32 other = ptx::shared_address_of(ptx::side_of_pair() ^ (both ? 1 : 0), empty);
        return Releaser{empty, other, both ? 1u : 2u, thread < group_pages(), both};
    }

    // Math: this warpgroup will not read the group that begins at page `first` again. (Wgmma is collective: what has ended
    // for one warp of a warpgroup has ended for all.)
    DEV void release(u32 first, const Releaser& r) {
        const bool mine = r.mine && !dead;
        ptx::mbarrier_arrive_if(mine, r.empty + first * Arena::BARRIER, r.arrivals);
        ptx::mbarrier_arrive_other_if(mine && r.shared, r.other + first * Arena::BARRIER);
    }

    // Math: this warp has left its results in the group, for the store role.
    DEV void pass() {
        ptx::fence_proxy_async_shared();
        __syncwarp();
        dead = __any_sync(~0u, dead);  // a loop over groups may end early, for all threads of the warp alike
        arrive(Arena::DONE + page * Arena::BARRIER);
    }

    // Math: this warp has consumed all groups of the task.
    DEV void all_consumed() {
        if (!has(Brief::LOADED_POSTS)) return;
        __syncwarp();
        arrive(Arena::LOADED + slot * Arena::BARRIER);
    }

    // Math: this warp has consumed all groups and is about to write the result itself.
    DEV void begin_output() {
        if (output_begun) return;
        output_begun = true;
        all_consumed();
        if (!has(Brief::STORE_WAITS)) return;
        wait_barrier(Arena::MAY_STORE + slot * Arena::BARRIER, (may_store_seen >> slot) & 1);
        may_store_seen ^= 1u << slot;
        ptx::fence_proxy_async_global();
    }

    // Math: everything that this warp wrote itself has landed.
    DEV void end_output() {
        output_begun = false;
        if (has(Brief::DONE_POSTS)) {
            ptx::bulk_wait_landed<0>();
            __syncwarp();
            dead = __any_sync(~0u, dead);  // a thread that saw a fault has not written its part
            arrive(Arena::STORED + slot * Arena::BARRIER);
        }
    }

    // Math: the handler is done.
    DEV void math_ends() {
        if (has(Brief::MATH_WRITES)) {
            begin_output();
            end_output();
        } else {
            all_consumed();
        }
    }

    // Staging of a math warp: 16 rows of 128 bytes.
    static constexpr u32 STAGING_BYTES = STAGING_PAGES * PAGE_BYTES / MATH_WARPS;
    DEV u32 staging() const {
        return shared + Arena::STAGING + (warp - WARPGROUP / WARP) * STAGING_BYTES;
    }

    // -- store

    // Waits until math has passed on the next group, and gives its address.
    DEV u32 wait_done() {
        wait_barrier(Arena::DONE + page * Arena::BARRIER, (done_seen >> page) & 1);
        done_seen ^= 1u << page;
        return page_address();
    }

    // `rows` rows of `row_bytes` that lie one after the other, to memory with a pitch.
    DEV void store_rows(const Place& to, u32 from, u32 rows, u32 row_bytes) {
        const Cut cut(rows, row_bytes, to.pitch);
        for (u32 first = 0; first < cut.pieces; first += WARP) {
            const u32 i = first + threadIdx.x % WARP;
            ptx::bulk_store_if(i < cut.pieces && !dead, to.row(i), from + i * cut.bytes, cut.bytes);
        }
    }

    // Everything of this group is on its way. The one before it is free once its bytes have left shared memory.
    DEV void end_group() {
        ptx::bulk_commit();
        if (held != NONE) {
            ptx::bulk_wait_read<1>();
            free_group(held);
        }
        held = page;
        step();
    }

    // All groups of the task are on their way. (To hold the last one until the next task made a change of
    // handler slow.)
    DEV void end_groups() {
        if (held == NONE) return;
        ptx::bulk_wait_read<0>();
        free_group(held);
        held = NONE;
    }

    // On behalf of the math warpgroups, which do not touch it again.
    DEV void free_group(u32 first) {
        __syncwarp();  // what each thread has stored has left
        const u32 i = threadIdx.x % WARP;
        const bool mine = i < group_pages() && !dead;
        ptx::mbarrier_arrive_if(mine, shared + Arena::EMPTY + (first + i) * Arena::BARRIER, Arena::EMPTY_ARRIVALS);
    }

    // Whether all groups of the task have come, where this role reads them. Those of a task that takes more than the ring
    // never have before it stores.
    DEV bool all_came() const {
        const u32 pages = group_pages();
        if (groups() * pages > RING_PAGES) return false;
        u32 at = page;
        for (u32 i = 0; i < groups(); i++) {
            if (!barrier_complete(Arena::FULL_STORE + at * Arena::BARRIER, (seen >> at) & 1)) return false;
            at = at + pages == RING_PAGES ? 0 : at + pages;
        }
        return true;
    }

    // The Loaded posts, if everything has been read by now. They must not be held back by a wait of this role: a peer may
    // need them to raise what this role waits for.
    DEV void post_loaded_if_ready() {
        if (!loaded_due) return;
        if (has(Brief::COMPUTES)) {
            if (!barrier_complete(Arena::LOADED + slot * Arena::BARRIER, (loaded_seen >> slot) & 1)) return;
            loaded_seen ^= 1u << slot;
        } else {
            if (!all_came()) return;
        }
        loaded_due = false;
        post_all(POST_AT_LOADED);
    }

    // Meets the Store waits of a task; and all others, where nothing is loaded.
    DEV void open_store() {
        if (!has(Brief::LOADS) && has(Brief::GUARDS)) {
            open_guards();
            reach(~0u);
        }
        loaded_due = has(Brief::LOADED_POSTS);
        if (!has(Brief::STORE_WAITS)) return;
        const u64 since = ptx::clock();
        while (loaded_due && !dead && !store_waits_met() && ptx::clock() - since < signal_bound()) {
            post_loaded_if_ready();
            if (aborted()) dead = true;
        }
        wait_all(WAIT_AT_STORE);
        if (has(Brief::MATH_WRITES)) arrive(Arena::MAY_STORE + slot * Arena::BARRIER);
    }

    DEV bool store_waits_met() const {
        const Task& t = current();
#pragma unroll 1
        for (u32 i = 0; i < WAITS; i++) {
            const Wait& w = t.waits[i];
            if (w.total == 0 || wait_at(w) != WAIT_AT_STORE) continue;
            for (u32 j = 0; j < w.count; j++) {
                if (!word_met(w, j)) return false;
            }
        }
        return true;
    }

    // Makes the posts of the task.
    DEV void close_store() {
        if (loaded_due) {
            if (has(Brief::COMPUTES)) {
                wait_barrier(Arena::LOADED + slot * Arena::BARRIER, (loaded_seen >> slot) & 1);
                loaded_seen ^= 1u << slot;
            }
            post_all(POST_AT_LOADED);
        }
        if (!has(Brief::DONE_POSTS)) return;
        if (has(Brief::MATH_WRITES)) {
            wait_barrier(Arena::STORED + slot * Arena::BARRIER, (stored_seen >> slot) & 1);
            stored_seen ^= 1u << slot;
        } else {
            ptx::bulk_wait_landed<0>();
            __syncwarp();  // all of them have waited for their own
            agree();  // a thread that saw a fault has not written its part
        }
        post_all(POST_AT_DONE);
    }
};

}  // namespace mk
