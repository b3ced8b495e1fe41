// NCCL's functions, in NCCL's place. A group's calls are launched where it ends, before what NCCL has of it: within a
// group there is no order, and one thread may drive several GPUs by it.
#include <cstdlib>
#include <exception>
#include <string_view>
#include <thread>
#include <vector>

#include <ulysses/ulysses_nccl_drop_in.h>

#include "base/parameters.h"
#include "drop_in/attachment.h"
#include "drop_in/eligible.h"
#include "drop_in/nccl_abi.h"
#include "drop_in/real_nccl.h"

namespace ulysses::drop_in {
namespace {

struct Launch {
  std::shared_ptr<Attachment> attachment;
  const Communicator::Flat* flat;
  Operation operation;
  const void* in;
  void* out;
  CUstream_st* stream;
  int run() const { return attachment->launch(*flat, operation, in, out, stream); }
};
struct Group {
  int depth = 0;
  int error = kSuccess;          // the first of a call that was taken: the group's as well, as with NCCL
  std::vector<ncclComm**> born;  // where NCCL puts communicators when the group ends
  std::vector<Launch> launches;
  std::vector<std::shared_ptr<Attachment>> aborted;  // until the group ends, and with it what they wait for
};
thread_local Group group;

// What NCCL calls of itself comes here as well, by the dynamic linker: it is no call of the program's.
thread_local int insideNccl = 0;

template <class Function, class... Arguments>
int call(Function* function, Arguments... arguments) {
  if (function == nullptr) return kInternalError;
  ++insideNccl;
  const int result = function(arguments...);
  --insideNccl;
  return result;
}

// Nothing is attached where the program wants NCCL alone.
bool wanted() {
  static const bool on = Parameters::fromEnvironment().ncclCalls;
  return on && insideNccl == 0;
}

// NCCL_COMM_BLOCKING goes before what the program says, as in NCCL.
bool blocks(const void* config = nullptr) {
  if (const char* all = std::getenv("NCCL_COMM_BLOCKING"))
    if (const std::string_view value = all; value == "0" || value == "1") return value == "1";
  const auto* head = static_cast<const ConfigHead*>(config);
  return head == nullptr || head->size < sizeof(ConfigHead) || head->blocking != 0;
}

// A child of a communicator that does not block does not either, unless it is told to.
bool childBlocks(const ncclComm* parent, const void* config) {
  return config != nullptr ? blocks(config) : attachmentOf(parent) != nullptr;
}

// Collective over each. A thread for each: one may drive all ranks of a communicator.
void attach(const std::vector<ncclComm**>& born) {
  std::vector<std::thread> threads;
  for (size_t i = 1; i < born.size(); ++i)
    threads.emplace_back([nccl = *born[i]] { keep(nccl, Attachment::make(nccl)); });
  if (!born.empty()) keep(*born[0], Attachment::make(*born[0]));
  for (std::thread& thread : threads) thread.join();
}

// NCCL has made a communicator, or will when the group ends.
int born(int result, ncclComm** comms, int count, bool blocking) {
  if (result != kSuccess || comms == nullptr || !blocking || !wanted()) return result;
  std::vector<ncclComm**> all;
  for (int i = 0; i < count; ++i) all.push_back(comms + i);
  if (group.depth > 0) {
    group.born.insert(group.born.end(), all.begin(), all.end());
    return result;
  }
  std::erase_if(all, [](ncclComm** c) { return *c == nullptr; });  // a split without a colour
  attach(all);
  return result;
}

int move(Operation operation, const void* send, void* recv, size_t count, int type, ncclComm* comm, CUstream_st* stream,
         decltype(&::ncclAllGather) real) {
  const std::shared_ptr<Attachment> attachment = wanted() ? attachmentOf(comm) : nullptr;
  if (attachment == nullptr) return call(real, send, recv, count, type, comm, stream);
  const Attachment::Taken taken = attachment->take(operation, count, type);
  if (!taken.taken) return call(real, send, recv, count, type, comm, stream);
  if (taken.error != kSuccess) {
    if (group.depth > 0 && group.error == kSuccess) group.error = taken.error;
    return taken.error;
  }
  Launch launch{attachment, taken.flat, operation, send, recv, stream};
  if (group.depth == 0) return launch.run();
  group.launches.push_back(std::move(launch));
  return kSuccess;
}

// NCCL's before it had one. A program that looks the function up finds it here with any NCCL, and may rely on it.
int sendsAndReceives(const void* send, void* recv, size_t count, int type, ncclComm* comm, CUstream_st* stream) {
  const RealNccl& real = realNccl();
  int nranks = 0;
  if (const int result = call(real.commCount, comm, &nranks); result != kSuccess) return result;
  if (const int result = call(real.groupStart); result != kSuccess) return result;
  const size_t bytes = count * elementBytes(type);
  int result = kSuccess;
  for (int p = 0; p < nranks && result == kSuccess; ++p) {
    const size_t at = static_cast<size_t>(p) * bytes;
    result = call(real.send, static_cast<const char*>(send) + at, count, type, p, comm, stream);
    if (result == kSuccess) result = call(real.recv, static_cast<char*>(recv) + at, count, type, p, comm, stream);
  }
  const int ended = call(real.groupEnd);
  return result != kSuccess ? result : ended;
}

// Ends what is under way. Launches may be behind what NCCL's own end of it frees: the attachment, which waits for them,
// outlives that.
std::shared_ptr<Attachment> aborted(ncclComm* comm) {
  std::shared_ptr<Attachment> attachment = forget(comm);
  if (attachment) attachment->abort();
  if (attachment && group.depth > 0) group.aborted.push_back(attachment);
  return attachment;
}
// And the communicator lives on, as the parent of others.
std::shared_ptr<Attachment> revoked(ncclComm* comm) {
  std::shared_ptr<Attachment> attachment = aborted(comm);
  if (attachment) keep(comm, Attachment::none());
  return attachment;
}

// Nothing thrown inside crosses into C.
template <class Body>
int guarded(Body&& body) {
  try {
    return body();
  } catch (const std::exception&) {
    return kSystemError;
  }
}

}  // namespace
}  // namespace ulysses::drop_in

