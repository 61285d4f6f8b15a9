// Get: a peer's mapped memory -> the comm warp's ring -> own memory.
#pragma once
#include "mk/comm.cuh"

namespace mk::nvlink {

struct Get {
    using Args = CopyArgs;
    static DEV u32 check(const Context& c, const Args& a) { return check_copy(c, a, a.peer, c.params.rank); }
    static DEV u32 units(const Args& a) { return a.units; }
    static DEV void comm(Comm& c, const Args& a) { c.transfer(a, a.peer, c.params.rank, Combine::Overwrite); }
};

}  // namespace mk::nvlink
