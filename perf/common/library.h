// The library under test, its handles as RAII, its results as Status. It is the one this program is linked with or,
// with --lib, another build as well: everything the binaries measure calls through a Library.
#pragma once

#include <ulysses/ulysses.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "common/ranks.h"
#include "device/device.h"

namespace ulysses::perf {

#define ULYSSES_PERF_CALLS(call)                                                                                     \
  call(GetVersion) call(GetErrorString) call(GetLastError) call(GetUniqueId) call(CommInitRankConfig)                \
      call(CommDestroy) call(CommGetInfo) call(MemAlloc) call(MemFree) call(A2A) call(AllGather) call(AlltoAll)      \
          call(GroupStart) call(GroupEnd) call(PlanCreate) call(PlanGetInfo) call(PlanDestroy) call(ParamCommCreate) \
              call(ParamCommDestroy) call(ParamGroupAdd) call(ParamCommit) call(ParamAcquire) call(ParamRelease)     \
                  call(ParamPrefetch) call(ParamPublish) call(ParamGetStats)

// The entry points of one build.
class Library {
 public:
  static const Library& linked();
  // Another build beside it; stays loaded.
  static Result<Library> load(const std::string& path);

#define ULYSSES_PERF_CALL(name) decltype(&::ulysses##name) name = nullptr;
  ULYSSES_PERF_CALLS(ULYSSES_PERF_CALL)
#undef ULYSSES_PERF_CALL

  std::string version() const;
  Status status(ulyssesResult_t result, const char* call) const;
};

class Communicator {
 public:
  explicit Communicator(const Library& library) : library_(library), comm_(nullptr, library.CommDestroy) {}

  // Collective over all ranks of the run, by a unique id of rank 0's. Windows may take `windowBytes` (0: the library's
  // default). On device memory of `device` where there is one, else on host memory.
  Status open(Rank& rank, int timeoutSeconds, size_t windowBytes, Device* device = nullptr);

  const Library& library() const { return library_; }
  ulyssesComm_t get() const { return comm_.get(); }
  Device* device() const { return device_; }  // null on host memory
  ulyssesStream_t stream() const { return device_ ? device_->stream() : nullptr; }
  ulyssesCommInfo_t info() const;
  Status status(ulyssesResult_t result, const char* call) const { return library_.status(result, call); }

  // How many pieces the library cuts a staged exchange of this geometry into. Collective.
  Result<int> stagedChunks(const ulyssesA2ADesc_t& desc) const;

 private:
  const Library& library_;
  Device* device_ = nullptr;
  std::unique_ptr<ulyssesComm, decltype(&ulyssesCommDestroy)> comm_;
};

// Groups of sharded parameters. The communicator outlives them.
class Params {
 public:
  explicit Params(const Communicator& comm) : comm_(comm), params_(nullptr, lib().ParamCommDestroy) {}

  Status open(const ulyssesParamConfig_t& config);
  Status add(const std::vector<ulyssesParamDesc_t>& descs);
  Status commit() { return comm_.status(lib().ParamCommit(params_.get()), "ulyssesParamCommit"); }
  Status acquire(int group, void** ptrs) {
    return comm_.status(lib().ParamAcquire(params_.get(), group, ptrs, comm_.stream()), "ulyssesParamAcquire");
  }
  Status release(int group) {
    return comm_.status(lib().ParamRelease(params_.get(), group, comm_.stream()), "ulyssesParamRelease");
  }
  Status prefetch(int group) {
    return comm_.status(lib().ParamPrefetch(params_.get(), group, comm_.stream()), "ulyssesParamPrefetch");
  }
  Status publish(int group) {
    return comm_.status(lib().ParamPublish(params_.get(), group, comm_.stream()), "ulyssesParamPublish");
  }
  ulyssesParamStats_t stats() const;

 private:
  const Library& lib() const { return comm_.library(); }

  const Communicator& comm_;
  std::unique_ptr<ulyssesParamComm, decltype(&ulyssesParamCommDestroy)> params_;
};

}  // namespace ulysses::perf
