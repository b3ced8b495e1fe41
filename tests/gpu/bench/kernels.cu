#include "gpu/bench/kernels.h"

#include <cuda_runtime.h>

#include "device/exchange.cuh"

namespace ulysses::testing {

namespace {

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
