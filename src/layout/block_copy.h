// The one idea: an exchange is a set of 2-D block copies. Pure: no CUDA, no MPI, no topology.
#pragma once

#include <cstddef>

namespace ulysses::layout {

// Copy `rows` rows of `rowBytes` bytes from src + srcOffset (rows srcPitch apart) to dst + dstOffset (dstPitch apart).
// All in bytes; offsets are from the start of the sender's input and of the receiver's output.
struct BlockCopy {
  size_t rows = 0, rowBytes = 0;
  size_t srcOffset = 0, srcPitch = 0;
  size_t dstOffset = 0, dstPitch = 0;

  size_t bytes() const { return rows * rowBytes; }
  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

}  // namespace ulysses::layout
