// Elementwise handlers: rectangles that are read, changed element by element, and written.
//
// A handler says which regions and which arithmetic; everything else is here:
//
//   struct Add : Elementwise<Add, AddArgs, 2> {
//       static DEV Operands<2> operands(const AddArgs& a) { return {{a.x, a.y}, a.dst}; }
//       static DEV float apply(const AddArgs&, float x, float y) { return x + y; }
//   };
//
// The arguments have `rows`, `cols`, `src_row`, `src_col`, `dst_row` and `dst_col`. Inputs have one type and one place.
// `apply` sees f32, rounded once when it is stored; with `integers` and a second `apply` also i32.
//
// A *block* is as many rows as one page holds of the widest type, at least one: what `block_rows` says in Rust, so that
// waits line up. A *piece* is what fits into a page: a block, or a part of a row that is wider than a page. A group is one
// page for each input. The result takes the place of the first input, or a page of its own where its type may be another.
#pragma once
#include "mk/frame.cuh"
#include "mk/number.cuh"

namespace mk {

// ---------------------------------------------------------------------------------------------- pieces

// Walks through a rectangle piece by piece, the same way in every role. There is always one piece, for something must be
// loaded before anything is written or posted: that of an empty rectangle has no rows.
struct Pieces {
    u32 rows, cols;            // of the rectangle
    u32 rows_step, cols_step;  // of a whole piece
    u32 row = 0, col = 0;      // of this piece
    bool one;                  // there is no other

    DEV Pieces(u32 rows_, u32 cols_, u32 widest_bytes)
        : rows(cols_ == 0 ? 0 : rows_), cols(rows_ == 0 ? 0 : cols_) {
        const u32 in_page = widest_bytes == 4 ? PAGE_BYTES / 4 : PAGE_BYTES / 2;
        const bool narrow = cols <= in_page;
        cols_step = narrow ? cols : in_page;
        // What fits into a page as a whole needs no division, of which there is one in each role otherwise.
        one = (u64)rows * cols <= in_page;
        rows_step = one ? rows : narrow ? ptx::divide(in_page, cols) : 1;
    }

    DEV u64 count() const {
        if (one) return 1;
        return (u64)(ptx::divide(rows - 1, rows_step) + 1) * (ptx::divide(cols - 1, cols_step) + 1);
    }

    DEV u32 block() const { return one ? 0 : ptx::divide(row, rows_step); }
    DEV u32 piece_rows() const { return rows - row < rows_step ? rows - row : rows_step; }
    DEV u32 piece_cols() const { return cols - col < cols_step ? cols - col : cols_step; }

    // Moves to the next one, if there is one.
    DEV bool next() {
        if (one) return false;
        if (cols - col > cols_step) {
            col += cols_step;
            return true;
        }
        if (rows - row <= rows_step) return false;
        col = 0;
        row += rows_step;
        return true;
    }
};

// ---------------------------------------------------------------------------------------------- the handler

template <u32 INPUTS>
struct Operands {
    u16 inputs[INPUTS];
    u16 output;
};

template <class Op, class ArgsType, u32 INPUTS, bool OTHER_TYPE = false>
struct Elementwise {
    using Args = ArgsType;
    static constexpr u32 pages = INPUTS + (OTHER_TYPE ? 1 : 0);
    static constexpr u32 RESULT = OTHER_TYPE ? INPUTS * PAGE_BYTES : 0;  // offset in the group
    static constexpr u32 MATH_THREADS = MATH_GROUPS * WARPGROUP;
    static constexpr bool integers = false;

    static DEV Pieces pieces(const Context& c, const Args& a) {
        const Operands<INPUTS> o = Op::operands(a);
        const u32 in = c.region(o.inputs[0]).element_bytes, out = c.region(o.output).element_bytes;
        return Pieces(a.rows, a.cols, in > out ? in : out);
    }

    static DEV u32 check(const Context& c, const Args& a) {
        if (a.rows == 0 || a.cols == 0) return 0;
        const Operands<INPUTS> o = Op::operands(a);
        for (u32 i = 0; i < INPUTS; i++) {
            const u32 reason = c.check_rows(o.inputs[i], a.src_col, a.cols);
            if (reason != 0) return reason;
        }
        return c.check_rows(o.output, a.dst_col, a.cols);
    }

    static DEV u64 groups(const Context& c, const Args& a) { return pieces(c, a).count(); }

