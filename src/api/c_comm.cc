// C entry points: communicators and groups.
#include "base/format.h"

#include <algorithm>
#include <cstring>

#include <ulysses/ulysses_nccl.h>

#include "api/group.h"
#include "api/handles.h"
#include "api/outputs.h"
#include "bootstrap/control_page.h"
#include "topology/probe.h"
#include "transport/fallback_entry.h"

namespace ulysses {
namespace {

Deadline initDeadline(const Config& config) {
  return Deadline::afterMs(config.initTimeoutMs(Parameters::fromEnvironment()));
}

Status checkRanks(int rank, int nranks) {
  if (nranks < 1 || nranks > ControlPage::kMaxRanks)
    return Status(ulyssesInvalidArgument, formatText("nranks is {}, not 1 to {}", nranks, ControlPage::kMaxRanks));
  if (rank < 0 || rank >= nranks)
    return Status(ulyssesInvalidArgument, formatText("rank is {}, not 0 to {}", rank, nranks - 1));
  return {};
}

Status checkPlace(const ulyssesComm_t* comm) {
  return comm != nullptr ? Status() : Status(ulyssesInvalidArgument, "comm is NULL");
}

// Makes a communicator and its handle, now or at the group's end. `connect` gives the rank's way to its peers: what is
// wrong on this rank is told them there.
Status initialise(ulyssesComm_t* comm, int rank, int nranks, const Config& config,
                  std::function<Result<Allgather>(Deadline)> connect) {
  if (comm != nullptr) *comm = nullptr;
  auto job = [=, connect = std::move(connect)]() -> Status {
    ULYSSES_ASSIGN(const Allgather addresses, connect(initDeadline(config)));
    ULYSSES_ASSIGN(auto object, Communicator::create(rank, nranks, addresses, config, checkPlace(comm)));
    *comm = makeHandle<ulyssesComm>(std::move(object));
    return {};
  };
  if (!group::active()) return job();
  group::add(nullptr, std::move(job));
  return {};
}

// Makes a CUDA device the thread's, and the one before again when it ends. -1: leaves it as it is.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) : before_(device >= 0 ? currentCudaDevice() : -1) { setCurrentCudaDevice(device); }
  ~CurrentDevice() { setCurrentCudaDevice(before_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_;
};

// Which device each rank is to be on; empty where no device memory can come of it.
Result<std::vector<int>> devicesOf(int ndev, const int* devlist, const Config& config) {
  const MemoryChoice memory = Parameters::fromEnvironment().memory;
  const bool host =
      memory == MemoryChoice::Host || (memory == MemoryChoice::Auto && config.values.memory == ulyssesMemoryHost);
  const int gpus = host ? 0 : visibleGpuCount();
  std::vector<int> devices;
  for (int r = 0; r < ndev && gpus > 0; ++r) {
    devices.push_back(devlist != nullptr ? devlist[r] : r);
    if (devices.back() < 0 || devices.back() >= gpus)
      return Status(ulyssesInvalidArgument,
                    formatText("rank {} is to be on device {}, and this process sees {} (devices may "
                               "repeat in devlist)",
                               r, devices.back(), gpus));
  }
  return devices;
}

// A group runs every rank of CommInitAll at once. A rank that fails before it meets the others gives up its end.
Status initAll(ulyssesComm_t* comms, int ndev, const int* devlist, const Config& config) {
  ULYSSES_TRY(checkPlace(comms));
  ULYSSES_TRY(checkRanks(0, ndev));
  ULYSSES_TRY(config.status);
  ULYSSES_ASSIGN(const std::vector<int> devices, devicesOf(ndev, devlist, config));
  std::vector<Allgather> ends = inProcessAllgather(ndev, initDeadline(config));
  group::start();
  Status status;
  for (int r = 0; r < ndev && status.ok(); ++r) {
    const CurrentDevice device(devices.empty() ? -1 : devices[static_cast<size_t>(r)]);
    status = initialise(&comms[r], r, ndev, config,
                        [end = std::move(ends[static_cast<size_t>(r)])](Deadline) -> Result<Allgather> { return end; });
  }
  const Status ended = group::end();
  return status.ok() ? ended : status;
}

// The fallback of libulysses_mpi, behind its C door.
class ForeignFallback final : public Fallback {
 public:
  explicit ForeignFallback(const ulyssesInternalTransport& t) : transport_(t) {}
  ~ForeignFallback() override { transport_.release(transport_.context); }
  const char* name() const override { return transport_.name; }
  Status exchange(const Transfer& transfer) override {
    char text[256] = "";
    const int code = transport_.exchange(transport_.context, &transfer, text, sizeof text);
    return code == 0 ? Status() : Status(static_cast<ulyssesResult_t>(code), text);
  }

 private:
  ulyssesInternalTransport transport_;
};

Status initOob(ulyssesComm_t* comm, const ulyssesOob_t* oob, const Config& config, std::unique_ptr<Fallback> fallback) {
  if (comm != nullptr) *comm = nullptr;
  if (oob == nullptr) return Status(ulyssesInvalidArgument, "oob is NULL");
  Status local = checkRanks(oob->rank, oob->nranks);
  // Without a number of ranks there is no room for the peers' blocks, and so no way to tell them.
  if (!local.ok() && !checkRanks(0, oob->nranks).ok()) return local;
  if (local.ok()) local = checkPlace(comm);
  ULYSSES_ASSIGN(auto object, Communicator::create(oob->rank, oob->nranks, callerAllgather(*oob), config,
                                                   std::move(local), std::move(fallback)));
  *comm = makeHandle<ulyssesComm>(std::move(object));
  return {};
}

}  // namespace
}  // namespace ulysses

using namespace ulysses;

extern "C" {

ulyssesResult_t ulyssesGetUniqueId(ulyssesUniqueId* id) {
  return guarded([&]() -> Status {
    if (id == nullptr) return Status(ulyssesInvalidArgument, "id is NULL");
    ULYSSES_ASSIGN(*id, startRendezvous());
    return {};
  });
}

ulyssesResult_t ulyssesCommInitRank(ulyssesComm_t* comm, int nranks, ulyssesUniqueId id, int rank) {
  return ulyssesCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

ulyssesResult_t ulyssesCommInitRankConfig(ulyssesComm_t* comm, int nranks, ulyssesUniqueId id, int rank,
                                          const ulyssesConfig_t* config) {
  return guarded([&] {
    // A single rank meets the rendezvous as well: there may be others that were told another nranks.
    return initialise(comm, rank, nranks, Config(config), [id, rank, nranks](Deadline deadline) -> Result<Allgather> {
      Result<Allgather> joined = joinRendezvous(id, rank, nranks, deadline);
      const Status local = checkRanks(rank, nranks);
      return joined.ok() || local.ok() || joined.status().code() == ulyssesInvalidArgument ? joined : local;
    });
  });
}

ulyssesResult_t ulyssesCommInitAll(ulyssesComm_t* comms, int ndev, const int* devlist) {
  return ulyssesCommInitAllConfig(comms, ndev, devlist, nullptr);
}

ulyssesResult_t ulyssesCommInitAllConfig(ulyssesComm_t* comms, int ndev, const int* devlist,
                                         const ulyssesConfig_t* config) {
  return guarded([&] { return initAll(comms, ndev, devlist, Config(config)); });
}

ulyssesResult_t ulyssesCommInitOob(ulyssesComm_t* comm, const ulyssesOob_t* oob, const ulyssesConfig_t* config) {
  return guarded([&] { return initOob(comm, oob, Config(config), nullptr); });
}

ulyssesResult_t ulyssesInternalTransport_v1(ulyssesComm_t* comm, const ulyssesOob_t* oob, const ulyssesConfig_t* config,
                                            const ulyssesInternalTransport* transport) {
  return guarded([&]() -> Status {
    if (comm != nullptr) *comm = nullptr;
    if (transport->refusal != nullptr) return Status(transport->refusalCode, transport->refusal);
    auto fallback = std::make_unique<ForeignFallback>(*transport);
    if (transport->version != ULYSSES_VERSION_CODE)
      return Status(ulyssesInvalidUsage, formatText("libulysses_mpi is of version {}, libulysses of {}",
                                                    transport->version, ULYSSES_VERSION_CODE));
    return initOob(comm, oob, Config(config), std::move(fallback));
  });
}

ulyssesResult_t ulyssesCommInitNccl(ulyssesComm_t* comm, struct ncclComm* nccl, const ulyssesConfig_t* config) {
  return guarded([&]() -> Status {
    if (comm != nullptr) *comm = nullptr;
    if (nccl == nullptr) return Status(ulyssesInvalidArgument, "nccl is NULL");
    ULYSSES_ASSIGN(const NcclRanks ranks, ncclRanks(nccl));
    const CurrentDevice device(ranks.device);
    ULYSSES_ASSIGN(auto object, Communicator::create(ranks.rank, ranks.nranks, ranks.allgather, Config(config),
                                                     checkPlace(comm), nullptr, nccl));
    *comm = makeHandle<ulyssesComm>(std::move(object));
    return {};
  });
}

ulyssesResult_t ulyssesCommSplit(ulyssesComm_t comm, int color, int key, ulyssesComm_t* newcomm,
                                 const ulyssesConfig_t* config) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Communicator> c, open(comm, "comm"));
    if (newcomm != nullptr) *newcomm = nullptr;
    auto job = [=, wanted = config != nullptr ? Config(config) : c->config()]() -> Status {
      Status local = newcomm != nullptr ? wanted.status : Status(ulyssesInvalidArgument, "newcomm is NULL");
      ULYSSES_ASSIGN(auto object, c->split(color, key, wanted, std::move(local)));
      if (object) *newcomm = makeHandle<ulyssesComm>(std::move(object));
      return {};
    };
    if (!group::active()) return job();
    group::add(c.get(), std::move(job));
    return {};
  });
}

