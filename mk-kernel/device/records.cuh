// The task records of one stream of a lane, one after the other: first the lane's own, then those that it claims by ticket
// from the queue that the rank's lanes share.
#pragma once
#include "mk/context.cuh"

namespace mk {

// Read by a whole warp, up to four at a time: thread t holds bytes 16 * (t % 8) .. of record t / 8 of those that were taken.
// AHEAD: the next ones are under way while these are handed out (for streams of short tasks).
//
// A ticket binds its task to this lane, so those are claimed one by one, and two ahead: one whose record is under way, and a
// ticket.
template <bool AHEAD>
struct Records {
    static constexpr u32 PARTS = sizeof(Task) / 16, BATCH = WARP / PARTS;
    static constexpr u32 NONE = ~0u - 1, UNASKED = ~0u;  // in `claimed`
    static constexpr u32 FAR = 8 * BATCH;  // so far ahead, records of the shortest tasks come from memory in time

    Context& c;
    const u32 stream;
    u32 own_next, own_end;
    u32 first = 0;  // place in params.tasks of the first record that was taken
    uint4 batch{}, ahead{};

    // Of the queue that lanes share.
    StreamRange queue;
    u32 ticket = 0;          // by the first thread; it may still be under way
    u32 claimed = UNASKED;   // the task whose record is under way, in `ahead`

    DEV Records(Context& c, u32 stream) : c(c), stream(stream), queue(c.params.queues[stream]) {
        const StreamRange own = c.params.streams[c.lane() * STREAMS + stream];
        own_next = own.first;
        own_end = own.first + own.count;
    }

    // Asks for the first records, if they are to be under way.
    DEV void start() {
        static_assert(AHEAD, "else they are read when they are reached");
        read(ahead, own_next, own_end);
    }

    // Has the first records brought to the L2, to stay there for the next run: memory is slow while all lanes load their first tiles.
    DEV void keep() const {
        const u32 mine = own_next + place();
        ptx::keep_in_l2_if(mine < own_end, c.params.tasks + mine);
    }

    // Takes the next records, which lie one behind the other in params.tasks. How many; 0: there are none, and this is not
    // called again.
    DEV u32 next() { return has_own() ? next_own() : next_claimed(); }

    // Whether the lane has records of its own that were not taken.
    DEV bool has_own() const { return own_next != own_end; }

    // Whether what was taken was claimed.
    DEV bool late() const { return claimed != UNASKED; }

    // Of those that were taken, the one that this thread holds a part of; and where that belongs in a record.
    DEV u32 place() const { return thread() / PARTS; }
    DEV u32 offset() const { return thread() % PARTS * 16; }

    // The first word of record `i` of those that were taken.
    DEV u32 first_word(u32 i) const { return __shfl_sync(~0u, batch.x, i * PARTS); }

 private:
    DEV u32 thread() const { return threadIdx.x % WARP; }

    // This thread's part of the records from `i` on, into registers that must be the same in each turn of a loop: a copy would
    // wait for it. Nothing beyond `end` is read.
    DEV void read(uint4& into, u32 i, u32 end) const {
        const u32 mine = i + place();
        ptx::load_global_128_if(mine < end, (const u8*)(c.params.tasks + mine) + offset(), into);
    }

    // Records that are needed later: then they are looked for in the L2.
    DEV void prefetch(u32 i, u32 end) const {
        const u32 mine = i + place();
        ptx::prefetch_l2_if(mine < end, c.params.tasks + mine);
    }

    DEV u32 next_own() {
        first = own_next;
        const u32 count = own_end - first < BATCH ? own_end - first : BATCH;
        own_next += count;
        if constexpr (AHEAD) {
            batch = ptx::copy_of(ahead);
            read(ahead, own_next, own_end);
        } else {
            read(batch, first, own_end);
        }
        prefetch(first + FAR, own_end);
        return count;
    }

    // A record and a ticket are under way while the task before them is handed out.
    DEV u32 next_claimed() {
        if (RARE(claimed >= NONE) && !begins_to_claim()) return 0;
        first = claimed;
        batch = ptx::copy_of(ahead);
        redeem();
        return 1;
    }

    DEV bool begins_to_claim() {
        if (claimed == NONE || queue.count == 0) return false;
        claim(true);
        redeem();
        return claimed != NONE;
    }

    // In every epoch each lane claims once past the end: so the counter is back at 0 when all have, and is never reset.
    DEV void claim(bool more) {
        ptx::fetch_increment_if(more && c.leads(), &c.params.tickets[stream], queue.count + c.params.lanes - 1, ticket);
    }

    // Claims another task, and starts to read the record that the last ticket stands for.
    DEV void redeem() {
        const u32 place = __shfl_sync(~0u, ticket, 0);
        const bool more = place < queue.count;
        claim(more);
        claimed = more ? queue.first + place : NONE;
        read(ahead, claimed, more ? claimed + 1 : 0);
        prefetch(claimed + 4 * c.params.lanes, more ? queue.first + queue.count : 0);
    }
};

}  // namespace mk