using namespace ulysses;
using namespace ulysses::drop_in;

int ncclCommInitRank(ncclComm** comm, int nranks, UniqueId id, int rank) {
  return guarded([&] { return born(call(realNccl().commInitRank, comm, nranks, id, rank), comm, 1, blocks()); });
}
int ncclCommInitRankConfig(ncclComm** comm, int nranks, UniqueId id, int rank, void* config) {
  return guarded([&] {
    return born(call(realNccl().commInitRankConfig, comm, nranks, id, rank, config), comm, 1, blocks(config));
  });
}
int ncclCommInitRankScalable(ncclComm** comm, int nranks, int rank, int nIds, UniqueId* ids, void* config) {
  return guarded([&] {
    return born(call(realNccl().commInitRankScalable, comm, nranks, rank, nIds, ids, config), comm, 1, blocks(config));
  });
}
int ncclCommInitAll(ncclComm** comms, int ndev, const int* devlist) {
  return guarded([&] { return born(call(realNccl().commInitAll, comms, ndev, devlist), comms, ndev, blocks()); });
}
int ncclCommSplit(ncclComm* comm, int color, int key, ncclComm** newcomm, void* config) {
  return guarded([&] {
    const bool blocking = childBlocks(comm, config);
    return born(call(realNccl().commSplit, comm, color, key, newcomm, config), newcomm, 1, blocking);
  });
}
int ncclCommShrink(ncclComm* comm, int* excluded, int count, ncclComm** newcomm, void* config, int flags) {
  return guarded([&] {
    const auto real = realNccl().commShrink;
    const bool blocking = childBlocks(comm, config), aborts = real != nullptr && (flags & kShrinkAbort) != 0;
    std::shared_ptr<Attachment> attachment = aborts ? revoked(comm) : nullptr;
    const int result = call(real, comm, excluded, count, newcomm, config, flags);
    attachment.reset();  // what it has of the device is the child's to have
    return born(result, newcomm, 1, blocking);
  });
}
int ncclCommRevoke(ncclComm* comm, int flags) {
  return guarded([&] {
    const auto real = realNccl().commRevoke;
    const std::shared_ptr<Attachment> attachment = real != nullptr ? revoked(comm) : nullptr;
    return call(real, comm, flags);
  });
}

