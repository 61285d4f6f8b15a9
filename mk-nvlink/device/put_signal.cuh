// Put and signal: a put whose posts go to the peer. The frame makes them, by release atomics on the mapped words after the
// unit has landed, so it is a put.
#pragma once
#include "mk/comm.cuh"

namespace mk::nvlink {

struct PutSignal {
    using Args = CopyArgs;
    static DEV u32 check(const Context& c, const Args& a) { return check_copy(c, a, c.params.rank, a.peer); }
    static DEV u32 units(const Args& a) { return a.units; }
    static DEV void comm(Comm& c, const Args& a) { c.transfer(a, c.params.rank, a.peer, Combine::Overwrite); }
};

}  // namespace mk::nvlink
