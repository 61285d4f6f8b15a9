// SwiGLU: gate * sigmoid(gate) * up.
#pragma once
#include "mk/elementwise.cuh"

namespace mk::compute {

struct Swiglu : Elementwise<Swiglu, SwigluArgs, 2> {
    static DEV Operands<2> operands(const SwigluArgs& a) { return {{a.gate, a.up}, a.dst}; }

    // Far below 0 the exponential is infinite and its reciprocal 0, as the limit is.
    static DEV float apply(const SwigluArgs&, float gate, float up) {
        return gate * ptx::reciprocal_approx(1.0f + expf(-gate)) * up;
    }
};

}  // namespace mk::compute
