// One named wrapper for each PTX instruction that the kernel uses. There is no inline PTX anywhere else.
//
// Addresses of shared memory are 32-bit (the `.shared` window); addresses of global memory are ordinary pointers.
// Every wrapper that touches memory clobbers "memory": the compiler moves no load or store across it.
#pragma once
#include "mk/abi.cuh"

#define DEV __device__ __forceinline__
// PTX for one instruction that is done if operand `yes` is not 0, without a branch: where the threads of a warp must not part.
#define MK_IF(yes, instruction) "{\n.reg .pred yes;\nsetp.ne.u32 yes, " yes ", 0;\n@yes " instruction "\n}"
// A condition that seldom holds: what follows from it is put out of the way of the code that runs always.
#define RARE(condition) __builtin_expect(!!(condition), 0)

namespace mk {
typedef long long i64;

namespace ptx {

// ---- where am I, what time is it ----

// As something that the compiler does not look into: left to itself it works out where shared memory begins, a slow thing to
// ask, at each use.
DEV u32 shared_address(const void* p) {
    u32 at;
    asm volatile("mov.u32 %0, %1;" : "=r"(at) : "r"((u32)__cvta_generic_to_shared(p)));
    return at;
}

// An object in shared memory.
template <class T>
DEV T& shared_object(u32 at) {
    return *(T*)__cvta_shared_to_generic(at);
}

// SM clocks: cheap. The global timer is not (0.9 us a GEMM tile when every wait read it): only traces use it.
DEV u64 clock() { return (u64)clock64(); }

DEV u64 global_timer_ns() {
    u64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// A number of the launch that no other one of this context has.
DEV u32 grid_number() {
    u64 n;
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(n));
    return (u32)n;
}

// ---- the kernels before and behind this one on the stream ----

// Waits until the kernel before it has ended, and all that it wrote is there. Only in a launch that may begin early.
DEV void wait_for_grid_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The kernel behind it may begin, once every block has said so.
DEV void let_grid_behind_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- the pair: two blocks on neighbouring SMs, each of which reaches the other's shared memory ----

// Which block of its pair this one is: 0 or 1. 0 where blocks are launched one by one.
DEV u32 side_of_pair() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The same place in the shared memory of a block of the pair. Differences of such addresses are those of the places.
DEV u32 shared_address_of(u32 side, u32 at) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(side));
    return there;
}

// Waits until all threads of the pair have come here; of the block, where blocks are launched one by one.
DEV void pair_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- registers of a warpgroup ----

template <u32 N>
DEV void release_registers_down_to() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <u32 N>
DEV void take_registers_up_to() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- barriers ----

// Named barrier `ID` of `THREADS` threads, that also tells whether any of them said yes.
template <u32 ID, u32 THREADS>
DEV bool barrier_any(bool yes) {
    u32 any;
    asm volatile(
        "{\n"
        ".reg .pred mine, all;\n"
        "setp.ne.u32 mine, %1, 0;\n"
        "barrier.cta.red.or.pred all, %2, %3, mine;\n"
        "selp.u32 %0, 1, 0, all;\n"
        "}"
        : "=r"(any)
        : "r"((u32)yes), "n"(ID), "n"(THREADS)
        : "memory");
    return any != 0;
}

DEV void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

DEV void mbarrier_arrive_if(bool yes, u32 barrier) {
    asm volatile(MK_IF("%1", "mbarrier.arrive.shared::cta.b64 _, [%0];")::"r"(barrier), "r"((u32)yes) : "memory");
}

DEV void mbarrier_arrive_if(bool yes, u32 barrier, u32 count) {
    asm volatile(MK_IF("%2", "mbarrier.arrive.shared::cta.b64 _, [%0], %1;")::"r"(barrier), "r"(count), "r"((u32)yes)
                 : "memory");
}

// At a barrier of the other block of the pair.
DEV void mbarrier_arrive_other_if(bool yes, u32 barrier) {
    asm volatile(MK_IF("%1", "mbarrier.arrive.shared::cluster.b64 _, [%0];")::"r"(barrier), "r"((u32)yes) : "memory");
}