// What has been launched is done before, and what is called after is wrong: that is left to NCCL to say.
int ncclCommFinalize(ncclComm* comm) {
  return guarded([&] {
    if (insideNccl == 0) forget(comm).reset();
    return call(realNccl().commFinalize, comm);
  });
}
int ncclCommDestroy(ncclComm* comm) {
  return guarded([&] {
    if (insideNccl == 0) forget(comm).reset();
    return call(realNccl().commDestroy, comm);
  });
}
int ncclCommAbort(ncclComm* comm) {
  return guarded([&] {
    const std::shared_ptr<Attachment> attachment = aborted(comm);
    return call(realNccl().commAbort, comm);
  });
}
int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  return guarded([&] {
    const int result = call(realNccl().commGetAsyncError, comm, error);
    if (result != kSuccess || error == nullptr || *error != kSuccess) return result;
    if (const std::shared_ptr<Attachment> attachment = attachmentOf(comm)) *error = attachment->asyncError();
    return result;
  });
}

int ncclAllGather(const void* send, void* recv, size_t count, int type, ncclComm* comm, CUstream_st* stream) {
  return guarded(
      [&] { return move(Operation::AllGather, send, recv, count, type, comm, stream, realNccl().allGather); });
}
int ncclAlltoAll(const void* send, void* recv, size_t count, int type, ncclComm* comm, CUstream_st* stream) {
  return guarded([&] {
    const auto real = realNccl().alltoAll;
    return move(Operation::AllToAll, send, recv, count, type, comm, stream, real != nullptr ? real : sendsAndReceives);
  });
}

int ncclGroupStart() {
  const int result = call(realNccl().groupStart);
  if (result == kSuccess && insideNccl == 0) ++group.depth;
  return result;
}
int ncclGroupEnd() {
  return guarded([&] {
    if (insideNccl > 0) return call(realNccl().groupEnd);
    if (group.depth > 0) --group.depth;
    if (group.depth > 0) return call(realNccl().groupEnd);
    const std::vector<Launch> launches = std::exchange(group.launches, {});
    std::vector<ncclComm**> comms = std::exchange(group.born, {});
    const std::vector<std::shared_ptr<Attachment>> aborted = std::exchange(group.aborted, {});
    int launched = std::exchange(group.error, kSuccess);
    for (const Launch& launch : launches)
      if (const int result = launch.run(); launched == kSuccess) launched = result;
    const int result = call(realNccl().groupEnd);
    if (result == kSuccess) {
      std::erase_if(comms, [](ncclComm** c) { return *c == nullptr; });
      attach(comms);
    }
    return result != kSuccess ? result : launched;
  });
}
// Ends the group without its calls.
int ncclGroupSimulateEnd(void* info) {
  if (insideNccl == 0 && group.depth > 0) --group.depth;
  if (insideNccl == 0 && group.depth == 0) {
    group.launches.clear();
    group.born.clear();
    group.aborted.clear();
    group.error = kSuccess;
  }
  return call(realNccl().groupSimulateEnd, info);
}

ulyssesResult_t ulyssesNcclGetCounters(struct ncclComm* comm, ulyssesNcclCounters_t* counters) {
  if (counters == nullptr || counters->size < sizeof *counters) return ulyssesInvalidArgument;
  const std::shared_ptr<Attachment> attachment = comm != nullptr ? attachmentOf(comm) : nullptr;
  if (comm != nullptr && attachment == nullptr) {
    *counters = ULYSSES_NCCL_COUNTERS_INITIALIZER;
    return ulyssesSuccess;
  }
  Counters& from = attachment ? attachment->counters() : processCounters();
  counters->communicators = from.communicators;
  counters->allGathers = from.allGathers;
  counters->alltoalls = from.alltoalls;
  counters->passed = from.passed;
  const std::lock_guard lock(from.mutex);
  counters->reason[from.reason.copy(counters->reason, sizeof counters->reason - 1)] = '\0';
  return ulyssesSuccess;
}
