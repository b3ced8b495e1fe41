// Small exchanges: their time against MPI_Alltoall, and the cost of agreement.
#pragma once

#include "a2a/geometry.h"
#include "common/program.h"

namespace ulysses::perf {

// Batches of `calls` calls, in turns with MPI_Alltoall of the same bytes (under mpirun).
Status runLatency(Run& run, const Geometry& geometry, int rounds, int calls);

// From the last rank's entry to the last rank's exit: what a call costs beyond the skew of the ranks. Median over
// `calls` calls of one host's ranks.
Status runAgreement(Run& run, const Geometry& geometry, int calls);

}  // namespace ulysses::perf