// Arrives, and lets the phase complete only when `bytes` more have been copied.
DEV void mbarrier_arrive_expect_if(bool yes, u32 barrier, u32 bytes) {
    asm volatile(MK_IF("%2", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;")::"r"(barrier), "r"(bytes),
                 "r"((u32)yes)
                 : "memory");
}

// Whether the phase of this parity is complete. Suspends the thread for a while before it says no.
DEV bool mbarrier_try_wait(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

// The same, at once.
DEV bool mbarrier_test_wait(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

// ---- fences ----

// Makes initialised barriers known to the async proxy.
DEV void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Orders ordinary accesses and those of TMA and bulk copies: in global memory, and in shared memory. (For all memory at once the
// compiler adds a barrier for the whole GPU, which takes about a microsecond.)
DEV void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
DEV void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Before a tensor map in global memory is used that was written by ordinary stores or by the host.
DEV void fence_tensor_map(const TensorMap* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

// A tensor map that is used soon.
DEV void prefetch_tensor_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Orders what this thread has done before and what it does after, among the threads of this GPU; and of all, and the host.
DEV void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
DEV void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ---- TMA and bulk copies ----

// By one thread of the warp, which the assembler then knows to be one: else it makes a loop over all that might.
#define MK_BY_ONE_IF(yes, instruction) \
    "{\n.reg .pred one, yes;\nelect.sync _|one, 0xffffffff;\nsetp.ne.and.u32 yes, " yes ", 0, one;\n@yes " instruction "\n}"

// One box of a 3-D tensor (column, row, copy), global -> shared; its bytes complete at the barrier. Called by all threads of a warp,
// done once.
DEV void tensor_load_if(bool yes, u32 to, const TensorMap* map, u32 col, u32 row, u32 copy, u32 barrier) {
    asm volatile(MK_BY_ONE_IF("%6", "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                                    "[%0], [%1, {%3, %4, %5}], [%2];")::"r"(to),
                 "l"(map), "r"(barrier), "r"(col), "r"(row), "r"(copy), "r"((u32)yes)
                 : "memory");
}

// The same, to both blocks of the pair, in each to the same place and barrier.
DEV void tensor_load_pair_if(bool yes, u32 to, const TensorMap* map, u32 col, u32 row, u32 copy, u32 barrier) {
    asm volatile(MK_BY_ONE_IF("%6", "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                                    ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %7;")::"r"(to),
                 "l"(map), "r"(barrier), "r"(col), "r"(row), "r"(copy), "r"((u32)yes), "h"((u16)3)
                 : "memory");
}

// Contiguous bytes, global -> shared. Addresses and size are multiples of 16.
DEV void bulk_load_if(bool yes, u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(MK_IF("%4", "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];")
                 ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "r"((u32)yes)
                 : "memory");
}

// Contiguous bytes, shared -> global (own or a peer's); they belong to the thread's current bulk group.
DEV void bulk_store_if(bool yes, void* to, u32 from, u32 bytes) {
    asm volatile(MK_IF("%3", "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;")::"l"(to), "r"(from),
                 "r"(bytes), "r"((u32)yes)
                 : "memory");
}

DEV void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// All but the thread's newest N groups have landed: their bytes are visible at the destination.
template <u32 N>
DEV void bulk_wait_landed() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// All but the thread's newest N groups have left shared memory, which may be overwritten.
template <u32 N>
DEV void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

// ---- global memory shared with other lanes, ranks and the host ----

DEV u32 load_relaxed(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

DEV u64 load_relaxed(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

DEV u64 load_acquire(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

// The line that holds it, from memory to the L2.
DEV void prefetch_l2_if(bool yes, const void* p) {
    asm volatile(MK_IF("%1", "prefetch.global.L2 [%0];")::"l"(p), "r"((u32)yes) : "memory");
}

// The same; and there it stays as long as there is room for it.
DEV void keep_in_l2_if(bool yes, const void* p) {
    asm volatile(MK_IF("%1", "prefetch.global.L2::evict_last [%0];")::"l"(p), "r"((u32)yes) : "memory");
}

// The same, to the L1, for plain loads.
DEV void warm_l1_if(bool yes, const void* p) {
    asm volatile(MK_IF("%1", "prefetch.global.L1 [%0];")::"l"(p), "r"((u32)yes) : "memory");
}

DEV void store_relaxed_if(bool yes, u32* p, u32 v) {
    asm volatile(MK_IF("%2", "st.relaxed.sys.global.u32 [%0], %1;")::"l"(p), "r"(v), "r"((u32)yes) : "memory");
}
DEV void store_relaxed_if(bool yes, u64* p, u64 v) {
    asm volatile(MK_IF("%2", "st.relaxed.sys.global.u64 [%0], %1;")::"l"(p), "l"(v), "r"((u32)yes) : "memory");
}

// A release by all threads of a warp and one store: a store that is both, and only one thread's, would part them.
// (Where the assembler knows it, the fence leaves the L1 as it is.)
DEV void fence_release() {
#if __CUDACC_VER_MAJOR__ >= 13
    asm volatile("fence.release.sys;" ::: "memory");
#else
    fence_system();
#endif
}
DEV void fence_release_gpu() {
#if __CUDACC_VER_MAJOR__ >= 13
    asm volatile("fence.release.gpu;" ::: "memory");
#else
    fence_gpu();
#endif
}
DEV void store_release_if(bool yes, u32* p, u32 v) {
    fence_release();
    store_relaxed_if(yes, p, v);
}
DEV void store_release_if(bool yes, u64* p, u64 v) {
    fence_release();
    store_relaxed_if(yes, p, v);
}

// Likewise, for whoever waits on this GPU. (Peers may add to the same word: atomics of one word have one scope.)
DEV void add_release_gpu_if(bool yes, u64* p, u64 v) {
    fence_release_gpu();
    asm volatile(MK_IF("%2", "red.relaxed.sys.global.add.u64 [%0], %1;")::"l"(p), "l"(v), "r"((u32)yes) : "memory");
}

// Likewise.
DEV void add_release_if(bool yes, u64* p, u64 v) {
    fence_release();
    asm volatile(MK_IF("%2", "red.relaxed.sys.global.add.u64 [%0], %1;")::"l"(p), "l"(v), "r"((u32)yes) : "memory");
}

DEV void store_relaxed(u32* p, u32 v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEV void store_relaxed(u64* p, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
DEV void store_release(u32* p, u32 v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEV void store_release(u64* p, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// If `yes`, without a branch: adds 1, or goes back to 0 from `last`, and leaves in `was` what was there. Relaxed, and among the
// threads of this GPU only. It is written in place: nothing waits for it before it is used. (Not `add`: the compiler makes one
// of those of a warp, and waits for it at once.)
DEV void fetch_increment_if(bool yes, u32* p, u32 last, u32& was) {
    asm volatile(MK_IF("%3", "atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;")
                 : "+r"(was)
                 : "l"(p), "r"(last), "r"((u32)yes)
                 : "memory");
}

DEV u32 fetch_add_acq_rel(u32* p, u32 v) {
    u32 was;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(was) : "l"(p), "r"(v) : "memory");
    return was;
}

// Raises what is there to `v`. Relaxed, and among the threads of this GPU only.
DEV void max_relaxed(u64* p, u64 v) {
    asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

DEV u64 fetch_add(u64* p, u64 v) {
    u64 was;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(was) : "l"(p), "l"(v) : "memory");
    return was;
}

// If `yes`, without a branch: replaces what is there only if that is `expected`, and leaves in `was` what was there. Relaxed, and
// among the threads of this GPU only. It is written in place: nothing waits for it before it is used.
DEV void compare_and_swap_if(bool yes, u64* p, u64 expected, u64 v, u64& was) {
    asm volatile(MK_IF("%4", "atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;")
                 : "+l"(was)
                 : "l"(p), "l"(expected), "l"(v), "r"((u32)yes)
                 : "memory");
}

// Returns what was there; it is replaced only if that was `expected`. Among the threads of this GPU only.
DEV u64 compare_and_swap(u64* p, u64 expected, u64 v) {
    u64 was;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(was)
                 : "l"(p), "l"(expected), "l"(v)
                 : "memory");
    return was;
}

// Keeps the bits of `mask`. Relaxed, and among the threads of this GPU only.
DEV void and_if(bool yes, u64* p, u64 mask) {
    asm volatile(MK_IF("%2", "red.relaxed.gpu.global.and.b64 [%0], %1;")::"l"(p), "l"(mask), "r"((u32)yes) : "memory");
}

// Returns what was there; it is replaced only if that was `expected`.
DEV u32 compare_and_swap(u32* p, u32 expected, u32 v) {
    u32 was;
    asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(was)
                 : "l"(p), "r"(expected), "r"(v)
                 : "memory");
    return was;
}

// ---- 128 bits at once ----

// Past the L1, which does not notice what others write.
DEV uint4 load_global_128(const void* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

// In other registers, so that these can be loaded into again.
DEV uint4 copy_of(uint4 v) {
    uint4 w;
    asm volatile("mov.b32 %0, %4;\nmov.b32 %1, %5;\nmov.b32 %2, %6;\nmov.b32 %3, %7;"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
    return w;
}

// The same, if `yes`; else `into` stays as it is. It is written in place: nothing waits for it before it is used.
DEV void load_global_128_if(bool yes, const void* p, uint4& into) {
    asm volatile(
        MK_IF("%5", "ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];")
        : "+r"(into.x), "+r"(into.y), "+r"(into.z), "+r"(into.w)
        : "l"(p), "r"((u32)yes)
        : "memory");
}

// If `yes`, without a branch.
DEV void store_global_128_if(bool yes, void* p, uint4 v) {
    asm volatile(
        MK_IF("%5", "st.global.v4.u32 [%0], {%1, %2, %3, %4};") ::"l"(p),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"((u32)yes)
        : "memory");
}

// One access, never torn: data and flag of a packet arrive together.
DEV uint4 load_packet(const void* p) {
    uint4 v;
    asm volatile(
        "{\n"
        ".reg .b128 all;\n"
        ".reg .b64 lo, hi;\n"
        "ld.relaxed.sys.global.b128 all, [%4];\n"
        "mov.b128 {lo, hi}, all;\n"
        "mov.b64 {%0, %1}, lo;\n"
        "mov.b64 {%2, %3}, hi;\n"
        "}"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p)
        : "memory");
    return v;
}

DEV void store_packet(void* p, uint4 v) {
    asm volatile(
        "{\n"
        ".reg .b128 all;\n"
        ".reg .b64 lo, hi;\n"
        "mov.b64 lo, {%1, %2};\n"
        "mov.b64 hi, {%3, %4};\n"
        "mov.b128 all, {lo, hi};\n"
        "st.relaxed.sys.global.b128 [%0], all;\n"
        "}" ::"l"(p),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}

// If `yes`, without a branch.
DEV void store_shared_16_if(bool yes, u32 at, u16 v) {
    asm volatile(
        MK_IF("%2", "st.shared.u16 [%0], %1;") ::"r"(at),
        "h"(v), "r"((u32)yes)
        : "memory");
}

DEV uint4 load_shared_128(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

// If `yes`, without a branch.
DEV void store_shared_128_if(bool yes, u32 at, uint4 v) {
    asm volatile(
        MK_IF("%5", "st.shared.v4.u32 [%0], {%1, %2, %3, %4};") ::"r"(at),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"((u32)yes)
        : "memory");
}

// Four 8 x 8 matrices of 16-bit elements from the fragments of a warp; lane l gives the address of row l % 8 of matrix
// l / 8.
DEV void store_matrix_x4(u32 at, u32 m0, u32 m1, u32 m2, u32 m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(m0), "r"(m1),
                 "r"(m2), "r"(m3)
                 : "memory");
}

// ---- arithmetic ----

// Two f32, each rounded to nearest even, `low` in the lower half.
DEV u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

DEV u32 pack_f16(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

DEV float f16_to_f32(u32 low_half) {
    float r;
    asm("{\n.reg .b16 h;\ncvt.u16.u32 h, %1;\ncvt.f32.f16 %0, h;\n}" : "=f"(r) : "r"(low_half));
    return r;
}

// A division that stays inline. Left to itself the compiler narrows it to 16 bits where it can, and that is a call.
DEV u32 divide(u32 a, u32 b) {
    u32 q;
    asm("div.u32 %0, %1, %2;" : "=r"(q) : "r"(a), "r"(b));
    return q;
}

// 1 / x, to within 1 ulp. The exact division is a function call, which would serialise every wgmma (C7510).
DEV float reciprocal_approx(float x) {
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// ---- wgmma: 64 rows, K of 16, f32 sums ----

// Between other uses of the accumulators or of ordinary stores to the operands, and the next wgmma.
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// All but the newest N groups are complete.
template <u32 N>
DEV void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// The address of an operand as wgmma takes it (PTX ISA, "Matrix descriptor format"), 128-byte swizzle. Offsets in bytes.
DEV u64 wgmma_descriptor(u32 at, u32 leading_bytes, u32 stride_bytes) {
    return (u64)((at & 0x3ffff) >> 4) | (u64)(leading_bytes >> 4) << 16 | (u64)(stride_bytes >> 4) << 32 | 1ull << 62;
}

// Lists for the accumulators of a thread: a half of the columns.
#define MK_LIST_8(F, i) F(i), F(i + 1), F(i + 2), F(i + 3), F(i + 4), F(i + 5), F(i + 6), F(i + 7)
#define MK_LIST_32(F, i) MK_LIST_8(F, i), MK_LIST_8(F, i + 8), MK_LIST_8(F, i + 16), MK_LIST_8(F, i + 24)
#define MK_LIST_64(F) MK_LIST_32(F, 0), MK_LIST_32(F, 32)
#define MK_LIST_128(F) MK_LIST_64(F), MK_LIST_32(F, 64), MK_LIST_32(F, 96)
#define MK_SUM(i) "+f"(sum[i])
#define MK_NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MK_NAMES_64 MK_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MK_NAMES_128 MK_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// The immediates: +A, +B, A as it is (K contiguous), B transposed (N contiguous).
#define MK_WGMMA(SUMS, NAMES, SHAPE, TYPES, A, B)                                                        \
    asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPES " {" NAMES "}, " A ", " B            \
                 ", add, 1, 1, 0, 1;\n}"                                                                 \
                 : SUMS                                                                                  \
                 : "l"(a), "l"(b))
#define MK_WGMMA_OF(TYPES)                                                                               \
    if constexpr (COLS == 64) {                                                                          \
        MK_WGMMA(MK_LIST_32(MK_SUM, 0), MK_NAMES_32, "m64n64k16", TYPES, "%32", "%33");                  \
    } else if constexpr (COLS == 128) {                                                                  \
        MK_WGMMA(MK_LIST_64(MK_SUM), MK_NAMES_64, "m64n128k16", TYPES, "%64", "%65");                    \
    } else {                                                                                             \
        MK_WGMMA(MK_LIST_128(MK_SUM), MK_NAMES_128, "m64n256k16", TYPES, "%128", "%129");                \
    }

// sum += A B, with A [64, 16] of contiguous rows and B [16, COLS] of contiguous rows, in shared memory.
template <u32 DTYPE, u32 COLS>
DEV void wgmma(float (&sum)[COLS / 2], u64 a, u64 b) {
    static_assert(DTYPE == DTYPE_BF16 || DTYPE == DTYPE_F16, "16-bit types");
    static_assert(COLS == 64 || COLS == 128 || COLS == 256, "columns");
    if constexpr (DTYPE == DTYPE_BF16) {
        MK_WGMMA_OF("bf16.bf16")
    } else {
        MK_WGMMA_OF("f16.f16")
    }
}

#undef MK_WGMMA_OF
#undef MK_WGMMA
#undef MK_NAMES_128
#undef MK_NAMES_64
#undef MK_NAMES_32
#undef MK_SUM
#undef MK_LIST_128
#undef MK_LIST_64
#undef MK_LIST_32
#undef MK_LIST_8

}  // namespace ptx
}  // namespace mk
