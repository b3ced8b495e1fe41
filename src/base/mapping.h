// Memory that other processes can map: an anonymous memory file (no name, no debris, no /dev/shm limit).
#pragma once

#include <cstddef>
#include <memory>

#include "base/fd.h"
#include "base/status.h"

namespace ulysses {

class Mapping {
 public:
  // New zeroed memory, every page reserved and mapped before it returns, so that a later store cannot fail.
  // ulyssesOutOfMemory gives the wanted and the available bytes.
  static Result<std::shared_ptr<Mapping>> create(size_t bytes);
  // Another rank's memory.
  static Result<std::shared_ptr<Mapping>> open(UniqueFd fd, size_t bytes);

  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  Mapping(UniqueFd fd, std::byte* data, size_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  UniqueFd fd_;
  std::byte* data_;
  size_t bytes_;
};

}  // namespace ulysses
