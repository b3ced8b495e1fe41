// The accesses of the copy loops on the device.
#pragma once

#include "device/copy.h"

namespace ulysses::device {

// Plain accesses: hints that spare L1 made the copy slower, and so did more than four units in flight (measured on
// H200). A slot's bytes are read after an acquire, which leaves no stale line in L1.
struct DeviceMemory {
  static __device__ __forceinline__ Word load(uint64_t address) {
    Word word;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(word.low), "=l"(word.high) : "l"(address));
    return word;
  }
  static __device__ __forceinline__ void store(uint64_t address, const Word& word) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(word.low), "l"(word.high) : "memory");
  }
  static __device__ __forceinline__ void copyNarrow(uint64_t dst, uint64_t src, uint32_t bytes) {
    const uint64_t all = dst | src | bytes;
    if (all % 8 == 0) {
      copyAs<uint64_t>(dst, src, bytes);
    } else if (all % 4 == 0) {
      copyAs<uint32_t>(dst, src, bytes);
    } else if (all % 2 == 0) {
      copyAs<uint16_t>(dst, src, bytes);
    } else {
      copyAs<uint8_t>(dst, src, bytes);
    }
  }

 private:
  template <class Element>
  static __device__ __forceinline__ void copyAs(uint64_t dst, uint64_t src, uint32_t bytes) {
    for (uint32_t at = 0; at < bytes; at += sizeof(Element)) {
      *reinterpret_cast<Element*>(dst + at) = *reinterpret_cast<const volatile Element*>(src + at);
    }
  }
};

}  // namespace ulysses::device
