// One tile of a matrix product: C[rows, cols] = A[rows, k] B[k, cols], bf16 or fp16, f32 sums, rounded once.
//
// Configuration. A tile has at most 128 x 256 elements; K goes in blocks of 64, the width of the widest swizzle. Each math
// warpgroup has 64 rows and all columns: wgmma m64n64k16, m64n128k16 or m64n256k16, 32, 64 or 128 sums a thread.
//
// A group is 3 pages, 48 KB, so that the ring holds 4 of them:
//
//   page 0      A: 128 rows of 64 K (128 bytes); warpgroup w reads rows 64 w .. 64 w + 63
//   pages 1, 2  B: up to four boxes one after the other, each 64 rows of K by 64 columns of N (128 bytes)
//
// Both operands are read as they lie in memory: A's rows are contiguous in K, B's in N ("MN-major", the transposed form of
// wgmma's B). Descriptors, after the PTX ISA ("Asynchronous warpgroup level matrix shared memory layout") and CUTLASS's
// canonical layouts (cute/atom/mma_traits_sm90_gmma.hpp), in units of 16 bytes, T = 8 elements:
//
//   A, K-major:   Swizzle<3,4,3> o ((8,m),(T,2)):((8T,SBO),(1,T))      8 rows of 128 bytes make one atom of 1024 bytes:
//       SBO = 1024, from 8 rows to the next 8; LBO is not used (the width of 16 K lies inside the swizzle).
//       16 elements of K further: + 32 bytes. (The swizzle is a function of address bits, so the start may lie inside it.)
//   B, MN-major:  Swizzle<3,4,3> o ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO))  64 N x 8 K make one atom of 1024 bytes:
//       row k of a box lies at 128 k, so the next 8 K are 1024 bytes further: SBO = 1024.
//       The next 64 N are in the next box, 64 rows of 128 bytes further: LBO = 8192.
//       16 elements of K further: 2 atoms, + 2048 bytes.
//
// TMA writes a box with the same 128-byte swizzle (16-byte chunk c of row r goes to chunk c ^ (r % 8)), in boxes that begin
// at multiples of 1024 bytes, so the patterns meet.
#pragma once
#include "mk/frame.cuh"

namespace mk::compute {

struct Gemm {
    using Args = GemmArgs;
    static constexpr u32 pages = 3;

    static constexpr u32 ROWS = 128, COLS = 256, BLOCK_K = 64, STEP_K = 16;  // elements
    static constexpr u32 BOX_ROWS = 64, BOX_COLS = 64;                       // of B, and of half of A
    static constexpr u32 BOX_BYTES = BOX_ROWS * BOX_COLS * 2;
    static constexpr u32 ROW_BYTES = BOX_COLS * 2;    // one row of a box: the width of the swizzle
    static constexpr u32 ATOM_BYTES = 8 * ROW_BYTES;  // after 8 rows the swizzle repeats
    static constexpr u32 B_OFFSET = PAGE_BYTES;
    static constexpr u32 CHUNK = 16;  // bytes: what the swizzle moves

    // The four descriptors of a block differ by these, in units of 16 bytes.
    static constexpr u64 A_STEP = STEP_K * 2 / 16, B_STEP = STEP_K * ROW_BYTES / 16;

    static DEV u32 check(const Context& c, const Args& a) {
        const u32 rank = c.params.rank;
        if (a.k != 0 && (!c.base(a.a, rank) || !c.base(a.b, rank))) return FAULT_UNREACHABLE;
        if (a.rows == 0 || a.rows > ROWS || a.cols == 0 || a.cols > COLS) return FAULT_ARGUMENTS;
        if (((a.a_row + a.rows) | (a.c_row + a.rows) | (a.col + a.cols) | (a.k + BLOCK_K)) >> 31 != 0) {
            return FAULT_ARGUMENTS;  // TMA counts rows and columns in 32 bits with a sign
        }
        return c.check_rows(a.c, rank, a.col, a.cols);
    }

    // With no K there is one block without bytes, which math clears: the tile is zeros, and comes after its waits.
    static DEV u32 blocks(const Args& a) { return a.k == 0 ? 1 : (u32)((a.k + BLOCK_K - 1) / BLOCK_K); }
    static DEV u64 groups(const Context&, const Args& a) { return blocks(a); }
    // Of B.
    static DEV u32 boxes(const Args& a) { return (a.cols + BOX_COLS - 1) / BOX_COLS; }

    // ------------------------------------------------------------------------------------------ load

