// Signal: raises words of a peer, and touches no other memory.
#pragma once
#include "mk/comm.cuh"

namespace mk::nvlink {

struct Signal : Synchronise {};

}  // namespace mk::nvlink
