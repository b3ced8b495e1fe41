// The exchange without fusion, on device memory: a permute kernel, and something that moves contiguous parts.
#pragma once

#include <functional>
#include <vector>

#include "a2a/geometry.h"
#include "common/ranks.h"
#include "device/device.h"

namespace ulysses::perf {

class PermutedExchange {
 public:
  // Splits that are even in units of 16 bytes.
  static bool possible(int nranks, const Geometry& geometry);

  // Moves, for each of `planes`, this rank's part for each peer to where that peer has the part from this rank: both
  // sides are [plane][peer][bytes]. Collective; what follows on the stream finds it done.
  using Move = std::function<Status(const std::byte* from, std::byte* to, size_t planes, size_t bytes)>;

  // `scratch` is as large as the operand.
  PermutedExchange(int nranks, Device& device, const Geometry& geometry, std::byte* in, std::byte* out,
                   std::byte* scratch, Move move);

  // Collective; complete on return.
  Status run();

 private:
  Device& device_;
  const bool scatter_;
  const size_t planes_, tokens_, peers_, units_;  // of a rank; units of 16 bytes of a token for one peer
  std::byte *const in_, *const out_, *const scratch_;
  const Move move_;
};

// Plain copies into the peers' memory, for ranks that are threads of one process. Collective: `targets` are all places
// that parts will be moved to.
PermutedExchange::Move copiesToPeers(Rank& rank, Device& device, const std::vector<std::byte*>& targets);

}  // namespace ulysses::perf
