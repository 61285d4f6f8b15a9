// What a comm handler gets: the waits and posts of a comm task, and one routine that moves a rectangle, unit by unit, from
// memory through shared memory to memory. Either end may be a peer's.
//
// The contract. A comm handler is a struct of static functions, called by all 32 threads of the comm warp:
//
//   using Args = ...;
//   static DEV u32  check(const Context&, const Args&)  0, or why this GPU cannot do it (FAULT_*)
//   static DEV u32  units(const Args&)                  blocks of the task
//   static DEV void comm(Comm&, const Args&)            asks for a transfer (not if the task only waits and posts)
//
// What cannot be forgotten: Start waits come before `comm`; `begin_unit` meets the waits of a unit before its first read;
// `end_chunk` posts a unit once it has landed; after `comm` what is left of waits and posts is done, in the order that the
// contract wants. A wait that blocks is never entered with a post pending: the peer may need that post to raise the word.
//
// A transfer that `comm` asked for is run behind the table, in one place for all handlers: four copies of that code made
// the kernel twice as long to compile.
//
// One release covers a whole unit, and is made a chunk after the unit's last store, when that has most likely landed: to wait
// for each store cost a round trip. A slot of the ring is filled again as soon as its bytes have left shared memory.
#pragma once
#include "mk/context.cuh"
#include "mk/number.cuh"

namespace mk {

// How bytes change on their way.
enum class Combine : u32 { Overwrite, Add };

struct Comm : Context {
    static constexpr u32 SLOTS = Arena::COMM_SLOTS;
    static constexpr u32 SLOT_BYTES = COMM_PAGES * PAGE_BYTES / SLOTS;
    static constexpr u32 EVERYONE = ~0u;

    u32 filled = 0, taken = 0;  // slots filled and taken since the kernel began: slot and parity follow from them

    // Of this task:
    u32 flags = 0;       // Task::flags
    bool asked = false;  // the handler has asked for a transfer
    u32 units = 0;       // how many it has
    u32 stored = 0;      // units whose stores are all issued
    u32 raised = 0;      // units whose Block posts are made

    DEV explicit Comm(u32 warp) : Context(ROLE_COMM, warp) { record = Arena::COMM_RECORD; }

    DEV u32 thread() const { return threadIdx.x % WARP; }

    // What one thread found out, for all of them.
    DEV bool together(bool yes) const { return __shfl_sync(EVERYONE, yes, 0); }

    DEV void fail_together(u32 reason, u32 word, u64 seen) {
        fail(reason, word, 0, seen);
    }

    // ------------------------------------------------------------------------------------------ waits and posts

    DEV void open(u32 task_flags) {
        flags = task_flags;
        units = 1;
        asked = false;
        stored = raised = 0;
        if (flags == 0) return;
        ledger().raised_words = 0;
        if (flags & TASK_GUARDS) open_guards();
        agree();
    }

    // For handlers: moves the rectangle, after `comm` has returned.
    DEV void transfer(const CopyArgs& a, u32 src_rank, u32 dst_rank, Combine how);

    // Whether unit `unit` may be read.
    DEV bool unit_ready(u32 unit) {
        if (!(flags & TASK_GUARDS)) return true;
        const bool ready = unit < ledger().guard || pass_guards<false>(unit);
        return together(ready);
    }

    // Waits until it may.
    DEV void begin_unit(u32 unit) {
        if (unit_ready(unit)) return;
        flush();
        pass_guards<true>(unit);
        agree();
    }

    // Everything that was stored has landed, and is posted.
    DEV void flush() {
        if (asked) ptx::bulk_wait_landed<0>();
        raise(stored);
    }

    // Makes the Block posts of units below `landed`.
    DEV void raise(u32 landed) {
        __syncwarp();
        raise_words(landed);
        raised = landed;
        agree();
    }

