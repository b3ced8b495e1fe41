// Memory of an operand: plain, or in a window that the peers write directly.
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"
#include "common/library.h"
#include "device/device.h"

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
    std::swap(device_, other.device_);
    return *this;
  }

  // Zero bytes give no memory. Of a device where there is one, else host memory.
  static Status allocate(Buffer& buffer, size_t bytes, Device* device = nullptr);
  // Collective, of the same size on all ranks.
  static Status allocateWindow(Buffer& buffer, size_t bytes, const Communicator& comm);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void release();

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  const Communicator* comm_ = nullptr;  // set for a window
  Device* device_ = nullptr;            // set for device memory that is none
};

// Buffers that take turns: copies of one, `stride` bytes apart.
class Turns {
 public:
  Turns(std::byte* first, size_t stride = 0, size_t copies = 1) : first_(first), stride_(stride), copies_(copies) {}  // NOLINT
  std::byte* now() const { return first_ + at_ * stride_; }
  void next() { at_ = (at_ + 1) % copies_; }

  // As many copies of `bytes` as hold twice what the device's cache does; one where it is not to be cold.
  static size_t copiesFor(const Device* device, bool cold, size_t bytes);

 private:
  std::byte* first_;
  size_t stride_, copies_, at_ = 0;
};

// Writes one byte of every cache line back: no page fault is left for what is measured next, and inputs lie as the code
// that computes them leaves them, changed, in this processor's cache.
void touch(std::byte* data, size_t bytes);

// As many bytes as an exchange moves, the fastest way there is: on a device, else by streamingCopy.
void plainCopy(Device* device, std::byte* out, const std::byte* in, size_t bytes);

// One pass over the memory with stores that bypass the caches where the processor has them.
void streamingCopy(std::byte* out, const std::byte* in, size_t bytes);

}  // namespace ulysses::perf
