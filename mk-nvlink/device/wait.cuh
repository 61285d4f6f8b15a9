// Wait: joins more words than one task can wait for.
#pragma once
#include "mk/comm.cuh"

namespace mk::nvlink {

struct Wait : Synchronise {};

}  // namespace mk::nvlink
