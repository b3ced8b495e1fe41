#include "plan/launch_shape.h"

#include <algorithm>

#include "base/checked.h"
#include "device/work.h"

namespace ulysses {
namespace {

constexpr size_t kLeastTileBytes = size_t{8} << 10;  // fewer CTAs rather than smaller tiles
constexpr size_t kBytesPerCta = size_t{4} << 10;     // below, another CTA costs more than it moves

}  // namespace

LaunchShape launchShape(const LaunchFacts& f) {
  LaunchShape shape;
  // All CTAs of all ranks on a device must be resident at once: they wait for each other.
  uint32_t most = std::max<uint32_t>(1, f.residentCtas / static_cast<uint32_t>(std::max(1, f.ranksPerDevice)));
  most = std::min(most, kDefaultCtas);
  if (f.maxCtas != 0) most = std::min(most, f.maxCtas);
  const size_t slotsPerCta = static_cast<size_t>(f.nranks - 1) * device::kSlots;
  if (slotsPerCta != 0)
    most = static_cast<uint32_t>(std::clamp<size_t>(f.stagingLimit / (slotsPerCta * kLeastTileBytes), 1, most));
  const size_t send = f.largestPayload * static_cast<size_t>(f.nranks);
  shape.small = f.largestPayload <= f.smallBytes;
  shape.ctas = static_cast<uint32_t>(std::clamp<size_t>(ceilDiv(send, kBytesPerCta), 1, most));
  const size_t slots = slotsPerCta * shape.ctas;
  if (slots != 0)
    shape.tileBytes = std::min(kDefaultTileBytes, f.stagingLimit / slots) / device::kUnit * device::kUnit;
  shape.stagingBytes = slots * shape.tileBytes;
  return shape;
}

}  // namespace ulysses