    // Beyond the region TMA fills in zeros. Rows and columns beyond the tile but inside the region (another tile's) may be
    // loaded; they never reach the output.
    static DEV void load(Frame& f, const Args& a) {
        const u32 count = blocks(a);
        const bool tall = a.rows > BOX_ROWS;
        const u32 b_boxes = boxes(a);
        const u32 bytes = a.k == 0 ? 0 : ((tall ? 2 : 1) + b_boxes) * BOX_BYTES;
        const TensorMap* const map_a = f.map(a.a, tall ? MAP_ROWS128 : MAP_ROWS64);
        const TensorMap* const map_b = f.map(a.b, MAP_ROWS64);
        const u32 copy_a = f.rotation(f.region(a.a)), copy_b = f.rotation(f.region(a.b));
        const u32 row = (u32)a.a_row, col = (u32)a.col;
        for (u32 block = 0; block < count && !f.dead; block++) {
            f.reach(block);
            const Group g = f.acquire<pages, ROLE_MATH>(bytes);
            if (bytes == 0) return;
            f.load_box(g, 0, map_a, block * BLOCK_K, row, copy_a);
            for (u32 i = 0; i < b_boxes; i++) {
                f.load_box(g, B_OFFSET + i * BOX_BYTES, map_b, col + i * BOX_COLS, block * BLOCK_K, copy_b);
            }
        }
    }

    // ------------------------------------------------------------------------------------------ math

    static DEV void math(Frame& f, const Args& a) {
        if (f.region(a.c).dtype == DTYPE_BF16) {
            tile_of<DTYPE_BF16>(f, a);
        } else {
            tile_of<DTYPE_F16>(f, a);
        }
    }

    template <u32 DTYPE>
    static DEV void tile_of(Frame& f, const Args& a) {
        switch (boxes(a)) {
            case 1: return tile<DTYPE, 1>(f, a);
            case 2: return tile<DTYPE, 2>(f, a);
            default: return tile<DTYPE, 4>(f, a);
        }
    }

    static DEV u32 warpgroup(const Frame& f) { return f.warp / (WARPGROUP / WARP) - 1; }

    template <u32 DTYPE, u32 BOXES>
    static DEV void tile(Frame& f, const Args& a) {
        if (warpgroup(f) * BOX_ROWS >= a.rows) return pass_over(f, a);
        float sum[32 * BOXES];
        multiply<DTYPE, BOXES>(f, a, sum);
        f.begin_output();
        write<DTYPE, BOXES>(f, a, sum);
    }

    // This warpgroup has no part in the tile, but its groups are only free when it says so: when all of its warps have seen
    // that they are full. (Where it multiplies, wgmma keeps them together.) Otherwise a group could be refilled before the
    // slowest has looked, and its parity would stand for another lap.
    static DEV void pass_over(Frame& f, const Args& a) {
        const u32 count = blocks(a);
        for (u32 block = 0; block < count; block++) {
            f.wait_full<ROLE_MATH>();
            ptx::barrier_any<2, WARPGROUP>(false);
            f.release<pages>(f.page);
            f.step<pages>();
        }
    }

    // One block is multiplied while the one before it is completed and released.
    template <u32 DTYPE, u32 BOXES>
    static DEV void multiply(Frame& f, const Args& a, float (&sum)[32 * BOXES]) {
        constexpr u32 COLS = BOXES * BOX_COLS;
        const u32 count = blocks(a), last_k = k_of_last(f, a);
        u32 before = 0;
        // Not for the first block to overwrite: sums that are read before they are written hold registers from task to task.
#pragma unroll
        for (u32 i = 0; i < 32 * BOXES; i++) sum[i] = 0;
        for (u32 block = 0; block < count; block++) {
            const u32 at = f.wait_full<ROLE_MATH>();
            if (block + 1 == count && last_k != BLOCK_K) clear_from(f, at, last_k, BOXES);
            const u64 da = ptx::wgmma_descriptor(at + warpgroup(f) * BOX_BYTES, 16, ATOM_BYTES);
            const u64 db = ptx::wgmma_descriptor(at + B_OFFSET, BOX_BYTES, ATOM_BYTES);
            ptx::wgmma_fence();
            ptx::wgmma<DTYPE, COLS>(sum, da, db);
            ptx::wgmma<DTYPE, COLS>(sum, da + A_STEP, db + B_STEP);
            ptx::wgmma<DTYPE, COLS>(sum, da + 2 * A_STEP, db + 2 * B_STEP);
            ptx::wgmma<DTYPE, COLS>(sum, da + 3 * A_STEP, db + 3 * B_STEP);
            ptx::wgmma_commit();
            ptx::wgmma_wait<1>();
            if (block != 0) f.release<pages>(before);
            before = f.page;
            f.step<pages>();
        }
        ptx::wgmma_wait<0>();
        f.release<pages>(before);
    }

    // Elements of K in the last block; what lies beyond them must be cleared. BLOCK_K also where the regions end there, too:
    // then TMA has filled in zeros.
    static DEV u32 k_of_last(Frame& f, const Args& a) {
        if (a.k == 0) return 0;
        const bool ends = f.region(a.a).cols == a.k && f.region(a.b).rows == a.k;
        return ends || a.k % BLOCK_K == 0 ? BLOCK_K : (u32)a.k % BLOCK_K;
    }

