// Values by global place, written and checked on the device: for tensors too large to be checked by the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ulysses::testing {

// A rank's part of one plane [tokens, unitsOfToken], in units of 16 bytes.
struct PlanePart {
  uint64_t firstToken, tokens, firstUnit, units, unitsOfToken;
};

void fill(void* data, const PlanePart& part, uint64_t seed, cudaStream_t stream);
void countWrong(const void* data, const PlanePart& part, uint64_t seed, unsigned long long* wrong, cudaStream_t stream);

}  // namespace ulysses::testing
