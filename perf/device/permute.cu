#include "device/permute.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace ulysses::perf {
namespace {

// One thread takes one 16-byte unit after the other, all of them neighbouring ones of the packed side.
__global__ void permute(const ulonglong2* from, ulonglong2* to, uint32_t tokens, uint32_t peers, uint32_t units,
                        bool back) {
  const uint64_t n = uint64_t{tokens} * peers * units;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t line = i / units, unit = i % units, token = line / peers, peer = line % peers;
    const uint64_t packed = (peer * tokens + token) * units + unit;
    if (back)
      to[i] = from[packed];
    else
      to[packed] = from[i];
  }
}

constexpr int kThreads = 256, kBlocks = 132 * 8;

}  // namespace

int launchPermute(void* to, const void* from, size_t tokens, size_t peers, size_t units, bool back,
                  CUstream_st* stream) {
  permute<<<kBlocks, kThreads, 0, stream>>>(static_cast<const ulonglong2*>(from), static_cast<ulonglong2*>(to),
                                            static_cast<uint32_t>(tokens), static_cast<uint32_t>(peers),
                                            static_cast<uint32_t>(units), back);
  return cudaGetLastError();
}

}  // namespace ulysses::perf
