// Scale: a rectangle times a number.
#pragma once
#include "mk/elementwise.cuh"

namespace mk::compute {

struct Scale : Elementwise<Scale, ScaleArgs, 1> {
    static DEV Operands<1> operands(const ScaleArgs& a) { return {{a.src}, a.dst}; }
    static DEV float apply(const ScaleArgs& a, float x) { return x * a.factor; }
};

}  // namespace mk::compute
