// C entry points: persistent parameters.
#include "api/handles.h"
#include "api/outputs.h"

using namespace ulysses;

namespace {

Status streamOf(const ParamCommunicator& params, ulyssesStream_t stream) {
  return params.communicator()->onDevice() ? Status() : checkStream(stream);
}

}  // namespace

extern "C" {

ulyssesResult_t ulyssesParamCommCreate(ulyssesParamComm_t* params, ulyssesComm_t comm,
                                       const ulyssesParamConfig_t* config) {
  return guarded([&]() -> Status {
    if (params == nullptr) return Status(ulyssesInvalidArgument, "params is NULL");
    *params = nullptr;
    ULYSSES_ASSIGN(std::shared_ptr<Communicator> c, open(comm, "comm"));
    ULYSSES_ASSIGN(auto object, ParamCommunicator::create(std::move(c), config));
    *params = makeHandle<ulyssesParamComm>(std::move(object));
    return {};
  });
}

ulyssesResult_t ulyssesParamGroupAdd(ulyssesParamComm_t params, int n, const ulyssesParamDesc_t descs[], int* group) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(const auto p, open(params, "params"));
    return p->add(std::span(descs, n > 0 && descs != nullptr ? static_cast<size_t>(n) : 0), group);
  });
}

ulyssesResult_t ulyssesParamCommit(ulyssesParamComm_t params) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(const auto p, open(params, "params"));
    return nowOrLater(p->communicator(), [p] { return p->commit(); });
  });
}

ulyssesResult_t ulyssesParamAcquire(ulyssesParamComm_t params, int group, void* ptrs[], ulyssesStream_t stream) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(const auto p, open(params, "params"));
    return nowOrLater(p->communicator(), [=] { return p->acquire(group, ptrs, stream, streamOf(*p, stream)); });
  });
}

ulyssesResult_t ulyssesParamRelease(ulyssesParamComm_t params, int group, ulyssesStream_t stream) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(const auto p, open(params, "params"));
    ULYSSES_TRY(streamOf(*p, stream));
    return p->release(group, stream);
  });
}

ulyssesResult_t ulyssesParamPrefetch(ulyssesParamComm_t params, int group, ulyssesStream_t stream) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(const auto p, open(params, "params"));
    return p->prefetch(group, stream, streamOf(*p, stream));
  });
}

ulyssesResult_t ulyssesParamPublish(ulyssesParamComm_t params, int group, ulyssesStream_t stream) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(const auto p, open(params, "params"));
    ULYSSES_TRY(streamOf(*p, stream));
    return p->publish(group, stream);
  });
}

ulyssesResult_t ulyssesParamReshard(ulyssesParamComm_t params, int group, ulyssesStream_t stream) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(const auto p, open(params, "params"));
    ULYSSES_TRY(streamOf(*p, stream));
    return p->reshard(group, stream);
  });
}

ulyssesResult_t ulyssesParamSetBudget(ulyssesParamComm_t params, size_t bytes) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(const auto p, open(params, "params"));
    return p->setBudget(bytes);
  });
}

ulyssesResult_t ulyssesParamGetStats(ulyssesParamComm_t params, ulyssesParamStats_t* stats) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(const auto p, open(params, "params"));
    ulyssesParamStats_t full = ULYSSES_PARAM_STATS_INITIALIZER;
    p->describe(full);
    return copyOut(full, stats, "stats");
  });
}

ulyssesResult_t ulyssesParamCommDestroy(ulyssesParamComm_t params) {
  return guarded([&]() -> Status {
    if (params == nullptr) return {};
    ULYSSES_TRY(open(params, "params").status());
    closeHandle(params);
    return {};
  });
}

}  // extern "C"
