// The cast of a float32 shard before its gather: to nearest even; every NaN becomes one.
#pragma once

#include <ulysses/ulysses.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "device/cast.h"

namespace ulysses {

constexpr uint16_t toBfloat16(float value) {
  return device::bfloat16Of(std::bit_cast<uint32_t>(value));
}
constexpr uint16_t toFloat16(float value) {
  return device::float16Of(std::bit_cast<uint32_t>(value));
}

// `type` is ulyssesBfloat16 or ulyssesFloat16.
void castShard(const float* in, uint16_t* out, size_t count, ulyssesDataType_t type);

}  // namespace ulysses
