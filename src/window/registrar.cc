#include "window/registrar.h"

#include <algorithm>

#include "base/format.h"
#include "bootstrap/gather_values.h"

namespace ulysses {

Status Registrar::fits(size_t bytes) const {
  if (bytes <= freeBytes()) return {};
  return Status(ulyssesOutOfMemory,
                formatText("{} more window bytes wanted, {} used, the cap is {} (ULYSSES_WINDOW_CAP, "
                            "ulyssesConfig_t.windowCapBytes)",
                            bytes, used_, cap_));
}

Status Registrar::widest(size_t* bytes, ControlChannel& channel, Deadline deadline) const {
  struct Wish {
    uint64_t bytes, free;
  };
  std::vector<Wish> wishes;
  ULYSSES_TRY(gatherValues(Wish{*bytes, freeBytes()}, wishes, channel, deadline));
  for (const Wish& w : wishes) *bytes = std::max<size_t>(*bytes, w.bytes);
  for (size_t r = 0; r < wishes.size(); ++r)
    if (*bytes > wishes[r].free)
      return Status(ulyssesOutOfMemory,
                    formatText("rank {}: {} more window bytes wanted by a rank, which all register alike, and {} are "
                               "free under the cap (ULYSSES_WINDOW_CAP, ulyssesConfig_t.windowCapBytes)",
                               r, *bytes, wishes[r].free));
  return {};
}

Status Registrar::allocate(size_t bytes, ControlChannel& channel, Deadline deadline, uint32_t* window) {
  Window made;
  made.bytes = made.counted = bytes;
  made.symmetric = provider_->symmetric();
  graveyard_.clear();
  if (made.symmetric) ULYSSES_TRY(widest(&made.counted, channel, deadline));
  ULYSSES_TRY(provider_->allocate(made.counted, channel, made.parts, deadline));
  *window = keep(std::move(made));
  if (bytes == 0) release(*window);  // nothing that could be given back later
  return {};
}

Status Registrar::adopt(void* ptr, size_t bytes, ControlChannel& channel, Deadline deadline, uint32_t* window) {
  Window made;
  made.bytes = made.counted = bytes;
  made.adopted = true;
  graveyard_.clear();
  ULYSSES_TRY(provider_->adopt(ptr, bytes, channel, made.parts, deadline));
  *window = keep(std::move(made));
  return {};
}

Status Registrar::adoptable(const void* ptr, size_t bytes) const {
  ULYSSES_TRY(provider_->adopts());
  if (ptr == nullptr && bytes != 0) return Status(ulyssesInvalidArgument, formatText("buff is NULL for {} bytes", bytes));
  const auto begin = reinterpret_cast<uintptr_t>(ptr);
  if (bytes > UINTPTR_MAX - begin) return Status(ulyssesInvalidArgument, formatText("{} bytes at {} reach beyond all memory", bytes, ptr));
  ULYSSES_TRY(fits(bytes));
  for (const auto& [start, window] : starts_)
    if (bytes != 0 && begin < start + windows_.at(window).bytes && start < begin + bytes)
      return Status(ulyssesInvalidArgument, formatText("[{}, +{}) lies in a window already, or reaches into one", ptr, bytes));
  return {};
}

// The number is the smallest that no rank uses any more.
uint32_t Registrar::keep(Window made) {
  uint32_t window = 1;
  while (windows_.count(window) != 0) ++window;
  if (made.bytes != 0) starts_[reinterpret_cast<uintptr_t>(made.parts[static_cast<size_t>(rank_)].base)] = window;
  used_ += made.counted;
  windows_[window] = std::move(made);
  return window;
}

Location Registrar::locate(const void* ptr, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(ptr);
  auto it = starts_.upper_bound(address);
  if (it == starts_.begin()) return {};
  --it;
  const size_t offset = address - it->first, size = windows_.at(it->second).bytes;
  if (offset > size || bytes > size - offset) return {};
  return {offset, it->second, 0};
}

std::byte* Registrar::address(int rank, Location location) const {
  return windows_.at(location.window).parts[static_cast<size_t>(rank)].base + location.offset;
}

uint32_t Registrar::allocatedAt(const void* ptr) const {
  const auto it = starts_.find(reinterpret_cast<uintptr_t>(ptr));
  return it == starts_.end() || windows_.at(it->second).adopted ? 0 : it->second;
}

void Registrar::release(uint32_t window) {
  giveBack(windows_.at(window));
  unannounced_.push_back(window);
}

void Registrar::giveBack(Window& w) {
  if (w.bytes != 0) starts_.erase(reinterpret_cast<uintptr_t>(w.parts[static_cast<size_t>(rank_)].base));
  used_ -= w.counted;
  w.bytes = w.counted = 0;
  if (!w.symmetric) bury(w.parts[static_cast<size_t>(rank_)]);
}

void Registrar::bury(WindowPart& part) {
  if (part.keep && !provider_->unmapsAnytime()) graveyard_.push_back(std::move(part.keep));
  part = {};
}

std::span<const uint32_t> Registrar::unannounced(size_t most) const {
  return {unannounced_.data(), std::min(most, unannounced_.size())};
}

void Registrar::drop(int rank, uint32_t window) {
  const auto it = windows_.find(window);
  if (it == windows_.end()) return;
  if (rank == rank_) unannounced_.erase(std::find(unannounced_.begin(), unannounced_.end(), window));
  else if (!it->second.symmetric) bury(it->second.parts[static_cast<size_t>(rank)]);
  if (++it->second.dropped < nranks_) return;
  for (WindowPart& part : it->second.parts) bury(part);
  windows_.erase(it);
}

void Registrar::retire(uint32_t window) {
  Window& w = windows_.at(window);
  giveBack(w);
  for (WindowPart& part : w.parts) bury(part);
  windows_.erase(window);
  std::erase(unannounced_, window);
}

size_t Registrar::liveWindows() const {
  return static_cast<size_t>(
      std::count_if(windows_.begin(), windows_.end(), [](const auto& w) { return w.second.bytes > 0; }));
}

}  // namespace ulysses
