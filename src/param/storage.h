// Memory for gathered parameters: windows, which the peers write, as far as the cap has room; else plain memory.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "api/communicator.h"

namespace ulysses {

class Storage {
 public:
  struct Size {
    size_t bytes = 0, alignment = 1;
  };

  // Collective, for a call that all ranks have agreed on: storage for each of `sizes`, or the same failure on all.
  static Status allocate(Communicator& comm, std::span<const Size> sizes, std::vector<Storage>* out);

  Storage() = default;
  Storage(Storage&& other) noexcept { swap(other); }
  Storage& operator=(Storage&& other) noexcept {
    Storage(std::move(other)).swap(*this);
    return *this;
  }
  ~Storage() { release(); }

  explicit operator bool() const { return base_ != nullptr; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Storage& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(device_, other.device_);
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void release();

  Communicator* comm_ = nullptr;  // set for a window
  int device_ = -1;               // of plain device memory
  std::byte *base_ = nullptr, *data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace ulysses
