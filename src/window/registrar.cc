#include "window/registrar.h"

#include "base/format.h"

#include <algorithm>

namespace ulysses {

Status Registrar::fits(size_t bytes) const {
  if (bytes <= freeBytes()) return {};
  return Status(ulyssesOutOfMemory,
                formatText("{} more window bytes wanted, {} used, the cap is {} (ULYSSES_WINDOW_CAP, "
                            "ulyssesConfig_t.windowCapBytes)",
                            bytes, used_, cap_));
}

Status Registrar::allocate(size_t bytes, ControlChannel& channel, Deadline deadline, uint32_t* window) {
  std::vector<WindowPart> parts;
  ULYSSES_TRY(provider_->allocate(bytes, channel, parts, deadline));
  *window = next_++;
  starts_[reinterpret_cast<uintptr_t>(parts[static_cast<size_t>(rank_)].base)] = *window;
  windows_[*window] = {std::move(parts), bytes};
  used_ += bytes;
  return {};
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

Status Registrar::release(const void* ptr) {
  const auto it = starts_.find(reinterpret_cast<uintptr_t>(ptr));
  if (it == starts_.end())
    return Status(ulyssesInvalidArgument,
                  formatText("{} is not the start of memory from ulyssesMemAlloc of this communicator", ptr));
  release(it->second);
  return {};
}

void Registrar::release(uint32_t window) {
  Window& w = windows_.at(window);
  starts_.erase(reinterpret_cast<uintptr_t>(w.parts[static_cast<size_t>(rank_)].base));
  used_ -= w.bytes;
  w.bytes = 0;
  untold_.push_back(window);
  drop(rank_, window);
}

std::span<const uint32_t> Registrar::untold(size_t most) const {
  return {untold_.data(), std::min(most, untold_.size())};
}

void Registrar::drop(int rank, uint32_t window) {
  const auto it = windows_.find(window);
  if (it == windows_.end()) return;
  it->second.parts[static_cast<size_t>(rank)] = {};
  if (std::all_of(it->second.parts.begin(), it->second.parts.end(), [](const WindowPart& p) { return !p.keep; }))
    windows_.erase(it);
}

size_t Registrar::liveWindows() const {
  return static_cast<size_t>(
      std::count_if(windows_.begin(), windows_.end(), [](const auto& w) { return w.second.bytes > 0; }));
}

}  // namespace ulysses
