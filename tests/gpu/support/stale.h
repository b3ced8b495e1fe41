// Looks at memory at the very moment a flag says that it has been written.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/exchange.h"

namespace ulysses::testing {

// Reads `data`, so that whatever a GPU keeps of it is old; waits until all of `peer` has landed (device/flags.h, the
// flag of CTA 0); reads it again in the same kernel, and adds to `stale` the number of words that are not `expected`.
void countStale(const device::Channel& channel, int peer, const uint32_t* data, uint64_t words, uint32_t expected,
                unsigned long long* stale, cudaStream_t stream);

}  // namespace ulysses::testing
