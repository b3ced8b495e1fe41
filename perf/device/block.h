// A block of a model, in a nutshell: looks at its parameters, and takes time. Plain C++; the results are cudaError_t.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace ulysses::perf {

// Adds what param/look.h says of the bytes to `*sum`, in device memory.
int launchLook(const void* data, size_t bytes, uint64_t visit, uint64_t* sum, CUstream_st* stream);

// One CTA that lasts as long: other kernels find the rest of the GPU free.
int launchBusy(int us, CUstream_st* stream);

}  // namespace ulysses::perf