    // Clears A's columns and B's rows from `k` on: both, for 0 times NaN is NaN. Each warp does all that its own part of the
    // product reads, so no barrier is needed; what several of them write is the same.
    static DEV void clear_from(const Frame& f, u32 at, u32 k, u32 boxes) {
        const u32 lane = threadIdx.x % WARP, warp = f.warp % 4;
        const u32 a_rows = at + warpgroup(f) * BOX_BYTES + warp * 16 * ROW_BYTES;
#pragma unroll 1
        for (u32 first = 0; first < 16 * BOX_COLS; first += WARP) {
            const u32 i = first + lane, row = i / BOX_COLS, col = i % BOX_COLS;
            const u32 chunk = (col * 2 / CHUNK) ^ (row % 8);
            ptx::store_shared_16_if(col >= k, a_rows + row * ROW_BYTES + chunk * CHUNK + col * 2 % CHUNK, 0);
        }
#pragma unroll 1
        for (u32 box = 0; box < boxes; box++) {
            const u32 from = at + B_OFFSET + box * BOX_BYTES;
#pragma unroll 1
            for (u32 first = k * ROW_BYTES; first < BOX_BYTES; first += WARP * 16) {
                const u32 byte = first + lane * 16;
                ptx::store_shared_128_if(byte < BOX_BYTES, from + byte, uint4{0, 0, 0, 0});
            }
        }
        ptx::fence_proxy_async_shared();
        __syncwarp();
    }

    // ------------------------------------------------------------------------------------------ output

    // Each warp has 16 rows of the tile, and stages 64 columns of them at a time: no block-wide barrier.
    template <u32 DTYPE, u32 BOXES>
    static DEV void write(Frame& f, const Args& a, const float (&sum)[32 * BOXES]) {
        const u32 staging = f.staging();
        const u32 first_row = warpgroup(f) * BOX_ROWS + f.warp % 4 * 16;
        const u32 copy = f.rotation(f.region(a.c));
#pragma unroll
        for (u32 q = 0; q < BOXES; q++) {
            ptx::bulk_wait_read<0>();
            __syncwarp();
            stage<DTYPE>(staging, sum + q * 32);
            ptx::fence_proxy_async_shared();
            __syncwarp();
            const u32 first_col = q * BOX_COLS;
            if (first_row + 16 <= a.rows && first_col + BOX_COLS <= a.cols) {
                const u32 col = (u32)a.col + first_col, row = (u32)a.c_row + first_row;
                ptx::tensor_store_if(f.leads() && !f.dead, f.map(a.c, MAP_STORE), col, row, copy, staging);
                ptx::bulk_commit();
            } else {
                write_part(f, a, staging, first_row, first_col);
            }
        }
    }

    // 16 x 64 elements from the fragments of wgmma to staging, in the swizzle that the tensor map of C has.
    template <u32 DTYPE>
    static DEV void stage(u32 staging, const float* sum) {
        const u32 lane = threadIdx.x % WARP, matrix = lane / 8, row = matrix % 2 * 8 + lane % 8;
#pragma unroll
        for (u32 g = 0; g < 4; g++) {
            const float* const d = sum + g * 8;
            const u32 chunk = (2 * g + matrix / 2) ^ (row % 8);
            ptx::store_matrix_x4(staging + row * ROW_BYTES + chunk * CHUNK, pack<DTYPE>(d[0], d[1]),
                                 pack<DTYPE>(d[2], d[3]), pack<DTYPE>(d[4], d[5]), pack<DTYPE>(d[6], d[7]));
        }
    }

    // At the edge of a tile, where a whole box would reach into another's: only what belongs to this one.
    static DEV void write_part(Frame& f, const Args& a, u32 staging, u32 first_row, u32 first_col) {
        if (f.dead) return;
        const Place to = f.place(a.c, a.c_row + first_row, a.col + first_col);
#pragma unroll 1
        for (u32 first = 0; first < 16 * (ROW_BYTES / CHUNK); first += WARP) {
            const u32 i = first + threadIdx.x % WARP, row = i / 8, chunk = i % 8;
            const bool inside = first_row + row < a.rows && first_col + chunk * (CHUNK / 2) < a.cols;
            const uint4 v = ptx::load_shared_128(staging + row * ROW_BYTES + (chunk ^ (row % 8)) * CHUNK);
            ptx::store_global_128_if(inside, to.row(row, chunk * CHUNK), v);
        }
    }

    template <u32 DTYPE>
    static DEV u32 pack(float low, float high) {
        return DTYPE == DTYPE_BF16 ? ptx::pack_bf16(low, high) : ptx::pack_f16(low, high);
    }
};

}  // namespace mk::compute