ulyssesResult_t ulyssesCommFinalize(ulyssesComm_t comm) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(auto c, open(comm, "comm"));
    return c->finalize();
  });
}

ulyssesResult_t ulyssesCommDestroy(ulyssesComm_t comm) {
  return guarded([&]() -> Status {
    if (comm == nullptr) return {};
    ULYSSES_ASSIGN(auto c, open(comm, "comm"));
    // The rank is gone for its peers when the last plan or memory of the communicator is.
    if (!group::active()) {
      c.reset();
      closeHandle(comm);
      return {};
    }
    comm->mark = 0;  // no second call of the group finds it alive
    group::add(c.get(), [comm]() -> Status {
      closeHandle(comm);
      return {};
    });
    return {};
  });
}

ulyssesResult_t ulyssesCommAbort(ulyssesComm_t comm) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(auto c, open(comm, "comm"));
    c->dumpOnce("aborted here");
    c->abort();
    closeHandle(comm);
    return {};
  });
}

ulyssesResult_t ulyssesCommGetAsyncError(ulyssesComm_t comm, ulyssesResult_t* asyncError) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(auto c, open(comm, "comm"));
    if (asyncError == nullptr) return Status(ulyssesInvalidArgument, "asyncError is NULL");
    *asyncError = report(c->asyncError());
    return {};
  });
}

