// Which parameter groups stay and which pass through: the same on all ranks, because all ranks give the same facts.
// Pure.
#pragma once

#include <ulysses/ulysses.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace ulysses {

struct Residency {
  ulyssesResidency_t kind = ulyssesResidencyPersistent;
  size_t budgetBytes = 0;  // of pinned groups; the smallest of all ranks
  size_t prefetchDepth = 0;
};

// What ULYSSES_RESIDENCY says ("persistent", "budget:BYTES", "transient"; "" changes nothing), over the configuration.
Residency overridden(const Residency& configured, const std::string& text);

struct ResidencyPlan {
  // A forward visits its groups in a cycle, where whatever was used last would be thrown out just before it is wanted
  // again. A fixed prefix always hits: groups [0, pinned) keep storage of their own.
  size_t pinned = 0;
  size_t pinnedBytes = 0;
  // The others take turns in a ring of equal slots.
  size_t slots = 0, slotBytes = 0;

  friend bool operator==(const ResidencyPlan&, const ResidencyPlan&) = default;
};
ResidencyPlan planResidency(std::span<const size_t> groupBytes, const Residency& residency);

// What a slot of the ring holds, to choose the one that a group may take.
struct SlotUse {
  bool held = false;     // acquired, or being filled
  bool awaited = false;  // prefetched, not acquired yet
  uint64_t filled = 0;   // the number of the gather that filled it; 0: empty
};
// The slot that was filled longest ago of those that nobody needs; one that is awaited only where `desperate`. -1 where
// there is none. Hits count for nothing here: gathers are agreed on, hits are not.
int chooseSlot(std::span<const SlotUse> slots, bool desperate);

}  // namespace ulysses
