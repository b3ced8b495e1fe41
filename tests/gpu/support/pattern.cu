#include "gpu/support/pattern.h"

#include <cuda_runtime.h>

namespace ulysses::testing {
namespace {

__device__ __forceinline__ ulonglong2 unitValue(uint64_t unit, uint64_t seed) {
  const uint64_t mixed = (unit + seed) * 0x9E3779B97F4A7C15ull;
  return {mixed, ~mixed};
}

// Units are 16 bytes of the global tensor [seq, units per token]; a rank's part starts at (firstToken, firstUnit).
__global__ void fillKernel(ulonglong2* data, PlanePart part, uint64_t seed) {
  const uint64_t n = part.tokens * part.units;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t token = part.firstToken + i / part.units, unit = part.firstUnit + i % part.units;
    data[i] = unitValue(token * part.unitsOfToken + unit, seed);
  }
}

__global__ void countKernel(const ulonglong2* data, PlanePart part, uint64_t seed, unsigned long long* wrong) {
  const uint64_t n = part.tokens * part.units;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t token = part.firstToken + i / part.units, unit = part.firstUnit + i % part.units;
    const ulonglong2 expected = unitValue(token * part.unitsOfToken + unit, seed);
    if (data[i].x != expected.x || data[i].y != expected.y) atomicAdd(wrong, 1ull);
  }
}

constexpr int kBlocks = 132 * 8, kThreadsPerBlock = 256;

}  // namespace

void fill(void* data, const PlanePart& part, uint64_t seed, cudaStream_t stream) {
  fillKernel<<<kBlocks, kThreadsPerBlock, 0, stream>>>(static_cast<ulonglong2*>(data), part, seed);
}
void countWrong(const void* data, const PlanePart& part, uint64_t seed, unsigned long long* wrong, cudaStream_t stream) {
  countKernel<<<kBlocks, kThreadsPerBlock, 0, stream>>>(static_cast<const ulonglong2*>(data), part, seed, wrong);
}

}  // namespace ulysses::testing
