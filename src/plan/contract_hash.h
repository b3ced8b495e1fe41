// A hash over what must be equal on all ranks where no record of it is exchanged.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace ulysses {

// FNV-1a; never 0, which marks a call that is wrong on its rank.
inline uint64_t contractHash(std::initializer_list<uint64_t> values) {
  uint64_t hash = 0xcbf29ce484222325;
  for (uint64_t value : values)
    for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (value & 0xff)) * 0x100000001b3;
  return hash | 1;
}

}  // namespace ulysses
