// One tile of a matrix product: C[rows, cols] = A[rows, k] B[k, cols], bf16 or fp16, f32 sums, rounded once.
//
// Configuration. A tile has at most 128 x 256 elements; K goes in blocks of 64, the width of the widest swizzle. Each math
// warpgroup has 64 rows and all columns: wgmma m64n64k16, m64n128k16 or m64n256k16, 32, 64 or 128 sums a thread.
//
// A group is a block of K, 3 pages, 48 KB, so that the ring holds 4 of them:
//
//   page 0      A: 128 rows of 64 K (128 bytes); warpgroup w reads rows 64 w .. 64 w + 63
//   pages 1, 2  B: up to four boxes one after the other, each 64 rows of K by 64 columns of N (128 bytes)
//
// Narrow tiles are read faster than that lets through: the more bytes are under way, the better. So, for tiles of so many rows
// and columns, the ring is filled like this:
//
//   columns 65 .. 128                    2 pages: A, and B's two boxes
//   columns .. 64, rows 65 .. 128        3 pages for two blocks of K: A, A, and both blocks' box of B
//   columns .. 64, rows .. 64            1 page: A in one half of it, B in the other
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
    static constexpr u32 CHUNK = 16;  // bytes: what the swizzle moves

    // The four descriptors of a block differ by these, in units of 16 bytes.
    static constexpr u64 A_STEP = STEP_K * 2 / 16, B_STEP = STEP_K * ROW_BYTES / 16;

    static DEV u32 check(const Context& c, const Args& a) {
        if (a.rows == 0 || a.rows > ROWS || a.cols == 0 || a.cols > COLS) return FAULT_ARGUMENTS;
        if (((a.a_row + a.rows) | (a.c_row + a.rows) | (a.col + a.cols) | (a.k + BLOCK_K)) >> 31 != 0) {
            return FAULT_ARGUMENTS;  // TMA counts rows and columns in 32 bits with a sign
        }
        return c.check_rows(a.c, a.col, a.cols);
    }

    // With no K there is one block without bytes, which math clears: the tile is zeros, and comes after its waits.
    static DEV u32 blocks(const Args& a) { return a.k == 0 ? 1 : (u32)((a.k + BLOCK_K - 1) / BLOCK_K); }
    static DEV u64 groups(const Context&, const Args& a) {
        return blocks_of_group(a) == 2 ? blocks(a) / 2 + blocks(a) % 2 : blocks(a);
    }
    // Of B.
    static DEV u32 boxes(const Args& a) { return (a.cols + BOX_COLS - 1) / BOX_COLS; }

    static constexpr u32 SHARED_A = 1, SHARED_B = 2;  // as `Handler::shares` counts them

    // How a group is laid out.
    static DEV bool narrow(const Args& a) { return a.cols <= BOX_COLS; }
    static DEV bool low(const Args& a) { return a.rows <= BOX_ROWS; }
    static DEV u32 group_pages(const Args& a) { return narrow(a) ? (low(a) ? 1 : 3) : a.cols <= 2 * BOX_COLS ? 2 : 3; }
    static DEV u32 blocks_of_group(const Args& a) { return narrow(a) && !low(a) ? 2 : 1; }
    static DEV u32 b_offset(const Args& a) { return narrow(a) && low(a) ? BOX_BYTES : blocks_of_group(a) * PAGE_BYTES; }

    // ------------------------------------------------------------------------------------------ load

    // Rows of A that are loaded. What is multiplied below them is what was there, and never reaches the output.
    static constexpr u32 FEW_ROWS = 16;
    static DEV u32 box_rows(const Args& a) { return a.rows > BOX_ROWS ? ROWS : a.rows > FEW_ROWS ? BOX_ROWS : FEW_ROWS; }

    // Beyond the region TMA fills in zeros, which takes longer than rows that are there. Rows and columns beyond the tile but inside
    // the region (another tile's) may be loaded; they never reach the output.
    static DEV void load(Frame& f, const Args& a) {
        switch (f.shared_operand()) {
            case SHARED_A: return load_blocks<SHARED_A>(f, a);
            case SHARED_B: return load_blocks<SHARED_B>(f, a);
            default: load_blocks<0>(f, a);
        }
    }

    template <u32 SHARED>
    static DEV void load_blocks(Frame& f, const Args& a) {
        const u32 count = blocks(a), a_rows = box_rows(a), b_boxes = boxes(a), b_at = b_offset(a);
        const u32 bytes = a.k == 0 ? 0 : a_rows * ROW_BYTES + b_boxes * BOX_BYTES;
        const TensorMap* const map_a =
            f.map(a.a, a_rows > BOX_ROWS ? MAP_ROWS128 : a_rows == BOX_ROWS ? MAP_ROWS64 : MAP_ROWS16);
        const TensorMap* const map_b = f.map(a.b, MAP_ROWS64);
        const u32 copy_a = f.rotation(f.region(a.a)), copy_b = f.rotation(f.region(a.b));
        const u32 row = (u32)a.a_row, col = (u32)a.col;
        const u32 of_group = blocks_of_group(a), lap = RING_PAGES * of_group;  // at the latest
        for (u32 block = 0; block < count && !f.dead;) {
            const u32 many = min(of_group, count - block);
            if constexpr (SHARED == 0) f.reach(block + many - 1);  // else it waits for nothing
            const Group g = f.acquire<ROLE_MATH>(many * bytes, block >= lap);
            if (SHARED == 0 && bytes == 0) return;
#pragma unroll 1
            for (u32 j = 0; j < many; j++, block++) {
                const u32 k = block * BLOCK_K;
                load_box<SHARED == SHARED_A>(f, g, j * PAGE_BYTES, map_a, k, row, copy_a, block);
#pragma unroll 1
                for (u32 i = 0; i < b_boxes; i++) {
                    const u32 to = b_at + (j + i) * BOX_BYTES;
                    load_box<SHARED == SHARED_B>(f, g, to, map_b, col + i * BOX_COLS, k, copy_b, block + i);
                }
            }
        }
    }

    template <bool SHARED>
    static DEV void load_box(Frame& f, const Group& g, u32 at, const TensorMap* map, u32 col, u32 row, u32 copy, u32 turn) {
        if constexpr (SHARED) {
            f.load_shared_box(g, at, map, col, row, copy, turn);
        } else {
            f.load_box(g, at, map, col, row, copy);
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
        const u32 count = blocks(a), of_group = blocks_of_group(a);
        const Frame::Releaser releaser = f.releaser();
        for (u32 first = 0; first < count; first += of_group) {
            f.wait_full<ROLE_MATH>();
            ptx::barrier_any<2, WARPGROUP>(false);
            f.release(f.page, releaser);
            f.step();
        }
    }

    // A wide block is multiplied while the one before it is completed and released. Narrow ones wait for memory, not for wgmma:
    // each is released as soon as it is complete.
    template <u32 DTYPE, u32 BOXES>
    static DEV void multiply(Frame& f, const Args& a, float (&sum)[32 * BOXES]) {
        constexpr bool WIDE = BOXES == 4;
        const u32 count = blocks(a), of_group = BOXES == 1 ? blocks_of_group(a) : 1;
        const u32 last_k = k_of_last(f, a), b_at = b_offset(a);
        const Frame::Releaser releaser = f.releaser();
        u32 before = 0;
        // Not for the first block to overwrite: sums that are read before they are written hold registers from task to task.
#pragma unroll
        for (u32 i = 0; i < 32 * BOXES; i++) sum[i] = 0;
        for (u32 first = 0; first < count; first += of_group) {
            const u32 at = f.wait_full<ROLE_MATH>();
            const u32 end = min(first + of_group, count);
            if (end == count && last_k != BLOCK_K) {
                const u32 last = count - 1 - first;
                clear_from(f, at + last * PAGE_BYTES, at + b_at + last * BOX_BYTES, last_k, BOXES);
            }
            const u32 a_at = at + warpgroup(f) * BOX_BYTES;
            multiply_block<DTYPE>(sum, a_at, at + b_at);
            if (BOXES == 1 && end - first > 1) multiply_block<DTYPE>(sum, a_at + PAGE_BYTES, at + b_at + BOX_BYTES);
            ptx::wgmma_wait<WIDE ? 1 : 0>();
            if (!WIDE || first != 0) f.release(WIDE ? before : f.page, releaser);
            before = f.page;
            f.step();
        }
        if constexpr (WIDE) {
            ptx::wgmma_wait<0>();
            f.release(before, releaser);
        }
    }

    template <u32 DTYPE, u32 SUMS>
    static DEV void multiply_block(float (&sum)[SUMS], u32 a_at, u32 b_at) {
        const u64 da = ptx::wgmma_descriptor(a_at, 16, ATOM_BYTES);
        const u64 db = ptx::wgmma_descriptor(b_at, BOX_BYTES, ATOM_BYTES);
        ptx::wgmma_fence();
        ptx::wgmma<DTYPE, 2 * SUMS>(sum, da, db);
        ptx::wgmma<DTYPE, 2 * SUMS>(sum, da + A_STEP, db + B_STEP);
        ptx::wgmma<DTYPE, 2 * SUMS>(sum, da + 2 * A_STEP, db + 2 * B_STEP);
        ptx::wgmma<DTYPE, 2 * SUMS>(sum, da + 3 * A_STEP, db + 3 * B_STEP);
        ptx::wgmma_commit();
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
    static DEV void clear_from(const Frame& f, u32 a_at, u32 b_at, u32 k, u32 boxes) {
        const u32 lane = threadIdx.x % WARP, warp = f.warp % 4;
        const u32 a_rows = a_at + warpgroup(f) * BOX_BYTES + warp * 16 * ROW_BYTES;
#pragma unroll 1
        for (u32 first = 0; first < 16 * BOX_COLS; first += WARP) {
            const u32 i = first + lane, row = i / BOX_COLS, col = i % BOX_COLS;
            const u32 chunk = (col * 2 / CHUNK) ^ (row % 8);
            ptx::store_shared_16_if(col >= k, a_rows + row * ROW_BYTES + chunk * CHUNK + col * 2 % CHUNK, 0);
        }
#pragma unroll 1
        for (u32 box = 0; box < boxes; box++) {
            const u32 from = b_at + box * BOX_BYTES;
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

    // Each warp has 16 rows of the tile, and stages 64 columns of them at a time, to write rows of 128 bytes: no barrier but the
    // warp's own. Its threads store what belongs to this tile. (Left to TMA, box by box, the next box may be staged only
    // when the last one has been read, and parts of a box need these stores all the same.)
    template <u32 DTYPE, u32 BOXES>
    static DEV void write(Frame& f, const Args& a, const float (&sum)[32 * BOXES]) {
        const u32 lane = threadIdx.x % WARP, row = lane / 8, chunk = lane % 8;  // of the first of four rounds
        const u32 first_row = warpgroup(f) * BOX_ROWS + f.warp % 4 * 16;
        const u32 staging = f.staging(), cols = f.dead ? 0 : a.cols;
        const Place to = f.place(a.c, a.c_row + first_row + row, a.col + chunk * (CHUNK / 2));
#pragma unroll
        for (u32 q = 0; q < BOXES; q++) {
            __syncwarp();
            stage<DTYPE>(staging, sum + q * 32);
            __syncwarp();
#pragma unroll
            for (u32 i = 0; i < 16; i += 4) {
                const bool inside = first_row + row + i < a.rows && q * BOX_COLS + chunk * (CHUNK / 2) < cols;
                const uint4 v = ptx::load_shared_128(staging + (row + i) * ROW_BYTES + (chunk ^ ((row + i) % 8)) * CHUNK);
                ptx::store_global_128_if(inside, to.row(i, q * ROW_BYTES), v);
            }
        }
    }

    // 16 x 64 elements from the fragments of wgmma to staging, in a swizzle that keeps both its writers and its readers from
    // meeting in a bank.
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

    template <u32 DTYPE>
    static DEV u32 pack(float low, float high) {
        return DTYPE == DTYPE_BF16 ? ptx::pack_bf16(low, high) : ptx::pack_f16(low, high);
    }
};

}  // namespace mk::compute
