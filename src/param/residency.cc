#include "param/residency.h"

#include <algorithm>

#include "base/parameters.h"

namespace ulysses {

Residency overridden(const Residency& configured, const std::string& text) {
  constexpr std::string_view kBudget = "budget:";
  Residency r = configured;
  if (text == "persistent") r.kind = ulyssesResidencyPersistent;
  if (text == "transient") r.kind = ulyssesResidencyTransient;
  if (text.substr(0, kBudget.size()) == kBudget) {
    r.kind = ulyssesResidencyBudget;
    r.budgetBytes = parseBytes(text.substr(kBudget.size())).value_or(0);
  }
  return r;
}

ResidencyPlan planResidency(std::span<const size_t> groupBytes, const Residency& residency) {
  ResidencyPlan plan;
  const bool keepsAll = residency.kind == ulyssesResidencyPersistent;
  const size_t budget = residency.kind == ulyssesResidencyBudget ? residency.budgetBytes : 0;
  while (plan.pinned < groupBytes.size()) {
    const size_t bytes = groupBytes[plan.pinned];
    if (!keepsAll && (residency.kind == ulyssesResidencyTransient || bytes > budget - plan.pinnedBytes)) break;
    plan.pinnedBytes += bytes;
    ++plan.pinned;
  }
  const std::span<const size_t> streamed = groupBytes.subspan(plan.pinned);
  if (streamed.empty()) return plan;
  plan.slots = residency.prefetchDepth < streamed.size() ? residency.prefetchDepth + 1 : streamed.size();
  plan.slotBytes = *std::max_element(streamed.begin(), streamed.end());
  return plan;
}

int chooseSlot(std::span<const SlotUse> slots, bool desperate) {
  int best = -1;
  const auto better = [&](const SlotUse& a, const SlotUse& b) {
    return a.awaited != b.awaited ? b.awaited : a.filled < b.filled;
  };
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].held || (slots[i].awaited && !desperate)) continue;
    if (best < 0 || better(slots[i], slots[static_cast<size_t>(best)])) best = static_cast<int>(i);
  }
  return best;
}

}  // namespace ulysses