    DEV void raise_words(u32 landed) {
        const Task& t = current();
        const u32 known = ledger().raised_words;
        u32 all = known;
        __syncwarp();  // before one of them writes it
#pragma unroll 1
        for (u32 i = 0; i < POSTS; i++) {
            const Post& p = t.posts[i];
            if (p.total == 0 || post_at(p) != POST_AT_BLOCK) continue;
            const u32 every = p.every > 0 ? p.every : 1, words = ptx::divide(units + every - 1, every);
            const u32 before = known >> (16 * i) & 0xffff;
            u32 made = before;
            while (made < words && (landed >= units || (made + 1) * every <= landed)) post(p, made++);
            all += (made - before) << (16 * i);
        }
        ledger().raised_words = all;
    }

    // The end of every task: waits for words of units without bytes, then the posts.
    DEV void close() {
        begin_unit(~0u);
        if (flags & TASK_LOADED_POSTS) post_all(POST_AT_LOADED);
        stored = units;
        if (flags & (TASK_BLOCK_POSTS | TASK_DONE_POSTS)) flush();
        if (flags & TASK_DONE_POSTS) post_all(POST_AT_DONE);
        agree();
    }

    // ------------------------------------------------------------------------------------------ the ring

    DEV u32 slot_address(u32 n) const { return shared + Arena::COMM_RING + n % SLOTS * SLOT_BYTES; }
    DEV u32 slot_barrier(u32 n) const { return Arena::COMM_FULL + n % SLOTS * Arena::BARRIER; }

    // Takes the next slot and announces `bytes`; then all threads may issue copies to it.
    DEV Group fill_slot(u32 bytes) {
        ptx::bulk_wait_read<0>();  // what lay there has left, for every thread that stored some of it
        __syncwarp();
        const Group g{slot_address(filled), shared + slot_barrier(filled)};
        ptx::mbarrier_arrive_expect_if(leads(), g.barrier, bytes);
        __syncwarp();
        filled++;
        return g;
    }

    // Waits for the oldest filled slot.
    DEV u32 take_slot() {
        wait_barrier(slot_barrier(taken), taken / SLOTS & 1);
        agree();
        return slot_address(dead ? taken : taken++);
    }

    // A chunk's stores are issued; `complete` units are stored in whole. Posts what was before it, and has most likely landed by now.
    DEV void end_chunk(u32 complete) {
        ptx::bulk_commit();
        const u32 before = stored;
        stored = complete;
        if (before == raised) return;
        ptx::bulk_wait_landed<1>();
        raise(before);
    }

    // -- a link that is not there, in kernels that are built with one

#ifdef MK_PACE_GB_PER_S
    // So many bytes were asked for, into the slot that was filled last: they have come when all before them have passed the link, and
    // they, and so much later. The link counts eighths of nanoseconds: the GPU's clock says what time it is since 1970, so smaller
    // parts do not fit into 64 bits.
    DEV void pace_asks(u32 bytes) {
        if (!leads()) return;
        const u64 passes = (u64)bytes * 8 / MK_PACE_GB_PER_S;
        ptx::max_relaxed(&mk_link, ptx::global_timer_ns() * 8);
        const u64 passed = ptx::fetch_add(&mk_link, passes) + passes;
        at<u64>(Arena::DUE + (filled - 1) % SLOTS * 8) = passed / 8 + MK_PACE_LATENCY_NS;
    }

    // Waits until what is in the slot that is taken next has come.
    DEV void pace_waits() {
        __syncwarp();
        const u64 due = at<const u64>(Arena::DUE + taken % SLOTS * 8);
        while (ptx::global_timer_ns() < due && !dead) dead = aborted();
        agree();
    }
#else
    DEV void pace_asks(u32) {}
    DEV void pace_waits() {}
#endif

