// What a block saw of its parameters: a line of every page, which finds any shard that is stale or in the wrong place.
// A sum, so that a GPU may add it up in any order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/work.h"

namespace ulysses::perf {

constexpr size_t kLookedAtBytes = 64, kPageBytes = 4096;

// Of the line at the start of page `page`, of `bytes` bytes; `visit` tells apart what is looked at one after the other.
ULYSSES_HD uint64_t lookAtLine(const unsigned char* line, size_t bytes, size_t page, uint64_t visit) {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15u;
  uint64_t sum = (visit * kMix) ^ page;
  for (size_t i = 0; i < bytes; ++i) {
    sum = (sum ^ line[i]) * kMix;
    sum ^= sum >> 31;
  }
  return sum;
}
ULYSSES_HD uint64_t lookAtPage(const unsigned char* data, size_t bytes, size_t page, uint64_t visit) {
  const size_t at = page * kPageBytes, left = bytes - at;
  return lookAtLine(data + at, left < kLookedAtBytes ? left : kLookedAtBytes, page, visit);
}
ULYSSES_HD size_t pagesOf(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes;
}

}  // namespace ulysses::perf
