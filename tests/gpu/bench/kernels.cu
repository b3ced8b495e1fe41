#include "gpu/bench/kernels.h"

#include <cuda_runtime.h>

#include "device/exchange.cuh"

namespace ulysses::testing {

namespace {

// A CTA has a tile of 64 x 64, a thread 4 x 4 of it.
constexpr int kTile = 64, kDepth = 16, kEach = 4, kSide = kTile / kEach;
__global__ void __launch_bounds__(kSide* kSide)
    multiplyKernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, uint32_t n) {
  __shared__ float rows[kDepth][kTile], columns[kDepth][kTile];
  const uint32_t x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const uint64_t row = uint64_t{blockIdx.y} * kTile, column = uint64_t{blockIdx.x} * kTile;
  float sum[kEach][kEach] = {};
  for (uint32_t k = 0; k < n; k += kDepth) {
    for (uint32_t i = threadIdx.x; i < kTile * kDepth; i += kSide * kSide) {
      rows[i % kDepth][i / kDepth] = a[(row + i / kDepth) * n + k + i % kDepth];
      columns[i / kTile][i % kTile] = b[uint64_t{k + i / kTile} * n + column + i % kTile];
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) sum[i][j] += rows[d][y * kEach + i] * columns[d][x * kEach + j];
    __syncthreads();
  }
  for (int i = 0; i < kEach; ++i)
    for (int j = 0; j < kEach; ++j) c[(row + y * kEach + i) * n + column + x * kEach + j] = sum[i][j];
}

__global__ void delayKernel(uint64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

}  // namespace

void multiply(const float* a, const float* b, float* c, uint32_t n, cudaStream_t stream) {
  multiplyKernel<<<dim3(n / kTile, n / kTile), kSide * kSide, 0, stream>>>(a, b, c, n);
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
