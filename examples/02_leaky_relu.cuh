// Leaky ReLU on a GPU: beside its Rust, and as short. Rows, pages, waits and posts are the frame's.
#pragma once
#include "mk/elementwise.cuh"

namespace lesson {

struct LeakyRelu : mk::Elementwise<LeakyRelu, mk::LeakyReluArgs, 1> {
    static DEV mk::Operands<1> operands(const Args& a) { return {{a.src}, a.dst}; }
    static DEV float apply(const Args& a, float x) { return x > 0 ? x : a.slope * x; }
};

}  // namespace lesson
