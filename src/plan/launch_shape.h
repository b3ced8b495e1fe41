// How an exchange on device memory is launched: pure, and the same on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ulysses {

struct LaunchFacts {
  size_t largestPayload = 0;  // the most bytes any rank has for any other
  int nranks = 1, ranksPerDevice = 1;
  uint32_t residentCtas = 0;  // of one device, the fewest of all ranks
  uint32_t maxCtas = 0;       // the smallest limit of all ranks; 0: none
  size_t stagingLimit = 0;    // most bytes of staging
  size_t smallBytes = 0;      // payload per pair that the small path carries
};

struct LaunchShape {
  bool small = false;
  uint32_t ctas = 1;
  size_t tileBytes = 0;     // of a staging slot; 0: the limit leaves no room for one
  size_t stagingBytes = 0;  // (nranks - 1) * ctas * slots * tileBytes
  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

constexpr uint32_t kDefaultCtas = 36;
constexpr size_t kDefaultTileBytes = size_t{128} << 10;

LaunchShape launchShape(const LaunchFacts& facts);

}  // namespace ulysses
