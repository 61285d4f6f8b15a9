// The task records of one stream of a lane, one after the other: first the lane's own, then those that it claims by ticket
// from the queue that the rank's lanes share.
#pragma once
#include "mk/context.cuh"

namespace mk {

// Read by a whole warp, in batches of four that begin at multiples of four: thread t holds bytes 16 * (t % 8) .. of record
// t / 8 of the batch. AHEAD: the next batch is under way while this one is handed out (for streams of short tasks; it costs
// four registers).
//
// A ticket binds its task to this lane, so those are claimed one by one, and one ahead.
template <bool AHEAD>
struct Records {
    static constexpr u32 PARTS = sizeof(Task) / 16, BATCH = WARP / PARTS;
    static constexpr u32 FAR = 8 * BATCH;  // from memory it takes 2 us, and a short task a tenth of that

    Context& c;
    const u32 stream;
    u32 own_next, own_end;
    uint4 batch, ahead;
    u64 ticket = 0;          // of the next claimed task, by the first thread; it may still be under way
    bool claiming = false;

    DEV Records(Context& c, u32 stream) : c(c), stream(stream) {
        const StreamRange own = c.params.streams[c.lane() * STREAMS + stream];
        own_next = own.first;
        own_end = own.first + own.count;
        batch = read(own_next, own_end);
        if constexpr (AHEAD) ahead = own_next % BATCH == 0 ? batch : read(own_next + BATCH, own_end);
    }

    // Takes the next record, whose place in params.tasks is `c.task` then. False: there is none, and this is not called
    // again. The same for all threads of the warp.
    DEV bool next() { return next_own() || next_claimed(); }

    // Its first word.
    DEV u32 op_and_flags() const { return __shfl_sync(~0u, batch.x, c.task % BATCH * PARTS); }

    // Writes the record that was taken to shared memory, for all roles.
    DEV void write(u32 record) const {
        if (thread() / PARTS == c.task % BATCH) *(uint4*)(shared_memory + record + thread() % PARTS * 16) = batch;
        __syncwarp();
    }

 private:
    DEV u32 thread() const { return threadIdx.x % WARP; }
    DEV const StreamRange& queue() const { return c.params.queues[stream]; }

    // This thread's part of the batch with record `i`; nothing beyond `end` is read.
    DEV uint4 read(u32 i, u32 end) const {
        const u32 mine = i / BATCH * BATCH + thread() / PARTS;
        if (mine >= end) return uint4{0, 0, 0, 0};
        return ptx::load_global_128((const u8*)(c.params.tasks + mine) + thread() % PARTS * 16);
    }

    DEV bool next_own() {
        if (own_next == own_end) return false;
        c.task = own_next++;
        if (c.task % BATCH != 0) return true;
        prefetch(c.task + FAR, own_end);
        if constexpr (AHEAD) {
            batch = ahead;
            ahead = read(c.task + BATCH, own_end);
        } else {
            batch = read(c.task, own_end);
        }
        return true;
    }

    // Asks for records that are needed later: they come from memory to the L2, where the next look finds them soon enough.
    DEV void prefetch(u32 i, u32 end) const {
        if (thread() == 0 && i + BATCH <= end) ptx::prefetch_l2(c.params.tasks + i, BATCH * sizeof(Task));
    }

    // One ticket is under way while the task of the one before is handed out.
    DEV bool next_claimed() {
        if (queue().count == 0) return false;
        if (!claiming) claim();
        claiming = true;
        // In every epoch each lane claims once past the end: so much a counter that is never reset has grown.
        const u64 base = (c.epoch() - 1) * ((u64)queue().count + c.params.lanes);
        const u64 place = __shfl_sync(~0u, ticket, 0) - base;
        if (place >= queue().count) return false;
        c.task = queue().first + (u32)place;
        batch = read(c.task, c.task + 1);
        claim();
        return true;
    }

    DEV void claim() {
        if (thread() == 0) ticket = ptx::fetch_add(&c.params.tickets[stream], 1);
    }
};

}  // namespace mk
