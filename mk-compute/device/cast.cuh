// Cast: a rectangle into a region of another real type, to nearest, ties to even.
#pragma once
#include "mk/elementwise.cuh"

namespace mk::compute {

struct Cast : Elementwise<Cast, CastArgs, 1, true> {
    static DEV Operands<1> operands(const CastArgs& a) { return {{a.src}, a.dst}; }
    static DEV float apply(const CastArgs&, float x) { return x; }
};

}  // namespace mk::compute
