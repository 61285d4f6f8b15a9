// Add: two rectangles, real numbers in f32, integers as integers (wrapping).
#pragma once
#include "mk/elementwise.cuh"

namespace mk::compute {

struct Add : Elementwise<Add, AddArgs, 2> {
    static constexpr bool integers = true;

    static DEV Operands<2> operands(const AddArgs& a) { return {{a.x, a.y}, a.dst}; }
    static DEV float apply(const AddArgs&, float x, float y) { return x + y; }
    static DEV i32 apply(const AddArgs&, i32 x, i32 y) { return (i32)((u32)x + (u32)y); }
};

}  // namespace mk::compute
