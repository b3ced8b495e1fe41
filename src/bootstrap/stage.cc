#include "bootstrap/stage.h"

#include "base/format.h"

#include <cstring>

namespace ulysses {

Status agreeStage(ControlChannel& channel, const Status& mine, Deadline deadline) {
  const int code = mine.code();
  Bytes blob(sizeof code + mine.message().size());
  std::memcpy(blob.data(), &code, sizeof code);
  std::memcpy(blob.data() + sizeof code, mine.message().data(), mine.message().size());
  std::vector<Bytes> all;
  ULYSSES_TRY(channel.allgather(blob, all, deadline));
  for (size_t r = 0; r < all.size(); ++r) {
    int theirs = 0;
    if (all[r].size() < sizeof theirs)
      return Status(ulyssesInternalError, formatText("rank {} sent a malformed stage outcome", r));
    std::memcpy(&theirs, all[r].data(), sizeof theirs);
    if (theirs == ulyssesSuccess) continue;
    const std::string text(reinterpret_cast<const char*>(all[r].data()) + sizeof theirs, all[r].size() - sizeof theirs);
    return Status(static_cast<ulyssesResult_t>(theirs), formatText("rank {}: {}", r, text));
  }
  return {};
}

}  // namespace ulysses
