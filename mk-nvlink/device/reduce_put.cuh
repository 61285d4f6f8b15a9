// Reduce-put: own memory is added to a peer's mapped memory.
#pragma once
#include "mk/comm.cuh"

namespace mk::nvlink {

struct ReducePut {
    using Args = CopyArgs;
    static DEV u32 check(const Context& c, const Args& a) { return check_copy(c, a, c.params.rank, a.peer); }
    static DEV u32 units(const Args& a) { return a.units; }
    static DEV void comm(Comm& c, const Args& a) { c.transfer(a, c.params.rank, a.peer, Combine::Add); }
};

}  // namespace mk::nvlink
