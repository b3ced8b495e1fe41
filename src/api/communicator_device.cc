// Calls on device memory: agreed on the host when they are eager, on the device when they are planned.
#include <algorithm>
#include <cstring>

#include "api/buffers.h"
#include "api/communicator.h"
#include "api/entry.h"
#include "api/group.h"
#include "base/format.h"
#include "base/log.h"
#include "bootstrap/stage.h"
#include "topology/decide.h"
#include "topology/probe.h"

namespace ulysses {
namespace {

// FNV-1a over what must be equal on all ranks; never 0, which marks a call that is wrong on its rank.
class ContractHash {
 public:
  void add(uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash_ = (hash_ ^ (value & 0xff)) * 0x100000001b3;
  }
  uint64_t value() const { return hash_ | 1; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

uint64_t hashOf(Operation operation, uint64_t identity, const DeviceTransport::Shape& shape) {
  ContractHash hash;
  hash.add(static_cast<uint64_t>(operation));
  hash.add(identity);
  hash.add(shape.ctas);
  hash.add(shape.tileBytes);
  hash.add(shape.small);
  return hash.value();
}

uint64_t identityOf(const Contract::Geometry& g) {
  ContractHash hash;
  for (const uint64_t v : {uint64_t{g.direction}, uint64_t{g.dtype}, g.batch, g.seq, g.heads, g.headDim, g.object, g.version})
    hash.add(v);
  return hash.value();
}

}  // namespace

// From what the ranks ask for and what they have: host or device memory, and whether windows can be had.
Status Communicator::chooseMemory(uint32_t requested, Deadline deadline) {
  struct Asked {
    uint32_t memory, gpus;
  };
  const Asked mine{requested, requested == ulyssesMemoryHost ? 0u : static_cast<uint32_t>(std::max(0, visibleGpuCount()))};
  Bytes blob(sizeof mine);
  std::memcpy(blob.data(), &mine, sizeof mine);
  std::vector<Bytes> all;
  ULYSSES_TRY(channel_->allgather(blob, all, deadline));
  uint32_t memory = ulyssesMemoryAuto;
  bool anyGpu = false;
  for (int r = 0; r < nranks_; ++r) {
    Asked theirs{};
    if (all[static_cast<size_t>(r)].size() != sizeof theirs)
      return Status(ulyssesInternalError, formatText("rank {} sent a malformed request for memory", r));
    std::memcpy(&theirs, all[static_cast<size_t>(r)].data(), sizeof theirs);
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
  blob.resize(text.size());
  std::memcpy(blob.data(), text.data(), text.size());
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
  if (transport_) mine.capturing = transport_->capturing(call.stream);
  const auto cached = std::find_if(schedules_.begin(), schedules_.end(),
                                   [&](const CachedSchedule& c) { return c.schedule.get() == call.schedule; });
  mine.prepared = cached != schedules_.end() && cached->prepared != nullptr;
  Status local = call.local;
  if (local.ok() && transport_) local = transport_->takeError();
  for (size_t i = 0; i < call.geometry.operands; ++i) mine.out[i] = Location{};
  mine.setLocalStatus(local);
  Judgement judgement;
  ULYSSES_TRY(agree(call, mine, &judgement, deadline));
  if (!judgement.status.ok()) return judgement.status;
  for (int r = 0; r < nranks_; ++r)
    if (contracts_[static_cast<size_t>(r)]->capturing != 0)
      return Status(ulyssesInvalidUsage, formatText("rank {} records a graph: an eager call agrees on the host and cannot be "
                                                    "captured; capture the execution of a plan", r));
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
    ULYSSES_TRY(transport_->prepare(std::span(&call.schedule, 1), false, &made, deadline));
    prepared = made[0];
    if (cached != schedules_.end()) cached->prepared = prepared;
  }
  const uint64_t hash = hashOf(call.operation, identityOf(call.geometry), transport_->shapeOf(*prepared));
  ULYSSES_TRY(transport_->launch(*prepared, hash, call.in, call.out, call.stream));
  noteCall(true, transport_->lastWasDirect() ? "direct" : "staged", "");
  return group::running() ? synchroniseStream(call.stream) : Status();
}

Status Communicator::prepareOnDevice(std::span<const Schedule* const> schedules,
                                     std::vector<std::shared_ptr<DeviceTransport::Prepared>>* prepared) {
  const std::lock_guard lock(calls_);
  if (!transport_) {
    prepared->resize(schedules.size());
    return {};
  }
  return transport_->prepare(schedules, true, prepared, callDeadline());
}

Status Communicator::executeOnDevice(DeviceTransport::Prepared* prepared, uint64_t identity, const Call& call) {
  Entry entry(*this);
  recorder_->begin(call.operation, call.geometry);
  Status status = launchPlanned(prepared, identity, call, entry.check());
  recorder_->end(status, lastPath_.load(std::memory_order_relaxed));
  if (status.ok() && group::running()) status = synchroniseStream(call.stream);
  return status;
}

Status Communicator::launchPlanned(DeviceTransport::Prepared* prepared, uint64_t identity, const Call& call, Status local) {
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
  if (const Status earlier = transport_->takeError(); local.ok()) local = earlier;
  // A wrong call is launched all the same, as one that nobody may take part in: the peers find out on the device.
  const uint64_t hash = local.ok() ? hashOf(call.operation, identity, transport_->shapeOf(*prepared)) : 0;
  const Status launched = transport_->launch(*prepared, hash, call.in, call.out, call.stream);
  if (!local.ok()) return local;
  ULYSSES_TRY(launched);
  noteCall(true, transport_->lastWasDirect() ? "direct" : "staged", "");
  return {};
}

}  // namespace ulysses