ulyssesResult_t ulyssesCommCount(ulyssesComm_t comm, int* count) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(auto c, open(comm, "comm"));
    if (count == nullptr) return Status(ulyssesInvalidArgument, "count is NULL");
    *count = c->nranks();
    return {};
  });
}

ulyssesResult_t ulyssesCommUserRank(ulyssesComm_t comm, int* rank) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(auto c, open(comm, "comm"));
    if (rank == nullptr) return Status(ulyssesInvalidArgument, "rank is NULL");
    *rank = c->rank();
    return {};
  });
}

ulyssesResult_t ulyssesCommCuDevice(ulyssesComm_t comm, int* device) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(auto c, open(comm, "comm"));
    if (device == nullptr) return Status(ulyssesInvalidArgument, "device is NULL");
    *device = c->device();
    return {};
  });
}

ulyssesResult_t ulyssesCommGetInfo(ulyssesComm_t comm, ulyssesCommInfo_t* info) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(auto c, open(comm, "comm"));
    ulyssesCommInfo_t full = ULYSSES_COMM_INFO_INITIALIZER;
    c->describe(full);
    return copyOut(full, info, "info");
  });
}

ulyssesResult_t ulyssesCommDump(ulyssesComm_t comm, const char* path) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(auto c, open(comm, "comm"));
    return c->dump(path);
  });
}

ulyssesResult_t ulyssesGroupStart(void) {
  return guarded([]() -> Status {
    group::start();
    return {};
  });
}

ulyssesResult_t ulyssesGroupEnd(void) {
  return guarded([] { return group::end(); });
}

}  // extern "C"
