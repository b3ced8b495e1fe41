#include "plan/launch_shape.h"

#include <algorithm>

#include "base/checked.h"
#include "device/work.h"

namespace ulysses {
namespace {

constexpr size_t kLeastTileBytes = size_t{8} << 10;  // fewer CTAs rather than smaller tiles
constexpr size_t kBytesPerCta = size_t{4} << 10;     // below, another CTA costs more than it moves
constexpr uint32_t kModestCtas = 8;                  // for 32 KiB a rank

}  // namespace

LaunchShape launchShape(const LaunchFacts& f) {
  LaunchShape shape;
  uint32_t most = std::max<uint32_t>(1, std::min(f.ctas, f.mostCtas));
  const size_t slotsPerCta = static_cast<size_t>(f.nranks - 1) * device::kSlots;
  shape.small = f.largestPayload <= f.smallBytes;
  shape.lines = f.largestPayload <= f.lineBytes;
  const bool slots = slotsPerCta != 0 && !shape.small && !shape.lines;
  if (slots && f.inFlightBytes != 0)
    most = static_cast<uint32_t>(std::clamp<size_t>(f.stagingLimit / (slotsPerCta * kLeastTileBytes), 1, most));
  const size_t send = f.largestPayload * static_cast<size_t>(f.nranks);
  shape.ctas = static_cast<uint32_t>(std::clamp<size_t>(ceilDiv(send, kBytesPerCta), 1, most));
  if (!slots) return shape;
  // A tile is no larger than what gives every slot of every CTA something to do: few large ones would leave CTAs idle.
  const size_t slotsPerPair = size_t{shape.ctas} * device::kSlots, allSlots = slotsPerCta * shape.ctas;
  const size_t useful = std::max(kLeastTileBytes, ceilDiv(f.largestPayload, slotsPerPair));
  const size_t wanted = alignUp(std::min(useful, ceilDiv(f.inFlightBytes, slotsPerPair)), kTileAlignment);
  shape.tileBytes = std::min(wanted, f.stagingLimit / allSlots / device::kUnit * device::kUnit);
  shape.stagingBytes = allSlots * shape.tileBytes;
  return shape;
}

Launches launchesOf(const plan::PolicyFacts& facts, const plan::PolicyChoice& choice, size_t largestPayload,
                    const LaunchRoom& room) {
  plan::PolicyFacts direct = facts;
  direct.outputsInWindows = true;
  LaunchFacts f;
  f.largestPayload = largestPayload;
  f.nranks = facts.ranks;
  f.ctas = static_cast<uint32_t>(choice.fused ? choice.ctas : choosePolicy(direct).ctas);
  f.mostCtas = room.ctas;
  f.inFlightBytes = choice.original ? largestPayload : ceilDiv(choice.stagingBytes(), static_cast<size_t>(facts.ranks));
  f.smallBytes = room.smallBytes;
  f.lineBytes = room.lineBytes;

  const bool chunked = !choice.original && !choice.tuned;
  f.stagingLimit = std::min({choice.maxWindowBytes, chunked ? room.chunkedBytes : SIZE_MAX,
                             room.windowBytes - std::min(room.windowBytes, room.besidesBytes)});
  Launches launches;
  launches.eager = launchShape(f);
  f.mostCtas = launches.eager.ctas;
  f.stagingLimit = std::min(choice.maxWindowBytes, room.recordedBytes);
  launches.recorded = launchShape(f);
  return launches;
}

CtaShare shareCtas(uint32_t wanted, uint32_t heldEager, uint32_t heldRecorded, uint32_t available) {
  CtaShare share;
  share.ctas = wanted;
  if (heldEager + available == 0) return share;
  if (wanted > heldEager) {
    share.ctas = std::min(wanted, heldEager + available);
    share.moreEager = share.ctas - heldEager;
    available -= share.moreEager;
  }
  if (share.ctas > heldRecorded && share.ctas - heldRecorded <= available) share.moreRecorded = share.ctas - heldRecorded;
  return share;
}

uint32_t modestShare(uint32_t available) {
  return std::max(available / 8, std::min(available / 4, kModestCtas));
}

}  // namespace ulysses
