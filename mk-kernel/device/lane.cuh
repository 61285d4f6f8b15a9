// How runs begin and end on a lane. The fetch warp sees to it, for all roles.
//
// A launch is one run, or it is resident: then runs come as commands, one after the other, until the host says stop, nothing
// has come for a while, or a fault ends it. The parameters of a run lie in shared memory while it lasts, wherever they came
// from, so everything else is the same.
//
// Resident: the host writes commands to a ring in its own memory. The first lane reads it and tells all lanes, one command at
// a time: the next only when every rank of the last has ended it. That is the run boundary.
#pragma once
#include "mk/context.cuh"

namespace mk {

// Where the parameters of a run come from: the kernel's parameter, or device memory that the host has written.
struct FromParameter {
    static DEV u32 word(const u32* p) { return *p; }
    static DEV uint4 part(const uint4* p) { return *p; }
};
struct FromMemory {
    static DEV u32 word(const u32* p) { return ptx::load_relaxed(p); }
    static DEV uint4 part(const uint4* p) { return ptx::load_global_128(p); }
};

struct Lane {
    static constexpr u32 ALL = ~0u;
    static constexpr u32 LINE = 128;  // bytes: what the L1 brings at once
    static constexpr u32 FAILED = 1u << 16;           // in Params::left: a lane that ended in a fault
    static constexpr u64 GONE = 1, GONE_IN_FAULT = 2;  // Bell::gone

    const Launch& kernel;  // the parameter
    Context& c;            // of the fetch role
    u32 ends_parity = 0;
    bool dismissed = false;  // the roles were told to leave
    u64 was_running = 0;  // by the first thread: what Admission::running was

    DEV Lane(const Launch& kernel, Context& c) : kernel(kernel), c(c) {
        if (thread() == 0) run() = Run{};
        __syncwarp();
    }

    DEV u32 thread() const { return threadIdx.x % WARP; }
    DEV Run& run() const { return c.run(); }

    // Takes up the next run, so far that its records can be read: they do not change while it lasts, nor in the kernel before it.
    // False: there is none.
    DEV bool take() {
        if (!kernel.resident) return take_launch();
        while (!c.dead) {
            const Launch* const launch = told();
            if (!launch) return false;
            if (enter<FromMemory>(*launch)) return true;
        }
        return false;
    }

    // Has the tables that the lane reads first brought near, and those of its next run kept in the L2, since what comes from memory
    // takes most of the time in which a run begins.
    DEV void keep() const {
        const Params& p = c.params;
        const u8* const regions = (const u8*)p.regions + thread() * LINE;
        const bool mine = thread() * LINE < p.region_count * sizeof(RegionInfo);
        ptx::warm_l1_if(mine, regions);
        ptx::keep_in_l2_if(mine, regions);
        ptx::keep_in_l2_if(thread() == 0, p.streams + c.lane() * STREAMS);
    }

    // Waits until the kernel before this one has ended. False: this launch is refused, for yet another one has not. What is read
    // afterwards is of this run.
    DEV bool is_admitted() {
        if (kernel.resident) return true;
        ptx::wait_for_grid_before();
        ptx::compare_and_swap_if(c.leads(), &c.params.admission->running, 0, word(number(), 0, 0), was_running);
        const u64 was = __shfl_sync(ALL, was_running, 0);
        const bool seized = was == 0 || was >> RUNS_AT == number();
        if (!seized && !decide()) {
            if (blockIdx.x == c.params.first_block) tell_refused();
            return false;
        }
        ptx::fence_gpu();
        __syncwarp();
        return true;
    }

    // Tells all roles that the run begins.
    DEV void begin() {
        const Params& p = c.params;
        const u64* const clock = thread() < CLOCKS ? p.clocks[thread()] : nullptr;
        const u64 epoch = clock ? ptx::load_relaxed(clock) : 1;
        const u32 abort = ptx::load_relaxed(&p.fault->abort);
        c.dead = __any_sync(ALL, abort != 0);  // a peer has seen a fault since the last run
        if (thread() < CLOCKS) c.at<u64>(Arena::EPOCHS + thread() * 8) = epoch;
        const u64 own = __shfl_sync(ALL, epoch, 0);
        if (thread() > 0 && thread() <= MAX_DEPTH) c.at<u32>(Arena::ROTATIONS + thread() * 4) = modulo(own, thread());
        if (thread() < THREADS / WARP) {
            Ledger& l = c.at<Ledger>(Arena::LEDGERS + thread() * Arena::LEDGER_BYTES);
            l.reason = l.started = 0;
        }
        start(0);
    }

    // An epoch modulo a depth, by halves: a 64-bit division is a function call.
    static DEV u32 modulo(u64 epoch, u32 depth) {
        const u32 low = (u32)epoch % depth, high = epoch >> 32;
        if (!RARE(high != 0)) return low;
        const u32 wrap = (0xffffffffu % depth + 1) % depth;  // 2^32 % depth
        return (high % depth * wrap + low) % depth;
    }

