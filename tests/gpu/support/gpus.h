// GPUs for the ranks of a test: they are dealt in turn, as the perf binaries and most launchers do it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>

namespace ulysses::testing {

// Those that are visible; no more than ULYSSES_TEST_GPUS says, so that ranks can be made to share one where there are
// many. Touches CUDA: for ranks, not for the process that forks them.
inline int gpusToUse() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  const char* most = std::getenv("ULYSSES_TEST_GPUS");
  return most != nullptr && std::atoi(most) > 0 ? std::min(count, std::atoi(most)) : count;
}

inline int deviceOf(int rank) {
  return rank % std::max(gpusToUse(), 1);
}

// Makes it current for the calling thread.
inline bool takeDeviceOf(int rank) {
  return cudaSetDevice(deviceOf(rank)) == cudaSuccess;
}

// Lets the current GPU copy to and from all others without a way round by the host.
inline void enablePeers() {
  int current = 0;
  (void)cudaGetDevice(&current);
  for (int peer = 0; peer < gpusToUse(); ++peer)
    if (peer != current && cudaDeviceEnablePeerAccess(peer, 0) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace ulysses::testing
