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
    static constexpr u32 FAILED = 1u << 16;  // in Params::left: a lane that ended in a fault

    const Launch& kernel;  // the parameter
    Context& c;            // of the fetch role
    u64 epoch = 1;         // by thread: of clock `thread`
    u32 ends_parity = 0;

    DEV Lane(const Launch& kernel, Context& c) : kernel(kernel), c(c) {
        if (thread() == 0) run() = Run{};
        __syncwarp();
    }

    DEV u32 thread() const { return threadIdx.x % WARP; }
    DEV Run& run() const { return c.run(); }

    // Takes up the next run, up to its epochs. False: there is none.
    DEV bool take() {
        if (!kernel.resident) return take_launch();
        while (!c.dead) {
            const Launch* const launch = told();
            if (!launch) return false;
            if (enter<FromMemory>(*launch)) {
                read_clocks();
                return true;
            }
        }
        return false;
    }

    // Tells all roles that the run begins.
    DEV void begin() {
        if (thread() < CLOCKS) *(u64*)(shared_memory + Arena::EPOCHS + thread() * 8) = epoch;
        // The program's own epoch, modulo each depth, by halves: a 64-bit division is a function call.
        const u64 own = __shfl_sync(ALL, epoch, 0);
        if (thread() > 0 && thread() <= MAX_DEPTH) {
            const u32 depth = thread(), wrap = (0xffffffffu % depth + 1) % depth;  // 2^32 % depth
            const u32 copy = ((u32)(own >> 32) % depth * wrap + (u32)own % depth) % depth;
            *(u32*)(shared_memory + Arena::ROTATIONS + depth * 4) = copy;
        }
        if (thread() < THREADS / WARP) {
            Ledger& l = *(Ledger*)(shared_memory + Arena::LEDGERS + thread() * Arena::LEDGER_BYTES);
            l.reason = l.started = 0;
        }
        start(0);
    }

    // Waits until all roles have ended the run, and tells whom it concerns.
    DEV void end() {
        await_roles();
        ends_parity ^= 1;
        const bool failed = c.dead || run().failed != 0;
        if (thread() == 0) {
            const u32 me = failed ? FAILED + 1 : 1, before = ptx::fetch_add_acq_rel(c.params.left, me);
            if (before % FAILED == c.params.lanes - 1) rank_ends(failed || before >= FAILED);
        }
        c.dead = failed;
    }

    // The lane ends.
    DEV void stop() {
        if (kernel.resident && blockIdx.x == 0 && thread() == 0) leave();
        start(1);
    }

 private:
    // Their waits end, so this does. After a fault it has a bound of its own, in case a handler never returns.
    DEV void await_roles() {
        u64 since = 0;
        for (u32 turn = 1; !ptx::mbarrier_try_wait(c.shared + Arena::RUN_ENDS, ends_parity); turn++) {
            if (turn % 16 != 0 || !c.aborted()) continue;
            if (since == 0) since = ptx::clock();
            if (ptx::clock() - since > c.params.bounds.run_clocks + COPIES_PATIENCE) return;
        }
    }

    DEV void start(u32 stop) {
        if (thread() == 0) run().stop = stop, run().failed = 0;
        ptx::fence_proxy_async();  // for the tensor maps
        __syncwarp();
        if (thread() == 0) ptx::mbarrier_arrive(c.shared + Arena::RUN_BEGINS);
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
        if (thread() < sizeof(Params) / 16) *(uint4*)(shared_memory + Arena::PARAMS + thread() * 16) = From::part(from + thread());
        __syncwarp();
        return true;
    }

    // What takes a round trip to memory: epochs; whether a peer has seen a fault since the last run; and the tensor maps, which
    // are acquired here once a run. (Each user at its first use cost 3 us a launch.)
    DEV void read_clocks() {
        const Params& p = c.params;
        const u64* const clock = thread() < CLOCKS ? p.clocks[thread()] : nullptr;
        epoch = clock ? ptx::load_relaxed(clock) : 1;
        c.dead = __any_sync(ALL, thread() == 0 && c.aborted());
        for (u32 i = thread(); p.maps && i < p.region_count * MAP_KINDS; i += WARP) ptx::fence_tensor_map(p.maps + i);
    }

    // ------------------------------------------------------------------------------------------ a launch for one run

    DEV bool take_launch() {
        const u64 before = run().number;
        __syncwarp();
        if (before != 0 || !enter<FromParameter>(kernel)) return false;
        if (thread() == 0) run().number = 1;
        // Replays of one graph have one number, but do not run at the same time.
        const u64 me = ptx::grid_number() % ID_MASK + 1;
        u64* const running = &c.params.admission->running;
        const u64 was = thread() == 0 ? ptx::compare_and_swap(running, 0, me << RUNS_AT) : 0;
        read_clocks();
        const bool admitted = __shfl_sync(ALL, thread() == 0 && is_admitted(running, me, was), 0);
        if (!admitted && blockIdx.x == c.params.first_block && thread() == 0) {
            u64* const refused = &c.params.outcome->refused;
            ptx::store_release(refused, ptx::load_relaxed(refused) + 1);
        }
        return admitted;
    }

    // Admission::running: who runs; who is being refused; how many blocks of it have still to come. 0: nobody.
    static constexpr u32 ID_BITS = 24, LEFT_BITS = 16, REFUSED_AT = LEFT_BITS, RUNS_AT = REFUSED_AT + ID_BITS;
    static constexpr u64 ID_MASK = (1u << ID_BITS) - 1, LEFT_MASK = (1u << LEFT_BITS) - 1;

    // One launch at a time, decided once for all of its blocks: the first of them to come takes the word, or leaves its
    // launch's number there as refused, until all of its blocks have seen it. `was`: what the try to take it found.
    DEV bool is_admitted(u64* running, u64 me, u64 was) const {
        const u64 since = ptx::clock();
        u64 expected = 0, wanted = word(me, 0, 0);
        while (was != expected) {
            const u64 runs = was >> RUNS_AT, refused = was >> REFUSED_AT & ID_MASK, left = was & LEFT_MASK;
            if (runs == me) return true;
            expected = was;
            if (refused == me) {
                wanted = word(runs, me, left - 1);
            } else if (runs == 0) {
                wanted = word(me, refused, left);
            } else if (refused == 0) {
                wanted = word(runs, me, kernel.blocks - 1);
            } else {  // yet another one is being refused: its blocks have to come first
                if (ptx::clock() - since > c.params.bounds.start_clocks) return false;
                was = ptx::load_relaxed(running);
                expected = ~was;
                continue;
            }
            was = ptx::compare_and_swap(running, expected, wanted);
        }
        return wanted >> RUNS_AT == me;
    }

    static DEV u64 word(u64 runs, u64 refused, u64 left) {
        return runs << RUNS_AT | (left > 0 ? refused << REFUSED_AT | left : 0);
    }

    // The rank's last lane has ended. Epochs advance here: nothing is reset between runs, and no host is needed. After a fault
    // they stand: the session is rebuilt.
    DEV void rank_ends(bool failed) {
        const Params& p = c.params;
        if (failed) return ptx::store_release(&p.outcome->faulted, 1);
        ptx::store_relaxed(p.left, 0);
        for (u32 i = 0; i < CLOCKS; i++) {
            if (p.clocks[i]) ptx::store_relaxed(p.clocks[i], c.epoch(i) + 1);
        }
        Admission* const a = p.admission;
        if (p.launch_ranks == 1 || ptx::fetch_add_acq_rel(&a->ended, 1) == p.launch_ranks - 1) {
            ptx::store_relaxed(&a->ended, 0);
            launch_ends();
        }
        ptx::store_release(&p.outcome->ended, c.epoch());  // last: the host may go on with the next run
    }

    DEV void launch_ends() {
        Resident* const r = kernel.resident;
        if (!r) return ptx::and_release(&c.params.admission->running, (1ull << RUNS_AT) - 1);
        ptx::store_release(&r->ended, run().number);
        ptx::store_release(&r->bell->ended, run().number);
    }

    // ------------------------------------------------------------------------------------------ resident

    // The next launch that all lanes are told of; null: the kernel ends.
    DEV const Launch* told() {
        u64 launch = 0;
        if (thread() == 0) {
            const u64 since = ptx::clock();
            uint4 now = ptx::load_packet(&kernel.resident->told);
            while ((now.z | (u64)now.w << 32) == run().number) {
                if (blockIdx.x == 0) lead(since);
                now = ptx::load_packet(&kernel.resident->told);
            }
            ptx::fence_gpu();
            run().number = now.z | (u64)now.w << 32;
            launch = now.x | (u64)now.y << 32;
        }
        return (const Launch*)__shfl_sync(ALL, launch, 0);
    }

    // The first lane, while it waits: once all ranks have ended the last command, it tells the next.
    DEV void lead(u64 since) {
        const Resident& r = *kernel.resident;
        const u64 told = run().told;
        if (told != 0 && ptx::load_acquire(&r.ended) != told) {
            if (c.aborted()) tell(0);
            return;
        }
        const Command& next = r.commands[(told + 1) % COMMANDS];
        if (ptx::load_acquire(&next.number) == told + 1) {
            tell(ptx::load_relaxed((const u64*)&next.launch));
        } else if (ptx::clock() - since > r.idle_clocks) {
            tell(0);
        }
    }

    DEV void tell(u64 launch) {
        const u64 n = ++run().told;
        ptx::fence_gpu();
        ptx::store_packet(&kernel.resident->told, uint4{(u32)launch, (u32)(launch >> 32), (u32)n, (u32)(n >> 32)});
    }

    // The first lane leaves, so all do.
    DEV void leave() {
        tell(0);
        ptx::store_release(&kernel.resident->bell->gone, 1);
    }
};

}  // namespace mk
