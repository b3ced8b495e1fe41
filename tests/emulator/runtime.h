// A stand-in for CUDA's runtime on host memory, for the tests of everything around the kernels where there is no GPU:
// streams are threads that do one thing after another, events and captures order them as CUDA does, device memory of
// other processes is mapped by handles. kernels.cc does what the kernels do. It knows what the library asks of CUDA and
// no more, and nothing of time: only a GPU shows that the kernels themselves are right, and how fast they are.
#pragma once

#include <cstddef>
#include <functional>

struct CUstream_st;

namespace ulysses::emulator {

// Behind what the stream has been given, or into the graph that it records. A cudaError_t.
int enqueue(CUstream_st* stream, std::function<void()> work);
// The same for a kernel: the stream's GPU must be current.
int launch(CUstream_st* stream, std::function<void()> work);

int currentGpu();
// Made so far, in this process.
int eventsMade();
// Whether kernels of a GPU may use what lies there: its own memory, mapped pinned memory, what it was let in to.
bool reaches(int device, const void* ptr);

// The allocation of cudaMalloc that an address lies in; false where there is none.
bool allocationOf(const void* ptr, unsigned long long* base, size_t* bytes);
// Whether the driver's virtual memory management has mapped something there, and memory of which GPU (-1: a hidden one).
bool isMapped(const void* ptr, int* device);
// Likewise, and whether a GPU has been let in.
bool letsIn(const void* ptr, int device, bool* in);

}  // namespace ulysses::emulator
