// The plain memory of the other ranks, read where it lies: by its address where they are threads of this process, else
// through the kernel (process_vm_readv) where it allows that. Saves the way through a staging window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "layout/block_copy.h"
#include "transport/host_copy.h"

namespace ulysses {

class PeerMemory {
 public:
  enum class Reach : uint8_t { None, Kernel, Address };

  // Collective: every rank finds out whom it can read by reading, and tells all. A rank that does not `allow` it
  // neither reads nor is read.
  Status explore(int rank, bool allow, ControlChannel& channel, Deadline deadline);

  // The same on all ranks; None before explore().
  Reach reach(int reader, int owner) const;
  // The same on all ranks: whether the reader is to fetch rows of at least `shortestRow` bytes from the owner's input,
  // rather than have them staged.
  bool fetches(int reader, int owner, size_t shortestRow) const;

  // Copies from the input of rank `owner`, which lies there at `src`.
  Status fetch(int owner, std::span<const layout::BlockCopy> copies, uint64_t src, std::byte* dst, Store store) const;

 private:
  Status fetchThroughKernel(int owner, std::span<const layout::BlockCopy> copies, uint64_t src, std::byte* dst) const;

  size_t nranks_ = 0;
  std::vector<Reach> reach_;    // [reader * nranks + owner]
  std::vector<uint64_t> pids_;  // [rank], as this process sees them
};

}  // namespace ulysses
