#include "gpu/bench/kernels.h"

#include <cuda_runtime.h>

#include "device/exchange.cuh"

namespace ulysses::testing {

namespace {

__device__ __forceinline__ ulonglong2 unitValue(uint64_t unit, uint64_t seed) {
  const uint64_t mixed = (unit + seed) * 0x9E3779B97F4A7C15ull;
  return {mixed, ~mixed};
}

// Units are 16 bytes of the global tensor [seq, units per token]; a rank's part starts at (firstToken, firstUnit).
__global__ void fillKernel(ulonglong2* data, Part part, uint64_t seed) {
  const uint64_t n = part.tokens * part.units;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t token = part.firstToken + i / part.units, unit = part.firstUnit + i % part.units;
    data[i] = unitValue(token * part.unitsOfToken + unit, seed);
  }
}

__global__ void countKernel(const ulonglong2* data, Part part, uint64_t seed, unsigned long long* wrong) {
  const uint64_t n = part.tokens * part.units;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t token = part.firstToken + i / part.units, unit = part.firstUnit + i % part.units;
    const ulonglong2 expected = unitValue(token * part.unitsOfToken + unit, seed);
    if (data[i].x != expected.x || data[i].y != expected.y) atomicAdd(wrong, 1ull);
  }
}

// [tokens][peer][units] <-> [peer][tokens][units]
__global__ void permuteKernel(const ulonglong2* in, ulonglong2* out, uint32_t tokens, uint32_t peers, uint32_t units,
                              bool pack) {
  const uint64_t n = uint64_t{tokens} * peers * units;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t line = i / units, unit = i % units, token = line / peers, peer = line % peers;
    const uint64_t packed = (peer * tokens + token) * units + unit;
    if (pack)
      out[packed] = in[i];
    else
      out[i] = in[packed];
  }
}

__global__ void delayKernel(uint64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

constexpr int kBlocks = 132 * 8, kThreadsPerBlock = 256;

}  // namespace

void fill(void* data, const Part& part, uint64_t seed, cudaStream_t stream) {
  fillKernel<<<kBlocks, kThreadsPerBlock, 0, stream>>>(static_cast<ulonglong2*>(data), part, seed);
}
void countWrong(const void* data, const Part& part, uint64_t seed, unsigned long long* wrong, cudaStream_t stream) {
  countKernel<<<kBlocks, kThreadsPerBlock, 0, stream>>>(static_cast<const ulonglong2*>(data), part, seed, wrong);
}
void permute(const void* in, void* out, uint32_t tokens, uint32_t peers, uint32_t units, bool pack,
             cudaStream_t stream) {
  permuteKernel<<<kBlocks, kThreadsPerBlock, 0, stream>>>(static_cast<const ulonglong2*>(in),
                                                          static_cast<ulonglong2*>(out), tokens, peers, units, pack);
}
void delay(uint64_t nanoseconds, cudaStream_t stream) {
  delayKernel<<<1, 1, 0, stream>>>(nanoseconds);
}

void launchVariant(const device::Exchange& exchange, int inFlight, int threads, cudaStream_t stream) {
  using device::DeviceMemory;
  const auto kernel = inFlight == 2   ? &device::exchangeKernel<2, DeviceMemory>
                      : inFlight == 4 ? &device::exchangeKernel<4, DeviceMemory>
                                      : &device::exchangeKernel<8, DeviceMemory>;
  kernel<<<exchange.ctas, threads, 0, stream>>>(exchange);
}

}  // namespace ulysses::testing
