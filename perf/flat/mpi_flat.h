// MPI's own flat collectives, over the job's world.
#pragma once

#include "base/status.h"
#include "flat/flat_collective.h"

namespace ulysses::perf {

// MPI_Allgather or MPI_Alltoall of `shareBytes` per rank or peer; ulyssesNotSupported where MPI is not built in.
Status mpiFlat(FlatKind kind, const std::byte* in, std::byte* out, size_t shareBytes);

}  // namespace ulysses::perf
