// The cheapest clock there is, for notes that somebody may read later.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace ulysses {

inline int64_t steadyNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Counts at a steady rate of its own: the processor's time stamp counter, or nanoseconds.
inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(steadyNs());
#endif
}

// Turns ticks into the monotonic clock's nanoseconds, by what both showed then and show now.
class TickScale {
 public:
  TickScale() : ticks0_(ticks()), ns0_(steadyNs()) {}
  int64_t ns(uint64_t t) const {
    const double rate = static_cast<double>(steadyNs() - ns0_) / static_cast<double>(ticks() - ticks0_ + 1);
    return ns0_ + static_cast<int64_t>(static_cast<double>(static_cast<int64_t>(t - ticks0_)) * rate);
  }

 private:
  const uint64_t ticks0_;
  const int64_t ns0_;
};

}  // namespace ulysses
