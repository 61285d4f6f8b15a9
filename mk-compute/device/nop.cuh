// Nop: touches nothing. The frame waits and posts; what is left is the dispatch of a task.
#pragma once
#include "mk/frame.cuh"

namespace mk::compute {

struct Nop {
    using Args = NopArgs;
    static constexpr u32 pages = 1;  // of a group; it takes none

    static DEV u32 check(const Context&, const Args&) { return 0; }
};

}  // namespace mk::compute
