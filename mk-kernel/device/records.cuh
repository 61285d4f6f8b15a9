// The task records of one stream of a lane, one after the other: first the lane's own, then those that it claims by ticket
// from the queue that the rank's lanes share.
#pragma once
#include "mk/context.cuh"

namespace mk {

// Read by a whole warp, in batches of four that begin at multiples of four: thread t holds bytes 16 * (t % 8) .. of record
// t / 8 of the batch. AHEAD: the next batch is under way while this one is handed out (for streams of short tasks).
//
// A ticket binds its task to this lane, so those are claimed one by one, and two ahead: one whose record is under way, and a
// ticket.
template <bool AHEAD>
struct Records {
    static constexpr u32 PARTS = sizeof(Task) / 16, BATCH = WARP / PARTS;
    static constexpr u32 UNASKED = ~0u, NONE = ~0u - 1;  // in `claimed`
    static constexpr u32 FAR = 8 * BATCH;  // so far ahead, records of the shortest tasks come from memory in time

    Context& c;
    const u32 stream;
    u32 own_first, own_next, own_end;
    uint4 batch{}, ahead{};
    u32 op_and_flags = 0, upcoming = 0;  // first word of the record that was taken, and of the one behind it in the batch

    // Of the queue that lanes share.
    u32 ticket = 0;          // by the first thread; it may still be under way
    u32 claimed = UNASKED;   // the task whose record is under way, in `ahead`

    DEV Records(Context& c, u32 stream) : c(c), stream(stream) {
        const StreamRange own = c.params.streams[c.lane() * STREAMS + stream];
        own_first = own_next = own.first;
        own_end = own.first + own.count;
        read(batch, own_next, own_end);
        if constexpr (AHEAD) read(ahead, own_next + BATCH, own_end);
    }

    // Takes the next record, whose place in params.tasks is `c.task` then. False: there is none, and this is not called
    // again. The same for all threads of the warp.
    DEV bool next() { return next_own() || next_claimed(); }

    // Writes the record that was taken to shared memory, for all roles.
    DEV void write(u32 record) const {
        if (thread() / PARTS == c.task % BATCH) *(uint4*)(shared_memory + record + thread() % PARTS * 16) = batch;
        __syncwarp();
    }

 private:
    DEV u32 thread() const { return threadIdx.x % WARP; }
    DEV const StreamRange& queue() const { return c.params.queues[stream]; }

    // This thread's part of the batch with record `i`, into registers that must be the same in each turn of a loop: a copy
    // would wait for it. Nothing beyond `end` is read.
    DEV void read(uint4& into, u32 i, u32 end) const {
        const u32 mine = i / BATCH * BATCH + thread() / PARTS;
        ptx::load_global_128_if(mine < end, (const u8*)(c.params.tasks + mine) + thread() % PARTS * 16, into);
    }

    DEV bool next_own() {
        if (own_next == own_end) return false;
        c.task = own_next++;
        const u32 place = c.task % BATCH;
        op_and_flags = upcoming;
        if (place == 0 || c.task == own_first) {
            if (c.task != own_first) take_batch();
            op_and_flags = first_word(c.task);
        }
        // Not with the batch before it: then the compiler copies registers, and a copy waits for the load.
        if (AHEAD && place == 1) {
            prefetch(c.task - 1 + FAR, own_end);
            read(ahead, c.task - 1 + BATCH, own_end);
        }
        upcoming = first_word(c.task + 1);
        return true;
    }

    DEV u32 first_word(u32 i) const { return __shfl_sync(~0u, batch.x, i % BATCH * PARTS); }

    DEV void take_batch() {
        if constexpr (AHEAD) {
            batch = ahead;
        } else {
            prefetch(c.task + FAR, own_end);
            read(batch, c.task, own_end);
        }
    }

    // Asks for records that are needed later: they come from memory to the L2, where the next look finds them soon enough.
    DEV void prefetch(u32 i, u32 end) const {
        if (thread() == 0 && i + BATCH <= end) ptx::prefetch_l2(c.params.tasks + i, BATCH * sizeof(Task));
    }

    // A record and a ticket are under way while the task before them is handed out.
    DEV bool next_claimed() {
        if (queue().count == 0) return false;
        if (claimed == UNASKED) {
            claim();
            redeem();
        }
        if (claimed == NONE) return false;
        c.task = claimed;
        batch = ptx::copy_of(ahead);
        op_and_flags = first_word(c.task);
        redeem();
        return true;
    }

    // In every epoch each lane claims once past the end: so the counter is back at 0 when all have, and is never reset.
    DEV void claim() {
        const u32 last = queue().count + c.params.lanes - 1;
        if (thread() == 0) ticket = ptx::fetch_increment(&c.params.tickets[stream], last);
    }

    // Starts to read the record that the ticket stands for, and claims another one.
    DEV void redeem() {
        const u32 place = __shfl_sync(~0u, ticket, 0);
        claimed = place < queue().count ? queue().first + place : NONE;
        if (claimed == NONE) return;
        const u8* const from = (const u8*)(c.params.tasks + claimed) + thread() % PARTS * 16;
        ptx::load_global_128_if(thread() / PARTS == claimed % BATCH, from, ahead);
        const u32 far = claimed + 4 * c.params.lanes, end = queue().first + queue().count;
        if (thread() == 0 && far < end) ptx::prefetch_l2(c.params.tasks + far, sizeof(Task));
        claim();
    }
};

}  // namespace mk
