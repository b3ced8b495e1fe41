#include "drop_in/attachment.h"

#include <shared_mutex>
#include <unordered_map>

#include <ulysses/ulysses_nccl.h>

#include "api/handles.h"
#include "base/format.h"
#include "base/log.h"
#include "drop_in/eligible.h"
#include "drop_in/nccl_abi.h"
#include "drop_in/real_nccl.h"

namespace ulysses::drop_in {
namespace {

int ncclResult(const Status& status) {
  switch (status.code()) {
    case ulyssesTimeout:
      return kRemoteError;
    case ulyssesMismatch:
      return kInvalidUsage;
    case ulyssesOutOfMemory:
      return kSystemError;
    case ulyssesNotSupported:
      return kInternalError;
    default:
      return static_cast<int>(status.code());
  }
}

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const ncclComm*, std::shared_ptr<Attachment>> all;
};
// Lives to the end of the process: libraries that are unloaded late still destroy communicators.
Registry& registry() {
  static auto* made = new Registry;
  // Programs end without destroying communicators, and not all ranks at once: for the others that is no death.
  static const struct Farewell {
    ~Farewell() {
      const std::shared_lock lock(made->mutex);
      for (const auto& [nccl, attachment] : made->all) attachment->depart();
    }
  } farewell;
  return *made;
}

}  // namespace

void Counters::pass(const std::string& why) {
  passed.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex);
  if (reason != why) reason = why;
}

Counters& processCounters() {
  static auto* made = new Counters;
  return *made;
}

std::shared_ptr<Attachment> Attachment::make(ncclComm* nccl) {
  std::shared_ptr<Attachment> made(new Attachment);
  const RealNccl& real = realNccl();
  Status status(ulyssesNotSupported, "NCCL does not say who the ranks are");
  if (real.commCount != nullptr && real.commUserRank != nullptr && real.commCount(nccl, &made->nranks_) == 0 &&
      real.commUserRank(nccl, &made->rank_) == 0)
    status = caught([&] { return made->connect(nccl, made->nranks_); });
  if (status.ok()) {
    made->counters_.communicators = 1;
    processCounters().communicators.fetch_add(1);
    ULYSSES_LOG(
        Info, made->comm_->device(),
        "rank {} of {}: a communicator of NCCL's: all-gathers and all-to-alls of up to {} bytes a rank go over windows",
        made->rank_, made->nranks_, made->mostBytes_);
    return made;
  }
  made->comm_.reset();
  for (Counters* counters : {&made->counters_, &processCounters()}) {
    const std::lock_guard lock(counters->mutex);
    counters->reason = status.message();
  }
  ULYSSES_LOG(Info, -1, "rank {} of {}: a communicator of NCCL's is left to it: {}", made->rank_, made->nranks_,
              status.message());
  return made;
}

Status Attachment::connect(ncclComm* nccl, int nranks) {
  constexpr int kMostRanks = 8;  // as many as kernels know
  if (nranks < 2) return Status(ulyssesNotSupported, "one rank alone");
  if (nranks > kMostRanks) return Status(ulyssesNotSupported, formatText("{} ranks, more than {}", nranks, kMostRanks));
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.memory = ulyssesMemoryCuda;
  config.timeoutMs = -1;  // as long as NCCL would wait; a rank that dies is seen all the same
  config.commName = "nccl";
  ulyssesComm_t handle = nullptr;
  if (const ulyssesResult_t result = ulyssesCommInitNccl(&handle, nccl, &config); result != ulyssesSuccess)
    return Status(result, ulyssesGetLastError());
  ULYSSES_ASSIGN(comm_, open(handle, "comm"));
  closeHandle(handle);
  size_t mostBytesPerPair = Parameters::fromEnvironment().ncclMaxBytes / static_cast<size_t>(nranks);
  ULYSSES_TRY(comm_->reserveFlat(&mostBytesPerPair, kMostSizes));
  mostBytes_ = mostBytesPerPair * static_cast<size_t>(nranks);
  return {};
}

