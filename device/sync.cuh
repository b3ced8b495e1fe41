// Flags between GPUs: release stores and acquire loads at system scope, and spins that an abort ends.
#pragma once

#include "device/exchange.h"

namespace ulysses::device {

__device__ __forceinline__ void storeRelease(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t loadAcquire(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t loadRelaxed(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Lines, relaxed where they carry payload, which needs no order, and with it for entries.
__device__ __forceinline__ uint64_t withEpoch(uint64_t payload, uint32_t epoch) {
  return static_cast<uint64_t>(epoch) << 32 | static_cast<uint32_t>(payload);
}
__device__ __forceinline__ void storeLine(Line* line, uint64_t payload, uint32_t epoch) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(line), "l"(withEpoch(payload, epoch)),
               "l"(withEpoch(payload >> 32, epoch))
               : "memory");
}
__device__ __forceinline__ void storeLineRelease(Line* line, uint64_t payload, uint32_t epoch) {
  asm volatile("st.release.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(line), "l"(withEpoch(payload, epoch)),
               "l"(withEpoch(payload >> 32, epoch))
               : "memory");
}
__device__ __forceinline__ Line asLine(uint64_t low, uint64_t high) {
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
          static_cast<uint32_t>(high >> 32)};
}
__device__ __forceinline__ Line loadLine(const Line* line) {
  uint64_t low, high;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(line) : "memory");
  return asLine(low, high);
}
__device__ __forceinline__ Line loadLineAcquire(const Line* line) {
  uint64_t low, high;
  asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(line) : "memory");
  return asLine(low, high);
}
__device__ __forceinline__ bool isOf(const Line& line, uint32_t epoch) {
  return line.lowEpoch == epoch && line.highEpoch == epoch;
}
__device__ __forceinline__ uint64_t payloadOf(const Line& line) {
  return static_cast<uint64_t>(line.high) << 32 | line.low;
}

// Spins until arrived(); false when the host aborts. The abort word lies across PCIe: it is looked at rarely.
constexpr uint32_t kSpinsPerAbortCheck = 1024;
template <class Arrived>
__device__ __forceinline__ bool await(const HostWords* host, const Arrived& arrived) {
  for (uint32_t spins = 1; !arrived(); ++spins) {
    if (spins % kSpinsPerAbortCheck == 0 && loadRelaxed(&host->abort) != 0) return false;
  }
  return true;
}

// (epoch, count) flags grow, and epochs wrap: compare by difference.
__device__ __forceinline__ uint64_t flagValue(uint32_t epoch, uint32_t count) {
  return static_cast<uint64_t>(epoch) << 32 | count;
}
__device__ __forceinline__ bool reached(const uint64_t* flag, uint64_t value) {
  return static_cast<int64_t>(loadAcquire(flag) - value) >= 0;
}

}  // namespace ulysses::device
