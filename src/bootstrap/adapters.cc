// Allgathers that others provide.
#include "base/format.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/frame.h"

namespace ulysses {

Allgather callerAllgather(const ulyssesOob_t& oob) {
  return [oob](const void* send, void* recv, size_t bytes) -> Status {
    if (oob.allgather == nullptr) return {ulyssesInvalidArgument, "ulyssesOob_t: allgather is NULL"};
    if (oob.nranks < 1) return {ulyssesInvalidArgument, formatText("ulyssesOob_t: nranks is {}", oob.nranks)};
    const int code = oob.allgather(oob.context, send, recv, bytes);
    if (code == 0) return {};
    return {ulyssesRemoteError,
            formatText("the caller's allgather returned {} on rank {} ({} bytes from each of {} ranks)", code, oob.rank,
                       bytes, oob.nranks)};
  };
}

Allgather channelAllgather(ControlChannel& channel, Deadline deadline) {
  return [&channel, deadline](const void* send, void* recv, size_t bytes) -> Status {
    const auto* block = static_cast<const std::byte*>(send);
    std::vector<Bytes> all;
    ULYSSES_TRY(channel.allgather(Bytes(block, block + bytes), all, deadline));
    return copyEqualBlocks(all, recv, bytes);
  };
}

}  // namespace ulysses