Attachment::~Attachment() {
  if (comm_ && !aborted_) comm_->drain();
  if (!comm_) return;
  ULYSSES_LOG(Info, comm_->device(),
              "rank {} of {}: {} all-gathers and {} all-to-alls of NCCL's went over windows, {} to NCCL{}{}", rank_,
              nranks_, counters_.allGathers.load(), counters_.alltoalls.load(), counters_.passed.load(),
              counters_.reason.empty() ? "" : ", the last because: ", counters_.reason);
}

void Attachment::pass(const std::string& why) {
  if (comm_) {
    bool news = false;
    {
      const std::lock_guard lock(counters_.mutex);
      news = counters_.reason != why;
    }
    if (news) ULYSSES_LOG(Info, comm_->device(), "rank {} of {}: left to NCCL: {}", rank_, nranks_, why);
    counters_.pass(why);
    processCounters().pass(why);
    return;
  }
  counters_.passed.fetch_add(1, std::memory_order_relaxed);
  processCounters().passed.fetch_add(1, std::memory_order_relaxed);
}

Attachment::Taken Attachment::take(Operation operation, size_t count, int type) {
  if (!comm_) return pass(""), Taken{};
  const CallFacts facts{count, type, nranks_, mostBytes_};
  if (const std::string why = whyPassed(facts); !why.empty()) return pass(why), Taken{};
  const size_t bytes = count * elementBytes(type);
  auto found = flats_.find({operation, bytes});
  if (found == flats_.end()) {
    if (flats_.size() >= kMostSizes)
      return pass(formatText("{} sizes have been used before this one", kMostSizes)), Taken{};
    Result<std::unique_ptr<Communicator::Flat>> made = comm_->prepareFlat(operation, bytes);
    // On this rank alone: those that launch would wait for it, and for ever.
    if (!made.ok()) {
      ULYSSES_LOG(Warn, comm_->device(), "rank {} of {}: {}", rank_, nranks_, made.status().message());
      comm_->dumpOnce(made.status().message());
      comm_->abort();
      return {true, nullptr, ncclResult(made.status())};
    }
    found = flats_.emplace(std::pair(operation, bytes), made.take()).first;
  }
  const Communicator::Flat& flat = *found->second;
  if (!flat.prepared.reason.empty()) return pass(flat.prepared.reason), Taken{};
  return {true, &flat, kSuccess};
}

int Attachment::launch(const Communicator::Flat& flat, Operation operation, const void* in, void* out,
                       ulyssesStream_t stream) {
  const Status status = caught([&] { return comm_->executeFlat(flat, operation, in, out, stream); });
  if (!status.ok()) {
    ULYSSES_LOG(Warn, comm_->device(), "rank {} of {}: {}", rank_, nranks_, status.message());
    return ncclResult(status);
  }
  for (Counters* counters : {&counters_, &processCounters()})
    (operation == Operation::AllGather ? counters->allGathers : counters->alltoalls)
        .fetch_add(1, std::memory_order_relaxed);
  return kSuccess;
}

int Attachment::asyncError() {
  return comm_ ? ncclResult(caught([&] { return comm_->asyncError(); })) : kSuccess;
}

void Attachment::depart() {
  if (comm_) comm_->depart();
}

void Attachment::abort() {
  aborted_ = true;
  if (comm_) comm_->abort();
}

std::shared_ptr<Attachment> attachmentOf(const ncclComm* nccl) {
  Registry& r = registry();
  const std::shared_lock lock(r.mutex);
  const auto found = r.all.find(nccl);
  return found == r.all.end() ? nullptr : found->second;
}
void keep(const ncclComm* nccl, std::shared_ptr<Attachment> attachment) {
  Registry& r = registry();
  const std::unique_lock lock(r.mutex);
  r.all[nccl].swap(attachment);  // one that was there ends after the lock
}
std::shared_ptr<Attachment> forget(const ncclComm* nccl) {
  Registry& r = registry();
  const std::unique_lock lock(r.mutex);
  const auto found = r.all.find(nccl);
  if (found == r.all.end()) return nullptr;
  std::shared_ptr<Attachment> attachment = std::move(found->second);
  r.all.erase(found);
  return attachment;
}

}  // namespace ulysses::drop_in
