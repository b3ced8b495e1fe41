// The library's handles and results, as RAII and Status.
#pragma once

#include <ulysses/ulysses.h>

#include <string>
#include <utility>

#include "base/status.h"
#include "common/ranks.h"

namespace ulysses::perf {

inline Status libraryStatus(ulyssesResult_t result, const char* call) {
  if (result == ulyssesSuccess) return {};
  std::string text = std::string(call) + ": " + ulyssesGetErrorString(result);
  if (const char* detail = ulyssesGetLastError(); detail && *detail) text += std::string(": ") + detail;
  return {result, std::move(text)};
}

class Communicator {
 public:
  Communicator() = default;
  ~Communicator() {
    if (comm_) ulyssesCommDestroy(comm_);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Collective over all ranks of the run, by a unique id of rank 0's.
  Status open(Rank& rank, int timeoutSeconds) {
    ulyssesUniqueId id{};
    Status status;
    if (rank.first()) status = libraryStatus(ulyssesGetUniqueId(&id), "ulyssesGetUniqueId");
    ULYSSES_TRY(rank.agree(status));
    id = rank.allgather(id)[0];
    ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
    config.memory = ulyssesMemoryHost;
    if (timeoutSeconds > 0) config.timeoutMs = timeoutSeconds * 1000;
    return rank.agree(libraryStatus(ulyssesCommInitRankConfig(&comm_, rank.count(), id, rank.id(), &config),
                                    "ulyssesCommInitRankConfig"));
  }
  ulyssesComm_t get() const { return comm_; }
  ulyssesCommInfo_t info() const {
    ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
    ulyssesCommGetInfo(comm_, &info);
    return info;
  }

 private:
  ulyssesComm_t comm_ = nullptr;
};

}  // namespace ulysses::perf
