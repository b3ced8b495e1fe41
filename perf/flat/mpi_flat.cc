#include "flat/mpi_flat.h"

#include <fmt/format.h>
#include <mpi.h>

#include <climits>

namespace ulysses::perf {

Status mpiFlat(FlatKind kind, const std::byte* in, std::byte* out, size_t shareBytes) {
  if (shareBytes > INT_MAX) {
    return {ulyssesNotSupported, fmt::format("MPI: {} bytes per rank need a count beyond 32 bits", shareBytes)};
  }
  const int n = static_cast<int>(shareBytes);
  const int code = kind == FlatKind::AllGather ? MPI_Allgather(in, n, MPI_BYTE, out, n, MPI_BYTE, MPI_COMM_WORLD)
                                               : MPI_Alltoall(in, n, MPI_BYTE, out, n, MPI_BYTE, MPI_COMM_WORLD);
  if (code != MPI_SUCCESS) return {ulyssesSystemError, fmt::format("MPI failed with code {}", code)};
  return {};
}

}  // namespace ulysses::perf
