// Calls on device memory: agreed on the host when they are eager, on the device when they are planned.
#include <algorithm>
#include <cstring>

#include "api/buffers.h"
#include "api/communicator.h"
#include "api/entry.h"
#include "api/group.h"
#include "base/format.h"
#include "base/log.h"
#include "bootstrap/gather_values.h"
#include "bootstrap/stage.h"
#include "plan/contract_hash.h"
#include "topology/decide.h"
#include "topology/probe.h"

namespace ulysses {
namespace {

// Tells eager calls apart, the same on all ranks.
uint64_t identityOf(Operation operation, const Contract::Geometry& g) {
  return contractHash({static_cast<uint64_t>(operation), g.direction, g.dtype, g.batch, g.seq, g.heads, g.headDim, g.object,
                       g.version});
}

// "NVIDIA H200" is an H200 to the tuning table.
std::string architectureOf(const std::string& name) {
  constexpr std::string_view kMaker = "NVIDIA ";
  return name.compare(0, kMaker.size(), kMaker) == 0 ? name.substr(kMaker.size()) : name;
}

}  // namespace

// From what the ranks ask for and what they have: host or device memory, and whether windows can be had.
Status Communicator::chooseMemory(uint32_t requested, Deadline deadline) {
  struct Asked {
    uint32_t memory, gpus;
  };
  const Asked mine{requested, requested == ulyssesMemoryHost ? 0u : static_cast<uint32_t>(std::max(0, visibleGpuCount()))};
  std::vector<Asked> asked;
  ULYSSES_TRY(gatherValues(mine, asked, *channel_, deadline));
  uint32_t memory = ulyssesMemoryAuto;
  bool anyGpu = false;
  for (int r = 0; r < nranks_; ++r) {
    const Asked& theirs = asked[static_cast<size_t>(r)];
    anyGpu = anyGpu || theirs.gpus != 0;
    if (theirs.memory == ulyssesMemoryAuto) continue;
    if (memory != ulyssesMemoryAuto && memory != theirs.memory)
      return Status(ulyssesInvalidUsage, formatText("rank {} asks for other memory than the ranks before it: host memory and "
                                                    "device memory do not mix in one communicator", r));
    memory = theirs.memory;
  }
  if (memory == ulyssesMemoryHost || (memory == ulyssesMemoryAuto && !anyGpu)) return {};

  FactsFile facts;
  facts.source = "a rank";
  facts.ranks.push_back(probe(mine.gpus != 0 ? currentCudaDevice() : -1));
  const std::string text = factsToJson(facts, -1);
  Bytes blob(text.size());
  std::memcpy(blob.data(), text.data(), text.size());
  std::vector<Bytes> all;
  ULYSSES_TRY(channel_->allgather(blob, all, deadline));
  std::vector<RankFacts> ranks;
  for (int r = 0; r < nranks_; ++r) {
    const Bytes& b = all[static_cast<size_t>(r)];
    ULYSSES_ASSIGN(FactsFile theirs, factsFromJson({reinterpret_cast<const char*>(b.data()), b.size()}, formatText("the facts of rank {}", r)));
    if (theirs.ranks.size() != 1) return Status(ulyssesInternalError, formatText("rank {} sent facts of several ranks", r));
    ranks.push_back(std::move(theirs.ranks[0]));
  }
  const Verdict verdict = decide(ranks, static_cast<ulyssesMemory_t>(memory));
  if (verdict.code != ulyssesSuccess) return Status(verdict.code, verdict.reason);
  if (verdict.memory != ulyssesMemoryCuda) return {};
  device_ = currentCudaDevice();
  ranksPerDevice_ = verdict.ranksPerDevice;
  lsa_ = verdict.lsa;
  policy_.gpu = architectureOf(ranks[0].gpu->name);
  for (const RankFacts& r : ranks) {
    gpus_.push_back(r.gpu->uuid);
    if (r.gpu->name != ranks[0].gpu->name) policy_.gpu.clear();  // no row of the tuning table is for a mixture
  }
  if (!verdict.fusedOk) noWindows_ = verdict.reason;
  return {};
}

// Windows and kernels. What fails here leaves the communicator to its fallback, on all ranks.
Status Communicator::setUpDevice(size_t capBytes, Deadline deadline) {
  if (!noWindows_.empty()) return {};
  registrar_ = std::make_unique<Registrar>(rank_, nranks_, makeDeviceProvider(device_), capBytes);
  DeviceTransport::Setup setup{};
  setup.rank = rank_;
  setup.nranks = nranks_;
  setup.device = device_;
  setup.gpus = gpus_;
  setup.ranksPerDevice = ranksPerDevice_;
  setup.maxCtas = maxCtas_;
  setup.stagingLimit = stagingLimit_;
  setup.timeoutMs = timeoutMs_;
  setup.channel = channel_.get();
  setup.registrar = registrar_.get();
  setup.agreement = agreement_.get();
  Result<std::unique_ptr<DeviceTransport>> made = DeviceTransport::create(setup, deadline);
  if (made.ok()) {
    transport_ = made.take();
    return {};
  }
  if (made.status().code() == ulyssesTimeout || made.status().code() == ulyssesRemoteError) return made.status();
  noWindows_ = made.status().message();
  registrar_.reset();
  return {};
}

Status Communicator::performOnDevice(const Call& call) {
  const Deadline deadline = callDeadline();
  Contract mine;
  mine.operation = call.operation;
  mine.geometry = call.geometry;
  mine.geometry.hits = hits_;
  mine.geometry.hitsHash = hitsHash_;
  mine.ineligible = ineligibleBits();
  mine.capturing = isCapturing(call.stream);
  const auto cached = std::find_if(schedules_.begin(), schedules_.end(),
                                   [&](const CachedSchedule& c) { return c.schedule.get() == call.schedule; });
  mine.prepared = cached != schedules_.end() && cached->prepared != nullptr;
  Status local = call.local;
  if (local.ok() && transport_) local = transport_->takeError();
  for (size_t i = 0; i < call.geometry.operands; ++i)
    mine.out[i] = local.ok() && registrar_ ? registrar_->locate(call.out[i], call.schedule->outExtent[i]) : Location{};
  mine.setLocalStatus(local);
  Judgement judgement;
  ULYSSES_TRY(agree(call, mine, &judgement, deadline));
  if (!judgement.status.ok()) return judgement.status;
  ULYSSES_TRY(judgeCapture(contracts_));
  if (call.schedule->empty()) return {};
  if (!judgement.fused || !transport_) {
    const Transfer transfer{*call.schedule, call.in, call.out, contracts_, deadline};
    return moveByFallback(transfer, judgement.fused ? noWindows_ : judgement.reason);
  }
  std::shared_ptr<DeviceTransport::Prepared> prepared = mine.prepared ? cached->prepared : nullptr;
  // A rank may have forgotten what another still holds: then all make it anew.
  bool allPrepared = true;
  for (const Contract* c : contracts_) allPrepared = allPrepared && c->prepared != 0;
  if (!allPrepared) {
    std::vector<std::shared_ptr<DeviceTransport::Prepared>> made;
    const DeviceTransport::Work work{call.schedule, identityOf(call.operation, call.geometry), cached->policy};
    ULYSSES_TRY(transport_->prepare(std::span(&work, 1), DeviceTransport::Capture::Shared, &made, deadline));
    prepared = cached->prepared = made[0];
  }
  const std::string& refusal = transport_->infoOf(*prepared).refusal;
  if (!refusal.empty() && anyPlainOutput(contracts_)) {
    const Transfer transfer{*call.schedule, call.in, call.out, contracts_, deadline};
    return moveByFallback(transfer, refusal);
  }
  ULYSSES_TRY(transport_->launch(*prepared, true, call.in, call.out, call.stream));
  noteCall(true, transport_->lastWasDirect() ? "direct" : "staged", "");
  return waitInGroup(call.stream);
}

Status Communicator::waitInGroup(ulyssesStream_t stream) {
  return group::running() && !isCapturing(stream) ? synchroniseStream(stream) : Status();
}

Status Communicator::prepareOnDevice(std::span<const DeviceTransport::Work> works,
                                     std::vector<std::shared_ptr<DeviceTransport::Prepared>>* prepared) {
  const std::lock_guard lock(calls_);
  if (!transport_) {
    prepared->resize(works.size());
    return {};
  }
  return transport_->prepare(works, DeviceTransport::Capture::Own, prepared, callDeadline());
}

Status Communicator::executeOnDevice(DeviceTransport::Prepared* prepared, const Call& call) {
  Entry entry(*this);
  recorder_->begin(call.operation, call.geometry);
  Status status = launchPlanned(prepared, call, entry.check());
  recorder_->end(status, lastPath_.load(std::memory_order_relaxed));
  return status.ok() ? waitInGroup(call.stream) : status;
}

Status Communicator::launchPlanned(DeviceTransport::Prepared* prepared, const Call& call, Status local) {
  if (local.ok()) local = call.local;
  if (nranks_ == 1) {
    Call alone = call;
    alone.local = local;
    return runAlone(alone);
  }
  if (call.schedule->empty()) return local;
  if (!transport_ || prepared == nullptr)
    return Status(ulyssesNotSupported, formatText("not fused ({}), and this communicator has no fallback", noWindows_));
  if (ineligibleBits() != 0)
    return Status(ulyssesNotSupported, "not fused (switched off), and this communicator has no fallback");
  // What an earlier exchange met is told, and must not make this one wrong: ranks learn of it at different times.
  const Status earlier = transport_->takeError();
  if (local.ok() && earlier.code() != ulyssesMismatch) local = earlier;
  const Status launched = transport_->launch(*prepared, local.ok(), call.in, call.out, call.stream);
  if (!local.ok()) return local;
  ULYSSES_TRY(launched);
  ULYSSES_TRY(earlier);
  noteCall(true, transport_->lastWasDirect() ? "direct" : "staged", "");
  return {};
}

}  // namespace ulysses