    // Before the warp leaves: copies that are under way still use shared memory.
    DEV void drain() {
        const u64 since = ptx::clock();
        while (taken != filled && ptx::clock() - since < COPIES_PATIENCE) {
            if (barrier_complete(slot_barrier(taken), taken / SLOTS & 1)) taken++;
        }
        ptx::bulk_wait_landed<0>();
    }
};

// ---------------------------------------------------------------------------------------------- chunks

// What is moved, for all threads of the warp. It lies in shared memory, for a comm thread has few registers.
struct Job {
    Place src, dst;
    u32 rows, row_bytes;
    u32 unit_bytes;  // of a row; the last unit may have fewer
    u32 limit;       // bytes of a chunk
    u32 dtype;
    bool adds;
};
static_assert(sizeof(Job) <= Arena::JOB_BYTES, "as the arena has it");

// Columns of a unit, as CopyArgs::unit_cols says in Rust: the even share, rounded up to 8.
DEV u32 unit_cols(const CopyArgs& a) {
    const u32 units = a.units > 0 ? a.units : 1, down = ptx::divide(a.cols, units);
    const u32 share = down * units == a.cols ? down : down + 1;
    return share == 0 ? 8 : (share + 7) / 8 * 8;
}

// A place in the rectangle, which is cut into chunks, unit by unit: whole rows of the unit as far as they fit into the
// limit, or parts of one row.
struct Chunk {
    u32 unit = 0;
    u32 start = 0;         // of the unit, in bytes of a row
    u32 row = 0, col = 0;  // row, and byte within the unit

    DEV bool in(const Job& j) const { return start < j.row_bytes && j.rows > 0; }
    DEV bool operator==(const Chunk& o) const { return start == o.start && row == o.row && col == o.col; }
    DEV u32 byte() const { return start + col; }  // of a row
    DEV u32 width(const Job& j) const {
        return j.row_bytes - start < j.unit_bytes ? j.row_bytes - start : j.unit_bytes;
    }
    DEV u32 bytes(const Job& j) const { return width(j) - col < j.limit ? width(j) - col : j.limit; }  // of each row

    DEV u32 rows(const Job& j) const {
        if (width(j) > j.limit) return 1;
        const u32 fit = ptx::divide(j.limit, width(j));
        return j.rows - row < fit ? j.rows - row : fit;
    }

    DEV void next(const Job& j) {
        const u32 done = rows(j);
        col += bytes(j);
        if (col < width(j)) return;
        col = 0;
        row += done;
        if (row < j.rows) return;
        row = 0;
        start += j.unit_bytes;
        unit++;
    }
};

DEV void Comm::transfer(const CopyArgs& a, u32 src_rank, u32 dst_rank, Combine how) {
    asked = true;
    if (leads()) {
        Job& j = at<Job>(Arena::COMM_JOB);
        j.src = place(a.src, src_rank, a.src_row, a.src_col);
        j.dst = place(a.dst, dst_rank, a.dst_row, a.dst_col);
        j.rows = a.rows;
        const u32 bytes = region(a.src).element_bytes;
        j.row_bytes = a.cols * bytes;
        j.unit_bytes = unit_cols(a) * bytes;
        j.adds = how == Combine::Add;
        j.limit = j.adds ? SLOT_BYTES / 2 : SLOT_BYTES;
        j.dtype = region(a.src).dtype;
    }
    __syncwarp();
}

// ---------------------------------------------------------------------------------------------- transfer

// Moves a rectangle. To add, a slot holds a chunk of the source and one of the destination; what is there is read, added to
// in f32 (i32 as integers) and written back: not atomic, ordered by signals alone.
struct Transfer {
    static constexpr u32 HALF = Comm::SLOT_BYTES / 2;

    Comm& c;
    const Job& job;
    Chunk in, out;  // the next one to be read, and to be written

    DEV explicit Transfer(Comm& c) : c(c), job(c.at<const Job>(Arena::COMM_JOB)) {}

    // One chunk is read ahead of the one that is written, unless its unit must be waited for.
    DEV void run() {
        while (out.in(job) && !c.dead) {
            if (in == out) {
                c.begin_unit(in.unit);
                if (c.dead) return;
                read();
            }
            if (in.in(job) && c.unit_ready(in.unit)) read();
            write();
        }
    }

