// The cast of a float32 shard before its gather, from raw bits to raw bits: to nearest even; every NaN becomes one. The
// same on host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/work.h"

struct CUstream_st;

namespace ulysses::device {

ULYSSES_HD constexpr uint16_t bfloat16Of(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  // A carry out of the mantissa is the next power.
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

ULYSSES_HD constexpr uint16_t float16Of(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  if (magnitude > 0x7f800000u) return 0x7e00;
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65536 and more
  const uint32_t exponent = magnitude >> 23;
  uint32_t kept = 0, lost = 0, half = 0;
  if (exponent >= 113) {  // normal from 2^-14: the exponent's bias goes from 127 to 15
    kept = (magnitude - (112u << 23)) >> 13;
    lost = magnitude & 0x1fffu;
    half = 0x1000u;
  } else if (exponent >= 102) {  // units of 2^-24; below half of one all is lost
    const uint32_t shift = 126 - exponent, mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    kept = mantissa >> shift;
    lost = mantissa & ((1u << shift) - 1);
    half = 1u << (shift - 1);
  }
  if (lost > half || (lost == half && half != 0 && (kept & 1) != 0)) ++kept;  // up to infinity, by the same carry
  return static_cast<uint16_t>(sign | kept);
}

// Both return a cudaError_t, 0 being success; neither synchronises with the device. The first loads the kernel on the
// current device. `in` and `out` are device memory.
int loadCast();
int launchCast(const void* in, void* out, size_t count, bool toBfloat16, CUstream_st* stream);

}  // namespace ulysses::device
