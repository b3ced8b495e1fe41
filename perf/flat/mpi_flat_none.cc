#include "flat/mpi_flat.h"

namespace ulysses::perf {

Status mpiFlat(FlatKind, const std::byte*, std::byte*, size_t) {
  return {ulyssesNotSupported, "built without MPI"};
}

}  // namespace ulysses::perf
