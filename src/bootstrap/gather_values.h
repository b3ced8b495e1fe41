// Everybody's value of a plain type, over any allgather of blobs.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"

namespace ulysses {

// Collective. `gather(blob, blobs)` is an allgather that gives everybody's blob by rank.
template <class T, class Gather>
Status gatherValues(const T& mine, std::vector<T>& all, Gather gather) {
  static_assert(std::is_trivially_copyable_v<T>);
  Bytes blob(sizeof mine);
  std::memcpy(blob.data(), &mine, sizeof mine);
  std::vector<Bytes> blobs;
  ULYSSES_TRY(gather(std::as_const(blob), blobs));
  all.assign(blobs.size(), T{});
  for (size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].size() != sizeof mine)
      return Status(ulyssesInternalError,
                    formatText("rank {} sent {} bytes where {} belong", r, blobs[r].size(), sizeof mine));
    std::memcpy(&all[r], blobs[r].data(), sizeof mine);
  }
  return {};
}

template <class T>
Status gatherValues(const T& mine, std::vector<T>& all, ControlChannel& channel, Deadline deadline) {
  return gatherValues(mine, all, [&](const Bytes& blob, std::vector<Bytes>& blobs) {
    return channel.allgather(blob, blobs, deadline);
  });
}

}  // namespace ulysses
