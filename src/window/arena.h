// Who has which part of a stretch of memory. Pure: the same on all ranks that take and give back in the same order.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "base/checked.h"

namespace ulysses {

class Arena {
 public:
  static constexpr size_t kAlignment = size_t{64} << 10;

  explicit Arena(size_t bytes) : bytes_(bytes) {}

  // The first place with room for `bytes` (1 or more); nothing where there is none.
  std::optional<size_t> take(size_t bytes) {
    size_t offset = 0;
    for (const auto& [at, size] : taken_) {
      if (bytes <= at - offset) break;
      offset = alignUp(at + size, kAlignment);
    }
    if (offset > bytes_ || bytes > bytes_ - offset) return std::nullopt;
    taken_[offset] = bytes;
    return offset;
  }
  void giveBack(size_t offset) { taken_.erase(offset); }

 private:
  const size_t bytes_;
  std::map<size_t, size_t> taken_;  // by offset
};

}  // namespace ulysses
