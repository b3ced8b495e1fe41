// Records of 64-bit words, as ranks send them to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace ulysses {

using Words = std::vector<uint64_t>;

// Bytes behind the last whole word are left out.
inline Words wordsOf(const std::vector<std::byte>& record) {
  Words words(record.size() / sizeof(uint64_t));
  if (!words.empty()) std::memcpy(words.data(), record.data(), words.size() * sizeof(uint64_t));
  return words;
}

inline std::vector<std::byte> recordOf(const Words& words) {
  std::vector<std::byte> record(words.size() * sizeof(uint64_t));
  if (!words.empty()) std::memcpy(record.data(), words.data(), record.size());
  return record;
}

}  // namespace ulysses
