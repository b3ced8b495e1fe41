// Data of the check: the raw bits of an element follow from its global index and a salt, so any misplaced, stale or
// missing element shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device/device.h"

namespace ulysses::perf {

// Outputs are filled with this before a checked call.
inline constexpr int kPoison = 0xEE;
inline void poison(Device* device, std::byte* data, size_t bytes) {
  if (bytes == 0) return;
  if (device) return device->set(data, kPoison, bytes);
  std::memset(data, kPoison, bytes);
}

inline uint64_t elementBits(uint64_t index, uint64_t salt) {
  uint64_t x = (index + salt) * 0x9E3779B97F4A7C15u;
  x ^= x >> 32;
  return x * 0xD6E8FEB86659FD93u >> 24;
}

template <class T>
void fillElements(std::byte* out, size_t n, uint64_t firstIndex, uint64_t salt) {
  for (size_t i = 0; i < n; ++i) {
    const T bits = static_cast<T>(elementBits(firstIndex + i, salt));
    std::memcpy(out + i * sizeof(T), &bits, sizeof(T));
  }
}

template <class T>
size_t countWrongElements(const std::byte* in, size_t n, uint64_t firstIndex, uint64_t salt) {
  size_t wrong = 0;
  for (size_t i = 0; i < n; ++i) {
    const T expected = static_cast<T>(elementBits(firstIndex + i, salt));
    wrong += std::memcmp(in + i * sizeof(T), &expected, sizeof(T)) != 0;
  }
  return wrong;
}

// Elements firstIndex .. firstIndex + n - 1, of 1, 2, 4 or 8 bytes.
inline void fill(std::byte* out, size_t elementBytes, size_t n, uint64_t firstIndex, uint64_t salt) {
  switch (elementBytes) {
    case 1:
      return fillElements<uint8_t>(out, n, firstIndex, salt);
    case 2:
      return fillElements<uint16_t>(out, n, firstIndex, salt);
    case 4:
      return fillElements<uint32_t>(out, n, firstIndex, salt);
    default:
      return fillElements<uint64_t>(out, n, firstIndex, salt);
  }
}

inline size_t countWrong(const std::byte* in, size_t elementBytes, size_t n, uint64_t firstIndex, uint64_t salt) {
  switch (elementBytes) {
    case 1:
      return countWrongElements<uint8_t>(in, n, firstIndex, salt);
    case 2:
      return countWrongElements<uint16_t>(in, n, firstIndex, salt);
    case 4:
      return countWrongElements<uint32_t>(in, n, firstIndex, salt);
    default:
      return countWrongElements<uint64_t>(in, n, firstIndex, salt);
  }
}

}  // namespace ulysses::perf
