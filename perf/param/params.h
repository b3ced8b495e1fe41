// The library's parameter communicator, as RAII and Status.
#pragma once

#include <ulysses/ulysses.h>

#include <vector>

#include "common/library.h"

namespace ulysses::perf {

class Params {
 public:
  Params() = default;
  ~Params() {
    if (params_) ulyssesParamCommDestroy(params_);
  }
  Params(const Params&) = delete;
  Params& operator=(const Params&) = delete;

  Status open(ulyssesComm_t comm, const ulyssesParamConfig_t& config) {
    return libraryStatus(ulyssesParamCommCreate(&params_, comm, &config), "ulyssesParamCommCreate");
  }
  Status add(const std::vector<ulyssesParamDesc_t>& descs) {
    int group = 0;
    return libraryStatus(ulyssesParamGroupAdd(params_, static_cast<int>(descs.size()), descs.data(), &group),
                         "ulyssesParamGroupAdd");
  }
  Status commit() { return libraryStatus(ulyssesParamCommit(params_), "ulyssesParamCommit"); }
  Status acquire(int group, void** ptrs) {
    return libraryStatus(ulyssesParamAcquire(params_, group, ptrs, nullptr), "ulyssesParamAcquire");
  }
  Status release(int group) {
    return libraryStatus(ulyssesParamRelease(params_, group, nullptr), "ulyssesParamRelease");
  }
  Status prefetch(int group) {
    return libraryStatus(ulyssesParamPrefetch(params_, group, nullptr), "ulyssesParamPrefetch");
  }
  Status publish(int group) {
    return libraryStatus(ulyssesParamPublish(params_, group, nullptr), "ulyssesParamPublish");
  }
  ulyssesParamStats_t stats() const {
    ulyssesParamStats_t stats = ULYSSES_PARAM_STATS_INITIALIZER;
    ulyssesParamGetStats(params_, &stats);
    return stats;
  }

 private:
  ulyssesParamComm_t params_ = nullptr;
};

}  // namespace ulysses::perf
