// How a communicator comes to be, and how it ends.
#include "base/format.h"

#include <algorithm>
#include <cstring>

#include "api/communicator.h"
#include "base/log.h"
#include "base/test_hooks.h"
#include "bootstrap/control_page.h"
#include "bootstrap/gather_values.h"
#include "bootstrap/stage.h"

namespace ulysses {
namespace {

constexpr size_t kDefaultWindowCap = size_t{1} << 30;
constexpr int kNewestKernels = 2;

// What each rank brings to init; decided upon by all alike.
struct InitFacts {
  uint32_t libraryVersion = ULYSSES_VERSION_CODE;
  uint32_t memory = ulyssesMemoryAuto;
  uint64_t windowCapBytes = 0, stagingLimit = 0;
  uint32_t maxCtas = 0;  // 0: no limit
  uint32_t hasFallback = 0;
  uint32_t kernelRevision = 0, chunkedTraining = 0;
};

// What a rank asks for that this build does not have is an error on all.
Status checkMemory([[maybe_unused]] uint32_t memory) {
#ifndef ULYSSES_HAVE_CUDA
  if (memory == ulyssesMemoryCuda)
    return Status(ulyssesNotSupported,
                  "device memory was asked for (ulyssesConfig_t.memory or ULYSSES_MEMORY), and this "
                  "library was built without CUDA");
#endif
  return {};
}

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::create(int rank, int nranks, const Allgather& addresses,
                                                           const Config& config, Status local,
                                                           std::unique_ptr<Fallback> fallback, ncclComm* adopted) {
  std::shared_ptr<Communicator> comm(new Communicator(rank, nranks));
  comm->fallback_ = std::move(fallback);
  comm->adopted_ = adopted;
  comm->config_ = config;
  if (local.ok()) local = config.status;
  ULYSSES_TRY(comm->setUp(addresses, std::move(local)));
  return comm;
}

Status Communicator::setUp(const Allgather& addresses, Status local) {
  parameters_ = Parameters::fromEnvironment();
  timeoutMs_ = config_.callTimeoutMs(parameters_);
  const Deadline deadline = Deadline::afterMs(config_.initTimeoutMs(parameters_));
  firstRound_ = hooks::firstRound();
  if (hooks::callTimeoutMs() != 0) timeoutMs_ = hooks::callTimeoutMs();

  ULYSSES_ASSIGN(channel_, ControlChannel::open(rank_, nranks_, addresses, deadline, local));

  InitFacts mine;
  const ulyssesConfig_t& config = config_.values;
  mine.memory = config.memory;
  if (parameters_.memory == MemoryChoice::Host) mine.memory = ulyssesMemoryHost;
  if (parameters_.memory == MemoryChoice::Cuda) mine.memory = ulyssesMemoryCuda;
  mine.windowCapBytes =
      parameters_.windowCapBytes.value_or(config.windowCapBytes != 0 ? config.windowCapBytes : kDefaultWindowCap);
  mine.stagingLimit = parameters_.stagingBytes;
  mine.maxCtas = static_cast<uint32_t>(parameters_.maxCtas != 0 ? parameters_.maxCtas : config.maxCtas);
  mine.hasFallback = fallback_ != nullptr;
  mine.kernelRevision =
      static_cast<uint32_t>(parameters_.kernelRevision != 0 ? parameters_.kernelRevision : kNewestKernels);
  mine.chunkedTraining = parameters_.longTraining == LongTraining::Chunked;
  local = hooks::injectedFailure(hooks::Stage::Configuration);
  if (local.ok()) local = checkMemory(mine.memory);
  ULYSSES_TRY(agreeStage(*channel_, local, deadline));

  std::vector<InitFacts> all;
  const Status gathered = gatherValues(mine, all, *channel_, deadline);
  if (gathered.code() == ulyssesInternalError)
    return Status(ulyssesInvalidUsage,
                  formatText("the ranks run different versions of this library: {}", gathered.message()));
  ULYSSES_TRY(gathered);
  size_t cap = SIZE_MAX;
  bool allHaveFallback = true, allChunked = true;
  policy_.kernelRevision = kNewestKernels;
  stagingLimit_ = SIZE_MAX;
  for (int r = 0; r < nranks_; ++r) {
    const InitFacts& facts = all[static_cast<size_t>(r)];
    if (facts.libraryVersion != mine.libraryVersion)
      return Status(ulyssesInvalidUsage,
                    formatText("rank {} runs another version of this library than rank {}", r, rank_));
    cap = std::min<size_t>(cap, facts.windowCapBytes);
    stagingLimit_ = std::min<size_t>(stagingLimit_, facts.stagingLimit);
    if (facts.maxCtas != 0 && (maxCtas_ == 0 || facts.maxCtas < maxCtas_)) maxCtas_ = facts.maxCtas;
    allHaveFallback = allHaveFallback && facts.hasFallback != 0;
    allChunked = allChunked && facts.chunkedTraining != 0;
    policy_.kernelRevision = std::min(policy_.kernelRevision, static_cast<int>(facts.kernelRevision));
  }
  policy_.ranks = nranks_;
  policy_.capBytes = cap;
  policy_.longTraining = allChunked ? LongTraining::Chunked : LongTraining::Auto;
  if (!allHaveFallback) fallback_.reset();

  recorder_ = std::make_unique<FlightRecorder>(config_.name, rank_, nranks_);
  contracts_.resize(static_cast<size_t>(nranks_));
#ifdef ULYSSES_HAVE_CUDA
  ULYSSES_TRY(chooseMemory(mine.memory, deadline));
  if (!hooks::architecture().empty()) policy_.gpu = hooks::architecture();
#endif
  if (!channel_->passesFds()) noWindows_ = "memory cannot be shared with every rank";
  if (nranks_ > 1 && channel_->passesFds()) ULYSSES_TRY(shareControlPage(deadline));
  if (nranks_ > 1 && !channel_->passesFds()) agreement_ = makeWireAgreement(*channel_);
  if (adopted_ != nullptr && !onDevice())
    return Status(ulyssesInvalidUsage,
                  "a communicator over NCCL's is for device memory, and host memory was asked for");
  if (onDevice()) {
    fallback_.reset();  // what libulysses_mpi brings moves host memory
    ULYSSES_TRY(setUpDevice(cap, deadline));
  } else if (channel_->passesFds()) {
    registrar_ = std::make_unique<Registrar>(rank_, nranks_, makeHostProvider(), cap);
    if (agreement_) {
      PeerMemory peers;
      ULYSSES_TRY(peers.explore(rank_, parameters_.path != "staged", *channel_, deadline));
      host_ = std::make_unique<HostTransport>(*agreement_, *registrar_, std::move(peers));
    }
  }
  ULYSSES_LOG(Info, -1, "communicator{}{}: rank {} of {}, {} host(s), {}, window cap {} bytes",
              config_.name.empty() ? "" : " ", config_.name, rank_, nranks_, channel_->nHosts(),
              !registrar_  ? noWindows_
              : onDevice() ? formatText("windows in device memory by {}", registrar_->provider())
                           : "windows in host memory",
              cap);
  return {};
}

Status Communicator::shareControlPage(Deadline deadline) {
  // The page is rank 0's memory. Control memory that fails is the end of init, on all.
  ULYSSES_TRY(agreeStage(*channel_, hooks::injectedFailure(hooks::Stage::ControlMemory), deadline));
  std::vector<WindowPart> parts;
  const size_t bytes = ControlPage::bytes(nranks_);
  ULYSSES_TRY(makeHostProvider()->allocate(rank_ == 0 ? bytes : 0, *channel_, parts, deadline));
  agreement_ = makePageAgreement(rank_, nranks_, parts[0].base, std::move(parts[0].keep), *channel_, firstRound_);
  // Nobody enters a round before everybody can.
  return agreeStage(*channel_, {}, deadline);
}

Result<std::shared_ptr<Communicator>> Communicator::split(int color, int key, const Config& config, Status local) {
  struct Wish {
    int32_t color, key;
  };
  struct Invitation {
    int32_t code = ulyssesSuccess;
    ulyssesUniqueId id{};
  };
  Call call;
  call.operation = Operation::Split;
  call.local = std::move(local);
  if (call.local.ok() && color < 0 && color != ULYSSES_SPLIT_NOCOLOR)
    call.local = Status(ulyssesInvalidArgument, formatText("color is {}: 0 or more, or ULYSSES_SPLIT_NOCOLOR", color));
  ULYSSES_TRY(run(call));

  const auto gather = [this](const Bytes& blob, std::vector<Bytes>& blobs) { return allgather(blob, blobs); };
  std::vector<Wish> wishes;
  ULYSSES_TRY(gatherValues(Wish{color, key}, wishes, gather));
  std::vector<std::pair<int, int>> members;  // (key, rank): the order of the new ranks
  for (int r = 0; r < nranks_; ++r)
    if (wishes[static_cast<size_t>(r)].color == color) members.emplace_back(wishes[static_cast<size_t>(r)].key, r);
  std::sort(members.begin(), members.end());
  const bool joins = color != ULYSSES_SPLIT_NOCOLOR;

  Invitation mine;
  Status invited;
  if (joins && members.front().second == rank_) {
    Result<ulyssesUniqueId> id = startRendezvous();
    if (id.ok())
      mine.id = id.take();
    else
      invited = id.status();
    mine.code = invited.code();
  }
  std::vector<Invitation> invitations;
  ULYSSES_TRY(gatherValues(mine, invitations, gather));
  if (!joins) return std::shared_ptr<Communicator>();
  const int host = members.front().second;
  const Invitation& theirs = invitations[static_cast<size_t>(host)];
  if (theirs.code != ulyssesSuccess)
    return invited.ok() ? Status(ulyssesSystemError,
                                 formatText("rank {} could not open the new communicator's rendezvous", host))
                        : invited;

  const auto me = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.second == rank_; });
  const int newRank = static_cast<int>(me - members.begin()), newSize = static_cast<int>(members.size());
  const Deadline deadline = Deadline::afterMs(config.initTimeoutMs(parameters_));
  ULYSSES_ASSIGN(const Allgather addresses, joinRendezvous(theirs.id, newRank, newSize, deadline));
  return create(newRank, newSize, addresses, config);
}

