// Owns every registration of a rank, counts its bytes against the cap, and knows where the peers' parts are mapped.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "window/provider.h"

namespace ulysses {

// A place in a window, the same on all ranks: window 0 means "not in a window".
struct Location {
  uint64_t offset = 0;
  uint32_t window = 0;
  uint32_t reserved = 0;
  bool plain() const { return window == 0; }
};

class Registrar {
 public:
  // `capBytes`: the smallest of all ranks.
  Registrar(int rank, int nranks, std::unique_ptr<WindowProvider> provider, size_t capBytes)
      : rank_(rank), nranks_(nranks), provider_(std::move(provider)), cap_(capBytes) {}

  const char* provider() const { return provider_->name(); }
  size_t capBytes() const { return cap_; }
  size_t usedBytes() const { return used_; }
  size_t freeBytes() const { return cap_ - used_; }
  // ulyssesOutOfMemory, with wanted, used and cap, where `bytes` more would pass the cap. Local.
  Status fits(size_t bytes) const;

  // Collective, after every rank has been found to fit. The new window's number is the same on all ranks: the smallest
  // that no rank uses any more. Where windows are symmetric, each has and counts as much as the rank that asks for most,
  // and its memory goes when the last rank has given it back.
  Status allocate(size_t bytes, ControlChannel& channel, Deadline deadline, uint32_t* window);
  // Likewise of the caller's own memory, which has been found to be adoptable on every rank.
  Status adopt(void* ptr, size_t bytes, ControlChannel& channel, Deadline deadline, uint32_t* window);
  // What is wrong with [ptr, ptr + bytes) as a window of the caller's memory. Local.
  Status adoptable(const void* ptr, size_t bytes) const;

  // Where [ptr, ptr + bytes) lies in this rank's own windows. Local.
  Location locate(const void* ptr, size_t bytes) const;
  std::byte* address(int rank, Location location) const;
  std::byte* base(int rank, uint32_t window) const { return address(rank, {0, window, 0}); }

  // The window of new memory that starts at `ptr`; 0 where there is none.
  uint32_t allocatedAt(const void* ptr) const;
  // Local: gives this rank's part of a window back. Peers drop it when this rank announces it.
  void release(uint32_t window);
  // Up to `most` windows this rank has released and not yet announced to its peers. Each announcement, the own included,
  // goes through drop() on all ranks in the same round.
  std::span<const uint32_t> unannounced(size_t most) const;
  void drop(int rank, uint32_t window);
  // A window of the library's own, on all ranks at once: nobody has to be told.
  void retire(uint32_t window);

  size_t liveWindows() const;

 private:
  struct Window {
    std::vector<WindowPart> parts;
    size_t bytes = 0;        // this rank's, 0 once released
    size_t counted = 0;      // of the cap
    int dropped = 0;         // ranks that have given their part back, as all ranks know
    bool adopted = false;    // the caller's memory
    bool symmetric = false;  // unmapped as a whole
  };

  // Collective: the most that a rank asks for, where every rank's cap allows it.
  Status widest(size_t* bytes, ControlChannel& channel, Deadline deadline) const;
  uint32_t keep(Window window);
  void giveBack(Window& window);
  void bury(WindowPart& part);

  int rank_, nranks_;
  std::unique_ptr<WindowProvider> provider_;
  const size_t cap_;
  std::atomic<size_t> used_{0};  // read from other threads by the info calls
  std::map<uint32_t, Window> windows_;
  std::map<uintptr_t, uint32_t> starts_;  // this rank's own parts, by address
  std::vector<uint32_t> unannounced_;
  std::vector<std::shared_ptr<void>> graveyard_;  // to be unmapped when the provider may
};

}  // namespace ulysses
