// Memory of an operand: plain, or in a window that the peers write directly.
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"
#include "common/library.h"

namespace ulysses::perf {

class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { release(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(comm_, other.comm_);
    return *this;
  }

  // Zero bytes give no memory.
  static Status allocate(Buffer& buffer, size_t bytes);
  // Collective, of the same size on all ranks.
  static Status allocateWindow(Buffer& buffer, size_t bytes, const Communicator& comm);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void release();

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  const Communicator* comm_ = nullptr;  // set for a window
};

// Writes one byte of every cache line back: no page fault is left for what is measured next, and inputs lie as the code
// that computes them leaves them, changed, in this processor's cache.
void touch(std::byte* data, size_t bytes);

// One pass over the memory with stores that bypass the caches where the processor has them.
void streamingCopy(std::byte* out, const std::byte* in, size_t bytes);

}  // namespace ulysses::perf
