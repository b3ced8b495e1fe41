// The exchange as an MPI program would write it without this library.
#pragma once

#include <cstddef>
#include <memory>

#include "a2a/geometry.h"
#include "base/status.h"

namespace ulysses::perf {

class MpiExchange {
 public:
  virtual ~MpiExchange() = default;
  // One MPI_Alltoallw whose derived datatypes hold the layout: nothing is packed by hand.
  virtual Status alltoallw(const std::byte* in, std::byte* out) = 0;
  // Rows copied into one block per peer where the input's blocks are not contiguous, MPI_Alltoall (Alltoallv where the
  // blocks differ), rows copied out where the output's are not. `scratch` holds packedScratchBytes().
  virtual Status packed(const std::byte* in, std::byte* out, std::byte* scratch) = 0;
  virtual size_t packedScratchBytes() const = 0;
};

// Null where MPI is not built in. The caller is a process of the job's world, rank `rank` of `nranks`.
Result<std::unique_ptr<MpiExchange>> makeMpiExchange(const Geometry& geometry, int nranks, int rank);

}  // namespace ulysses::perf
