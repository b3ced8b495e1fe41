// The cast of a float32 shard before its gather: to nearest even; every NaN becomes one.
#pragma once

#include <ulysses/ulysses.h>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace ulysses {

constexpr uint16_t toBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >>
                               16);  // a carry out of the mantissa is the next power
}

constexpr uint16_t toFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
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

// `type` is ulyssesBfloat16 or ulyssesFloat16.
void castShard(const float* in, uint16_t* out, size_t count, ulyssesDataType_t type);

}  // namespace ulysses