    // Where a piece lies is looked up again for each: a load or store thread has too few registers to keep it. But before it waits: what
    // is read of a region takes longer than the rest of a short task.
    static DEV void load(Frame& f, const Args& a) {
        Pieces p = pieces(f, a);
        do {
            if (f.guarded()) f.reach(p.block());
            const Operands<INPUTS> o = Op::operands(a);
            const u32 rows = p.piece_rows(), row_bytes = p.piece_cols() * f.region(o.inputs[0]).element_bytes;
            Place from[INPUTS];
#pragma unroll
            for (u32 i = 0; i < INPUTS; i++) from[i] = f.place(o.inputs[i], a.src_row + p.row, a.src_col + p.col);
            const Group g = f.acquire<ROLE_MATH>(INPUTS * rows * row_bytes);
#pragma unroll
            for (u32 i = 0; i < INPUTS; i++) f.load_rows(g, i * PAGE_BYTES, from[i], rows, row_bytes);
        } while (p.next() && !f.dead);
    }

    // The types are decided once a task, outside of the loops.
    static DEV void math(Frame& f, const Args& a) {
        switch (f.region(Op::operands(a).inputs[0]).dtype) {
            case DTYPE_BF16: return math_from<DTYPE_BF16>(f, a);
            case DTYPE_F16: return math_from<DTYPE_F16>(f, a);
            case DTYPE_F32: return math_from<DTYPE_F32>(f, a);
        }
        if constexpr (Op::integers) compute<DTYPE_I32, DTYPE_I32>(f, a);
    }

    static DEV void store(Frame& f, const Args& a) {
        Pieces p = pieces(f, a);
        do {
            const u32 id = Op::operands(a).output, row_bytes = p.piece_cols() * f.region(id).element_bytes;
            const Place to = f.place(id, a.dst_row + p.row, a.dst_col + p.col);
            const u32 from = f.wait_done() + RESULT;
            f.store_rows(to, from, p.piece_rows(), row_bytes);
            f.end_group();
        } while (p.next() && !f.dead);
        f.end_groups();
    }

 private:
    template <u32 IN>
    static DEV void math_from(Frame& f, const Args& a) {
        if constexpr (!OTHER_TYPE) {
            compute<IN, IN>(f, a);
        } else {
            switch (f.region(Op::operands(a).output).dtype) {
                case DTYPE_BF16: return compute<IN, DTYPE_BF16>(f, a);
                case DTYPE_F16: return compute<IN, DTYPE_F16>(f, a);
                default: return compute<IN, DTYPE_F32>(f, a);
            }
        }
    }

    // Each thread reads and writes the same 8 elements (4 where both types are wide), so it may work in place. What lies behind
    // the piece in its page is computed like the rest, for all threads go the same way, and not written.
    template <u32 IN, u32 OUT>
    static DEV void compute(Frame& f, const Args& a) {
        constexpr u32 COUNT = Element<IN>::BYTES == 2 || Element<OUT>::BYTES == 2 ? 8 : 4;
        Pieces p = pieces(f, a);
        do {
            const u32 at = f.wait_full<ROLE_MATH>();
            const u32 numbers = p.piece_rows() * p.piece_cols();
            for (u32 first = 0; first < numbers; first += MATH_THREADS * COUNT) {
                const u32 i = first + (threadIdx.x - WARPGROUP) * COUNT;
                const u32 from = at + i * Element<IN>::BYTES, to = at + RESULT + i * Element<OUT>::BYTES;
                apply_to<IN, OUT, COUNT>(a, from, to, i < numbers);
            }
            f.pass();
            f.step();
        } while (p.next() && !f.dead);
    }

    template <u32 IN, u32 OUT, u32 COUNT>
    static DEV void apply_to(const Args& a, u32 from, u32 to, bool inside) {
        typename Element<IN>::Number x[INPUTS][COUNT];
        typename Element<OUT>::Number y[COUNT];
#pragma unroll
        for (u32 i = 0; i < INPUTS; i++) load_numbers<IN, COUNT>(from + i * PAGE_BYTES, x[i]);
#pragma unroll
        for (u32 j = 0; j < COUNT; j++) {
            if constexpr (INPUTS == 1) {
                y[j] = Op::apply(a, x[0][j]);
            } else {
                y[j] = Op::apply(a, x[0][j], x[1][j]);
            }
        }
        store_numbers<OUT, COUNT>(inside, to, y);
    }
};

}  // namespace mk