    DEV void read() {
        const u32 rows = in.rows(job), bytes = in.bytes(job);
        const Group g = c.fill_slot(job.adds ? 2 * rows * bytes : rows * bytes);
        load(g, 0, job.src, rows, bytes);
        if (job.adds) load(g, HALF, job.dst, rows, bytes);
        c.pace_asks(rows * bytes);
        in.next(job);
    }

    DEV void write() {
        const u32 rows = out.rows(job), bytes = out.bytes(job);
        c.pace_waits();
        u32 from = c.take_slot();
        if (c.dead) return;
        if (job.adds) {
            add(from, from + HALF, rows * bytes);
            from += HALF;
        }
        u8* const to = job.dst.row(out.row, out.byte());
        const Cut cut(rows, bytes, job.dst.pitch);
        for (u32 first = 0; first < cut.pieces; first += WARP) {
            const u32 i = first + c.thread();
            ptx::bulk_store_if(i < cut.pieces, to + (u64)i * job.dst.pitch, from + i * cut.bytes, cut.bytes);
        }
        out.next(job);
        c.end_chunk(out.unit);
    }

    DEV void load(const Group& g, u32 offset, const Place& place, u32 rows, u32 bytes) {
        const u8* const from = place.row(in.row, in.byte());
        const Cut cut(rows, bytes, place.pitch);
        for (u32 first = 0; first < cut.pieces; first += WARP) {
            const u32 i = first + c.thread(), to = g.at + offset + i * cut.bytes;
            ptx::bulk_load_if(i < cut.pieces, to, from + (u64)i * place.pitch, cut.bytes, g.barrier);
        }
    }

    DEV void add(u32 from, u32 to, u32 bytes) {
        switch (job.dtype) {
            case DTYPE_BF16: add_as<DTYPE_BF16>(from, to, bytes); break;
            case DTYPE_F16: add_as<DTYPE_F16>(from, to, bytes); break;
            case DTYPE_F32: add_as<DTYPE_F32>(from, to, bytes); break;
            default: add_as<DTYPE_I32>(from, to, bytes);
        }
        ptx::fence_proxy_async_shared();
        __syncwarp();
    }

    template <u32 DTYPE>
    DEV void add_as(u32 from, u32 to, u32 bytes) {
        constexpr u32 COUNT = 16 / Element<DTYPE>::BYTES;
        for (u32 first = 0; first < bytes; first += WARP * 16) {  // up to the end of the half at most: it is a multiple
            const u32 i = first + c.thread() * 16;
            typename Element<DTYPE>::Number x[COUNT], y[COUNT];
            load_numbers<DTYPE, COUNT>(from + i, x);
            load_numbers<DTYPE, COUNT>(to + i, y);
#pragma unroll
            for (u32 j = 0; j < COUNT; j++) y[j] = sum(y[j], x[j]);
            store_numbers<DTYPE, COUNT>(i < bytes, to + i, y);
        }
    }

    static DEV float sum(float a, float b) { return a + b; }
    static DEV i32 sum(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }  // wrapping
};

// ---------------------------------------------------------------------------------------------- handlers in common

// Checks of a copy from `src_rank` to `dst_rank`.
DEV u32 check_copy(const Context& c, const CopyArgs& a, u32 src_rank, u32 dst_rank) {
    if (a.rows == 0 || a.cols == 0) return 0;
    const u32 reason = c.check_rows(a.src, src_rank, a.src_col, a.cols);
    if (reason != 0) return reason;
    return c.check_rows(a.dst, dst_rank, a.dst_col, a.cols);
}

// A handler that only waits and posts.
struct Synchronise {
    using Args = SyncArgs;
    static DEV u32 check(const Context&, const Args&) { return 0; }
    static DEV u32 units(const Args&) { return 1; }
    static DEV void comm(Comm&, const Args&) {}
};

}  // namespace mk
