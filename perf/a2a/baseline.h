// The exchange against what a user would otherwise call, in turns within one run.
#pragma once

#include <vector>

#include "a2a/geometry.h"
#include "common/program.h"

namespace ulysses::perf {

// For one geometry: direct and staged, what the user would otherwise call, and a plain copy of the same bytes by all
// ranks at once. On host memory that is MPI_Alltoallw and pack + MPI_Alltoall, both under mpirun only; on device memory
// permute + ncclAlltoAll and ncclAlltoAll alone, where NCCL takes the ranks, and permute + copies, where they are threads.
// (Of one plane at a time, so that one permute is enough.) Every way is checked once, then all take turns for `rounds` rounds. Prints and records
// medians, and medians of per-round ratios.
Status runBaseline(Run& run, const Geometry& geometry, int rounds);

}  // namespace ulysses::perf
