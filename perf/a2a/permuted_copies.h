// The exchange without fusion, on device memory: a permute kernel and plain copies to the peers.
#pragma once

#include <vector>

#include "a2a/geometry.h"
#include "common/ranks.h"
#include "device/device.h"

namespace ulysses::perf {

class PermutedCopies {
 public:
  // Ranks that are threads of one process, and splits that are even in units of 16 bytes. Collective.
  static bool possible(Rank& rank, const Geometry& geometry);

  // Collective. `scratch` is as large as the operand.
  PermutedCopies(Rank& rank, Device& device, const Geometry& geometry, std::byte* in, std::byte* out,
                 std::byte* scratch);

  // Collective; complete on return.
  Status run();

 private:
  // Each rank's part for each peer, plane by plane: from here, packed by peer, to the peers' memory packed by sender.
  void copyParts(const std::byte* from, const std::vector<std::byte*>& to);

  Rank& rank_;
  Device& device_;
  const bool scatter_;
  const size_t planes_, tokens_, peers_, units_;  // of a rank; units of 16 bytes of a token for one peer
  std::byte *const in_, *const out_, *const scratch_;
  std::vector<std::byte*> outs_, scratches_;  // of all ranks
};

}  // namespace ulysses::perf
