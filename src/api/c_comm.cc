// C entry points: communicators and groups.
#include "base/format.h"

#include <algorithm>
#include <cstring>

#include <ulysses/ulysses_nccl.h>

#include "api/group.h"
#include "api/handles.h"
#include "api/outputs.h"
#include "bootstrap/control_page.h"
#include "transport/fallback_entry.h"

namespace ulysses {
namespace {

constexpr int kDefaultInitTimeoutMs = 120000;

Deadline initDeadline(const ulyssesConfig_t* config) {
  const Parameters parameters = Parameters::fromEnvironment();
  const int configured = config != nullptr && config->timeoutMs != 0 ? config->timeoutMs : kDefaultInitTimeoutMs;
  return Deadline::afterMs(parameters.timeoutMs.value_or(configured));
}

Status checkRanks(const void* comm, int rank, int nranks) {
  if (comm == nullptr) return Status(ulyssesInvalidArgument, "comm is NULL");
  if (nranks < 1 || nranks > ControlPage::kMaxRanks)
    return Status(ulyssesInvalidArgument, formatText("nranks is {}, not 1 to {}", nranks, ControlPage::kMaxRanks));
  if (rank < 0 || rank >= nranks)
    return Status(ulyssesInvalidArgument, formatText("rank is {}, not 0 to {}", rank, nranks - 1));
  return {};
}

// A configuration by value, for a call that runs later.
struct ConfigCopy {
  explicit ConfigCopy(const ulyssesConfig_t* config) {
    if (config == nullptr) return;
    given = true;
    // A structure that says it is smaller than ours must not be read beyond its end; setUp() refuses it.
    std::memcpy(&value, config, std::min(sizeof value, std::max(config->size, offsetof(ulyssesConfig_t, memory))));
    if (config->commName != nullptr && config->size >= sizeof value) name = config->commName;
  }
  const ulyssesConfig_t* get() {
    if (!given) return nullptr;
    if (value.commName != nullptr) value.commName = name.c_str();
    return &value;
  }
  bool given = false;
  ulyssesConfig_t value{};
  std::string name;
};

// Makes a communicator and its handle, now or at the group's end. `connect` gives the rank's way to its peers.
Status initialise(ulyssesComm_t* comm, int rank, int nranks, const ulyssesConfig_t* config, const void* key,
                  std::function<Result<Allgather>(Deadline)> connect) {
  ULYSSES_TRY(checkRanks(comm, rank, nranks));
  *comm = nullptr;
  auto job = [=, copy = ConfigCopy(config), connect = std::move(connect)]() mutable -> Status {
    ULYSSES_ASSIGN(const Allgather addresses, connect(initDeadline(copy.get())));
    ULYSSES_ASSIGN(auto object, Communicator::create(rank, nranks, addresses, copy.get()));
    *comm = makeHandle<ulyssesComm>(std::move(object));
    return {};
  };
  if (!group::active()) return job();
  group::add(key, std::move(job));
  return {};
}

// Nobody sees these pointers again after the call; a group runs every rank of CommInitAll at once.
Status initAll(ulyssesComm_t* comms, int ndev, const int*, const ulyssesConfig_t* config) {
  ULYSSES_TRY(checkRanks(comms, 0, ndev));
  const std::vector<Allgather> ends = inProcessAllgather(ndev, initDeadline(config));
  group::start();
  Status status;
  for (int r = 0; r < ndev && status.ok(); ++r)
    status = initialise(&comms[r], r, ndev, config, nullptr,
                        [end = ends[static_cast<size_t>(r)]](Deadline) -> Result<Allgather> { return end; });
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

Status initOob(ulyssesComm_t* comm, const ulyssesOob_t* oob, const ulyssesConfig_t* config,
               std::unique_ptr<Fallback> fallback) {
  if (oob == nullptr) return Status(ulyssesInvalidArgument, "oob is NULL");
  ULYSSES_TRY(checkRanks(comm, oob->rank, oob->nranks));
  *comm = nullptr;
  ULYSSES_ASSIGN(auto object,
                 Communicator::create(oob->rank, oob->nranks, callerAllgather(*oob), config, std::move(fallback)));
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
    return initialise(comm, rank, nranks, config, nullptr, [id, rank, nranks](Deadline deadline) -> Result<Allgather> {
      if (nranks == 1) return Allgather([](const void* send, void* recv, size_t bytes) {
        std::memcpy(recv, send, bytes);
        return Status();
      });
      return joinRendezvous(id, rank, nranks, deadline);
    });
  });
}

ulyssesResult_t ulyssesCommInitAll(ulyssesComm_t* comms, int ndev, const int* devlist) {
  return ulyssesCommInitAllConfig(comms, ndev, devlist, nullptr);
}

ulyssesResult_t ulyssesCommInitAllConfig(ulyssesComm_t* comms, int ndev, const int* devlist,
                                         const ulyssesConfig_t* config) {
  return guarded([&] { return initAll(comms, ndev, devlist, config); });
}

ulyssesResult_t ulyssesCommInitOob(ulyssesComm_t* comm, const ulyssesOob_t* oob, const ulyssesConfig_t* config) {
  return guarded([&] { return initOob(comm, oob, config, nullptr); });
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
    return initOob(comm, oob, config, std::move(fallback));
  });
}

ulyssesResult_t ulyssesCommInitNccl(ulyssesComm_t* comm, struct ncclComm*, const ulyssesConfig_t*) {
  return guarded([&]() -> Status {
    if (comm == nullptr) return Status(ulyssesInvalidArgument, "comm is NULL");
    *comm = nullptr;
    return Status(ulyssesNotSupported, "this version cannot take over an NCCL communicator; use ulyssesCommInitRank");
  });
}

ulyssesResult_t ulyssesCommSplit(ulyssesComm_t comm, int color, int key, ulyssesComm_t* newcomm,
                                 const ulyssesConfig_t* config) {
  return guarded([&]() -> Status {
    ULYSSES_ASSIGN(std::shared_ptr<Communicator> c, open(comm, "comm"));
    if (newcomm != nullptr) *newcomm = nullptr;
    auto job = [=, copy = ConfigCopy(config)]() mutable -> Status {
      ULYSSES_ASSIGN(auto object, c->split(color, key, copy.get(), newcomm != nullptr ? Status() : Status(ulyssesInvalidArgument, "newcomm is NULL")));
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
