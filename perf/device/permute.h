// The layout change that an exchange without fusion needs, as a kernel. Plain C++; the result is a cudaError_t.
#pragma once

#include <cstddef>

struct CUstream_st;

namespace ulysses::perf {

int launchPermute(void* to, const void* from, size_t tokens, size_t peers, size_t units, bool back,
                  CUstream_st* stream);

}  // namespace ulysses::perf
