// Copy: a rectangle to another place of its rank, byte for byte. What load brings, store takes from the same page; no
// math warp sees it.
#pragma once
#include "mk/elementwise.cuh"

namespace mk::compute {

struct Copy {
    using Args = CopyRectArgs;
    static constexpr u32 pages = 1;

    static DEV Pieces pieces(const Context& c, const Args& a) {
        return Pieces(a.rows, a.cols, c.region(a.src).element_bytes);
    }

    static DEV u32 check(const Context& c, const Args& a) {
        if (a.rows == 0 || a.cols == 0) return 0;
        const u32 reason = c.check_rows(a.src, a.src_col, a.cols);
        return reason != 0 ? reason : c.check_rows(a.dst, a.dst_col, a.cols);
    }

    static DEV u64 groups(const Context& c, const Args& a) { return pieces(c, a).count(); }

    static DEV void load(Frame& f, const Args& a) {
        Pieces p = pieces(f, a);
        do {
            if (f.guarded()) f.reach(p.block());
            const Place from = f.place(a.src, a.src_row + p.row, a.src_col + p.col);
            const u32 rows = p.piece_rows(), row_bytes = p.piece_cols() * f.region(a.src).element_bytes;
            const Group g = f.acquire<ROLE_STORE>(rows * row_bytes);
            f.load_rows(g, 0, from, rows, row_bytes);
        } while (p.next() && !f.dead);
    }

    static DEV void store(Frame& f, const Args& a) {
        Pieces p = pieces(f, a);
        do {
            const Place to = f.place(a.dst, a.dst_row + p.row, a.dst_col + p.col);
            const u32 row_bytes = p.piece_cols() * f.region(a.dst).element_bytes;
            const u32 from = f.wait_full<ROLE_STORE>();
            f.store_rows(to, from, p.piece_rows(), row_bytes);
            f.end_group();
        } while (p.next() && !f.dead);
        f.end_groups();
    }
};

}  // namespace mk::compute
