// C entry points: the exchange, plans, flat collectives, windows.
#include "base/format.h"

#include "api/group.h"
#include "api/handles.h"
#include "api/outputs.h"
#include "base/datatype.h"

namespace ulysses {
namespace {

// What is wrong with the arguments by themselves.
Status checkEager(const Communicator& comm, const Contract::Geometry& g, ulyssesStream_t stream) {
  if (elementBytes(static_cast<int>(g.dtype)) == 0)
    return Status(ulyssesInvalidArgument, formatText("dtype is {}, not a ulyssesDataType_t", g.dtype));
  if (g.direction > ulyssesGatherHeads)
    return Status(ulyssesInvalidArgument, formatText("direction is {}, not a ulyssesDirection_t", g.direction));
  return comm.onDevice() ? Status() : checkStream(stream);
}

Status eager(ulyssesComm_t handle, Operation operation, Contract::Geometry geometry, const void* sendbuff,
             void* recvbuff, ulyssesStream_t stream) {
  ULYSSES_ASSIGN(const std::shared_ptr<Communicator> c, open(handle, "comm"));
  geometry.operands = 1;
  return nowOrLater(c, [=] {
    return c->runEager(operation, geometry, sendbuff, recvbuff, stream, checkEager(*c, geometry, stream));
  });
}

}  // namespace
}  // namespace ulysses

using namespace ulysses;

extern "C" {

ulyssesResult_t ulyssesA2A(const void* sendbuff, void* recvbuff, size_t batch, size_t seq, size_t heads, size_t headDim,
                           ulyssesDataType_t dtype, ulyssesDirection_t direction, ulyssesComm_t comm,
                           ulyssesStream_t stream) {
  return guarded([&] {
    Contract::Geometry g;
    g.batch = batch;
    g.seq = seq;
    g.heads = heads;
    g.headDim = headDim;
    g.dtype = dtype;
    g.direction = direction;
    return eager(comm, Operation::Exchange, g, sendbuff, recvbuff, stream);
  });
}

ulyssesResult_t ulyssesAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ulyssesDataType_t dtype,
                                 ulyssesComm_t comm, ulyssesStream_t stream) {
  return guarded([&] {
    Contract::Geometry g;
    g.batch = sendcount;
    g.dtype = dtype;
    return eager(comm, Operation::AllGather, g, sendbuff, recvbuff, stream);
  });
}

ulyssesResult_t ulyssesAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ulyssesDataType_t dtype,
                                ulyssesComm_t comm, ulyssesStream_t stream) {
  return guarded([&] {
    Contract::Geometry g;
    g.batch = count;
    g.dtype = dtype;
    return eager(comm, Operation::AllToAll, g, sendbuff, recvbuff, stream);
  });
}

ulyssesResult_t ulyssesPlanCreate(ulyssesPlan_t* plan, int n, const ulyssesA2ADesc_t descs[], ulyssesComm_t comm) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Communicator> c, open(comm, "comm"));
    if (plan != nullptr) *plan = nullptr;
    const size_t count = n > 0 && plan != nullptr && descs != nullptr ? static_cast<size_t>(n) : 0;
    // A plan agreed at the group's end: descriptors and splits are read there.
    return nowOrLater(c, [=]() -> Status {
      ULYSSES_ASSIGN(auto object, Plan::create(std::span(descs, count), c));
      *plan = makeHandle<ulyssesPlan>(std::move(object));
      return {};
    });
  });
}

ulyssesResult_t ulyssesPlanExecute(ulyssesPlan_t plan, const void* const in[], void* const out[],
                                   ulyssesStream_t stream) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Plan> p, open(plan, "plan"));
    return p->enqueue(in, out, stream);
  });
}

ulyssesResult_t ulyssesPlanInverse(ulyssesPlan_t forward, void* const boundOut[], ulyssesPlan_t* backward) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Plan> p, open(forward, "forward"));
    if (backward == nullptr) return Status(ulyssesInvalidArgument, "backward is NULL");
    (void)boundOut;  // the peers learn where outputs lie at every execution
    *backward = makeHandle<ulyssesPlan>(p->inverse());
    return {};
  });
}

ulyssesResult_t ulyssesPlanGetInfo(ulyssesPlan_t plan, ulyssesPlanInfo_t* info) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Plan> p, open(plan, "plan"));
    ulyssesPlanInfo_t full = ULYSSES_PLAN_INFO_INITIALIZER;
    p->describe(full);
    return copyOut(full, info, "info");
  });
}

ulyssesResult_t ulyssesPlanDestroy(ulyssesPlan_t plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return {};
    ULYSSES_TRY(open(plan, "plan").status());
    closeHandle(plan);
    return {};
  });
}

ulyssesResult_t ulyssesMemAlloc(void** ptr, size_t bytes, ulyssesComm_t comm) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Communicator> c, open(comm, "comm"));
    if (ptr != nullptr) *ptr = nullptr;
    return nowOrLater(c, [=] { return c->memAlloc(ptr, bytes); });
  });
}

ulyssesResult_t ulyssesMemFree(void* ptr, ulyssesComm_t comm) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Communicator> c, open(comm, "comm"));
    return c->memFree(ptr);
  });
}

ulyssesResult_t ulyssesWindowRegister(ulyssesComm_t comm, void* buff, size_t bytes, ulyssesWindow_t* win) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Communicator> c, open(comm, "comm"));
    if (win != nullptr) *win = nullptr;
    return nowOrLater(c, [=]() -> Status {
      auto window = std::make_shared<CallerWindow>(CallerWindow{c, 0});
      const Status local = win != nullptr ? Status() : Status(ulyssesInvalidArgument, "win is NULL");
      ULYSSES_TRY(c->registerWindow(buff, bytes, local, &window->number));
      *win = makeHandle<ulyssesWindow>(std::move(window));
      return {};
    });
  });
}

ulyssesResult_t ulyssesWindowDeregister(ulyssesComm_t comm, ulyssesWindow_t win) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Communicator> c, open(comm, "comm"));
    if (win == nullptr) return {};
    ULYSSES_ASSIGN(std::shared_ptr<CallerWindow> window, open(win, "win"));
    if (window->comm.lock() != c) return Status(ulyssesInvalidArgument, "win is not a window of this communicator");
    ULYSSES_TRY(c->deregisterWindow(window->number));
    closeHandle(win);
    return {};
  });
}

}  // extern "C"
