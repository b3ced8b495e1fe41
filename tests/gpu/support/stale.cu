#include "gpu/support/stale.h"

#include <cuda_runtime.h>

#include "device/sync.cuh"

namespace ulysses::testing {
namespace {

constexpr int kBlocks = 8, kThreadsPerBlock = 256;

__device__ __forceinline__ uint32_t look(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__global__ void countStaleKernel(const __grid_constant__ device::Channel channel, int peer, const uint32_t* data,
                                 uint64_t words, uint32_t expected, unsigned long long* stale) {
  __shared__ bool arrived;
  const uint64_t first = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x, step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = first; i < words; i += step) (void)look(data + i);
  if (threadIdx.x == 0) {
    const auto* flags = reinterpret_cast<const device::Flags*>(channel.flags[channel.rank]);
    const uint64_t value = device::flagValue(device::loadRelaxed(&channel.epoch->value), device::kAllLanded);
    arrived = device::await(channel.host, [&] { return device::reached(&flags->landed[peer][0], value); });
  }
  __syncthreads();
  unsigned long long wrong = arrived ? 0 : 1;
  for (uint64_t i = first; i < words; i += step) wrong += look(data + i) != expected;
  if (wrong != 0) atomicAdd(stale, wrong);
}

}  // namespace

void countStale(const device::Channel& channel, int peer, const uint32_t* data, uint64_t words, uint32_t expected,
                unsigned long long* stale, cudaStream_t stream) {
  countStaleKernel<<<kBlocks, kThreadsPerBlock, 0, stream>>>(channel, peer, data, words, expected, stale);
}

}  // namespace ulysses::testing
