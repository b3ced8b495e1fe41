// CLOCK_MONOTONIC: one clock for all ranks of a host, so that their times can be compared.
#pragma once

#include <time.h>

#include <cstdint>

namespace ulysses::perf {

inline int64_t nowNs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

}  // namespace ulysses::perf
