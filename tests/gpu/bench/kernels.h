// Kernels of the benchmarks alone: compute, delays, variants of the exchange.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/exchange.h"
#include "gpu/support/pattern.h"

namespace ulysses::testing {

// C = A * B of n x n floats, n a multiple of 64: a plain tiled kernel without tensor cores. It stands for compute that fills
// the GPU, not for a fast GEMM.
void multiply(const float* a, const float* b, float* c, uint32_t n, cudaStream_t stream);
void delay(uint64_t nanoseconds, cudaStream_t stream);

// The direct and staged kernel with another number of units in flight (2, 4, 8) or threads (at most 512).
void launchVariant(const device::Exchange& exchange, int inFlight, int threads, cudaStream_t stream);

}  // namespace ulysses::testing