    // Waits until all roles have ended the run, and tells whom it concerns.
    DEV void end() {
        await_roles();
        ends_parity ^= 1;
        c.dead = __any_sync(ALL, c.dead || run().failed != 0);
        if (c.dead) c.let_copies_land(run().filled_math, run().filled_store);  // of a load role that had ended before the fault
        if (!kernel.resident) {
            // Not sooner: its blocks would take the place of lanes that this run may have to wait for, of another rank on this GPU.
            ptx::let_grid_behind_begin();
            dismiss();
        }
        const u32 before = add(c.params.left, c.dead ? FAILED + 1 : 1);
        if (before % FAILED == c.params.lanes - 1) rank_ends(c.dead || before >= FAILED);
    }

    // The lane ends.
    DEV void stop() {
        if (kernel.resident && blockIdx.x == 0) leave();
        dismiss();
    }

 private:
    // By one thread, for all of them.
    DEV u32 add(u32* count, u32 more) const {
        u32 before = 0;
        if (c.leads()) before = ptx::fetch_add_acq_rel(count, more);
        return __shfl_sync(ALL, before, 0);
    }

    // Their waits end, so this does. After a fault it has a bound of its own, in case a handler never returns.
    DEV void await_roles() {
        u64 since = 0;
        for (u32 turn = 1; !ptx::mbarrier_try_wait(c.shared + Arena::RUN_ENDS, ends_parity); turn++) {
            if (turn % 16 != 0 || !c.aborted()) continue;
            if (since == 0) since = ptx::clock();
            if (ptx::clock() - since <= c.params.bounds.run_clocks + COPIES_PATIENCE) continue;
            c.dead = true;
            return;
        }
    }

    // The roles leave.
    DEV void dismiss() {
        if (!dismissed) start(1);
        dismissed = true;
    }

    DEV void start(u32 stop) {
        __syncwarp();
        if (c.leads()) run().stop = stop, run().failed = 0;
        ptx::fence_proxy_async_global();  // what earlier runs and the host have written is there for copies, too
        __syncwarp();
        ptx::mbarrier_arrive_if(c.leads(), c.shared + Arena::RUN_BEGINS);
    }

    // ------------------------------------------------------------------------------------------ parameters

    // Copies the parameters of this lane's rank to shared memory. False: this block is no lane of that launch.
    template <class From>
    DEV bool enter(const Launch& launch) {
        const u32 count = From::word(&launch.count), blocks = From::word(&launch.blocks);
        const u32 first = thread() < LAUNCH_RANKS ? From::word(&launch.first_blocks[thread()]) : 0;
        if (blockIdx.x >= blocks) return false;
        // A rank without lanes begins where the next one does.
        const u32 rank = __popc(__ballot_sync(ALL, thread() < count && blockIdx.x >= first)) - 1;
        static_assert(sizeof(Params) % 16 == 0 && sizeof(Params) <= WARP * 16, "one load a thread");
        const uint4* const from = (const uint4*)&launch.params[rank];
        if (thread() < sizeof(Params) / 16) c.at<uint4>(Arena::PARAMS + thread() * 16) = From::part(from + thread());
        __syncwarp();
        return true;
    }

    // ------------------------------------------------------------------------------------------ a launch for one run

    DEV bool take_launch() {
        const u64 before = run().number;
        __syncwarp();
        if (before != 0 || !enter<FromParameter>(kernel)) return false;
        if (c.leads()) run().number = 1;
        return true;
    }

    // Admission::running: who runs; who is being refused; how many blocks of it have still to come. 0: nobody.
    static constexpr u32 ID_BITS = 24, LEFT_BITS = 16, REFUSED_AT = LEFT_BITS, RUNS_AT = REFUSED_AT + ID_BITS;
    static constexpr u64 ID_MASK = (1u << ID_BITS) - 1, LEFT_MASK = (1u << LEFT_BITS) - 1;
    // SM clocks, ten microseconds: so long after it has told the host that its run has ended, a launch has left the word.
    static constexpr u64 ADMISSION_PATIENCE = 20'000;

    static DEV u64 word(u64 runs, u64 refused, u64 left) {
        return runs << RUNS_AT | (left > 0 ? refused << REFUSED_AT | left : 0);
    }

    // Replays of one graph have one number, but do not run at the same time.
    DEV u64 number() const { return ptx::grid_number() % ID_MASK + 1; }

    // One launch at a time, decided once for all of its blocks: the first of them to come takes the word, or leaves its
    // launch's number there as refused, until all of its blocks have seen it.
    DEV bool decide() {
        const u64 since = ptx::clock();
        u32 verdict = UNDECIDED;
        while (verdict == UNDECIDED) {
            if (c.leads()) verdict = seize(ptx::clock() - since);
            verdict = __shfl_sync(ALL, verdict, 0);
        }
        return verdict == ADMITTED;
    }

    enum Verdict : u32 { UNDECIDED, ADMITTED, REFUSED };