void Communicator::describe(ulyssesCommInfo_t& info) {
  info.memory = onDevice() ? ulyssesMemoryCuda : ulyssesMemoryHost;
  info.nRanks = nranks_;
  info.nHosts = channel_->nHosts();
  info.singleHost = channel_->nHosts() == 1;
  info.lsa = lsa_;
  info.ranksPerDevice = ranksPerDevice_;
  info.ncclVersion = nccl_ ? nccl_->version() : 0;
  info.windowBytes = registrar_ ? registrar_->usedBytes() : 0;
  info.windowCapBytes = registrar_ ? registrar_->capBytes() : 0;
  info.fusedCalls = fusedCalls_;
  info.fallbackCalls = fallbackCalls_;
  std::snprintf(info.lastPath, sizeof info.lastPath, "%s", lastPath_.load());
  const std::lock_guard lock(reasonMutex_);
  std::snprintf(info.lastReason, sizeof info.lastReason, "%s", lastReason_.c_str());
}

Status Communicator::dump(const char* path) const {
  std::string written;
  const Status status = recorder_->write(path, &written);
  if (status.ok()) ULYSSES_LOG(Warn, -1, "rank {} of {}: the last calls are in {}", rank_, nranks_, written);
  return status;
}

void Communicator::dumpOnce(std::string_view why) {
  if (parameters_.dumpDir == "off" || dumped_.exchange(true)) return;
  ULYSSES_LOG(Warn, -1, "rank {} of {}: {}", rank_, nranks_, why);
  const Status status = dump(nullptr);
  if (!status.ok()) ULYSSES_LOG(Warn, -1, "{}", status.message());
}

Status Communicator::finalize() {
  const std::lock_guard lock(calls_);
  if (finalized_) return Status(ulyssesInvalidUsage, "the communicator has been finalized before");
  finalized_ = true;
  return {};
}

Status Communicator::asyncError() {
  if (!agreement_) return {};
  const std::unique_lock lock(calls_, std::try_to_lock);
  if (!lock.owns_lock()) return {};  // a call in progress reports for itself
  Status onDevice = transport_ ? transport_->takeError() : Status();
  if (onDevice.ok() && nccl_) onDevice = nccl_->takeError();
  return onDevice.ok() ? agreement_->asyncError() : onDevice;
}

void Communicator::abort() {
  if (transport_) transport_->abort();
  if (nccl_) nccl_->abort();
  if (agreement_) agreement_->abort();
}

void Communicator::depart() {
  if (agreement_) agreement_->depart();
}

Communicator::~Communicator() {
  transport_.reset();  // its kernels end before this rank is gone
  nccl_.reset();
  depart();
}

}  // namespace ulysses