    // By one thread, after so many clocks: an attempt at what the word was at the last look; or another look.
    DEV u32 seize(u64 waited) {
        u64* const running = &c.params.admission->running;
        const u64 was = was_running, runs = was >> RUNS_AT, refused = was >> REFUSED_AT & ID_MASK, left = was & LEFT_MASK;
        const u64 me = number();
        u64 wanted;
        if (runs == me) return ADMITTED;
        if (refused == me) {
            wanted = word(runs, me, left - 1);
        } else if (runs == 0) {
            wanted = word(me, refused, left);
        } else if (refused == 0 && waited > ADMISSION_PATIENCE) {
            wanted = word(runs, me, kernel.blocks - 1);
        } else {  // who runs is about to leave, or the blocks of yet another launch that is refused have to come first
            was_running = ptx::load_relaxed(running);
            return waited > c.params.bounds.start_clocks ? REFUSED : UNDECIDED;
        }
        was_running = ptx::compare_and_swap(running, was, wanted);
        if (was_running != was) return UNDECIDED;
        return wanted >> RUNS_AT == me ? ADMITTED : REFUSED;
    }

    // Several may be refused at once: whoever counts last tells the host last. (The second look at the count is an atomic that
    // adds nothing: a plain load could come before the store.)
    DEV void tell_refused() const {
        u32* const count = &c.params.left[1];
        u32 told = 0, now = add(count, 1) + 1;
        while (now != told) {
            told = now;
            ptx::store_release_if(c.leads(), &c.params.outcome->refused, told);
            now = add(count, 0);
        }
    }

    // The rank's last lane has ended. Epochs advance here: nothing is reset between runs, and no host is needed. After a fault
    // they stand: the session is rebuilt.
    //
    // The host is told before the next run can begin, which would tell it something newer.
    DEV void rank_ends(bool failed) {
        const Params& p = c.params;
        const bool leads = c.leads();
        const u32 i = thread() < CLOCKS ? thread() : CLOCKS - 1;  // the last one by several threads
        ptx::store_relaxed_if(!failed && p.clocks[i], p.clocks[i], c.epoch(i) + 1);
        ptx::store_relaxed_if(!failed && leads, p.left, 0);
        __syncwarp();
        ptx::fence_system();
        ptx::store_relaxed_if(failed && leads, &p.outcome->faulted, 1);
        ptx::store_relaxed_if(!failed && leads, &p.outcome->ended, c.epoch());
        if (failed) return;
        Admission* const a = p.admission;
        if (p.launch_ranks > 1) {
            if (add(&a->ended, 1) != p.launch_ranks - 1) return;
            ptx::store_relaxed_if(leads, &a->ended, 0);
        }
        Resident* const r = kernel.resident;
        u64* const bell = r ? &r->bell->ended : nullptr;
        ptx::store_relaxed_if(bell && leads, bell, run().number);
        ptx::fence_gpu();  // what follows is for this GPU
        ptx::store_relaxed_if(r && leads, &r->ended, run().number);
        ptx::and_if(!r && leads, &a->running, (1ull << RUNS_AT) - 1);
        __syncwarp();
    }

    // ------------------------------------------------------------------------------------------ resident

    // The next launch that all lanes are told of; null: the kernel ends.
    DEV const Launch* told() {
        const u64 last = run().number, last_told = run().told;
        __syncwarp();
        if (blockIdx.x == 0) lead(last_told);
        c.dead = __any_sync(ALL, c.dead);
        uint4 now = ptx::load_packet(&kernel.resident->told);
        while ((now.z | (u64)now.w << 32) == last) now = ptx::load_packet(&kernel.resident->told);
        ptx::fence_gpu();
        __syncwarp();
        if (c.leads()) run().number = now.z | (u64)now.w << 32;
        return (const Launch*)__shfl_sync(ALL, now.x | (u64)now.y << 32, 0);
    }

    // The first lane: once all ranks have ended the last command, it waits for the next, and tells it.
    DEV void lead(u64 last) {
        const Resident& r = *kernel.resident;
        while (last != 0 && ptx::load_acquire(&r.ended) != last) {
            if (!c.aborted()) continue;
            c.dead = true;
            return tell(0);
        }
        const Command& next = r.commands[(last + 1) % COMMANDS];
        const u64 since = ptx::clock();
        while (ptx::load_acquire(&next.number) != last + 1) {
            if (ptx::clock() - since > r.idle_clocks) return tell(0);
        }
        tell(ptx::load_relaxed((const u64*)&next.launch));
    }

    DEV void tell(u64 launch) {
        if (!c.leads()) return;
        const u64 n = ++run().told;
        ptx::fence_gpu();
        ptx::store_packet(&kernel.resident->told, uint4{(u32)launch, (u32)(launch >> 32), (u32)n, (u32)(n >> 32)});
    }

    // The first lane leaves, so all do.
    DEV void leave() {
        tell(0);
        if (c.leads()) ptx::store_release(&kernel.resident->bell->gone, c.dead ? GONE_IN_FAULT : GONE);
    }
};

}  // namespace mk
