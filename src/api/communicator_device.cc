// Calls on device memory: agreed on the host when they are eager, on the device when they are planned.
#include <algorithm>
#include <cstring>
#include <optional>

#include "api/buffers.h"
#include "api/communicator.h"
#include "api/entry.h"
#include "api/group.h"
#include "base/checked.h"
#include "base/format.h"
#include "base/log.h"
#include "bootstrap/gather_values.h"
#include "bootstrap/stage.h"
#include "plan/contract_hash.h"
#include "plan/policy_facts.h"
#include "topology/decide.h"
#include "topology/nccl_library.h"
#include "topology/probe.h"
#include "window/choice.h"

namespace ulysses {
namespace {

// Tells eager calls apart, the same on all ranks.
uint64_t identityOf(Operation operation, const Contract::Geometry& g) {
  return contractHash({static_cast<uint64_t>(operation), g.direction, g.dtype, g.batch, g.seq, g.heads, g.headDim,
                       g.object, g.version});
}

// "NVIDIA H200" is an H200 to the tuning table.
std::string architectureOf(const std::string& name) {
  constexpr std::string_view kMaker = "NVIDIA ";
  return name.compare(0, kMaker.size(), kMaker) == 0 ? name.substr(kMaker.size()) : name;
}

bool endsCommunicator(const Status& status) {
  return status.code() == ulyssesTimeout || status.code() == ulyssesRemoteError;
}

// Whether all that keeps any rank from the fused path is that there are no windows, of which all know why.
bool lackWindowsAlone(std::span<const Contract* const> contracts) {
  return std::all_of(contracts.begin(), contracts.end(),
                     [](const Contract* c) { return (c->ineligible & ~kNoWindows) == 0; });
}

Status noFallback(const std::string& reason, const std::string& refusal) {
  return Status(ulyssesNotSupported,
                formatText("not fused ({}), and this communicator has no fallback ({})", reason, refusal));
}

}  // namespace

// From what the ranks ask for and what they have: host or device memory, and whether windows can be had.
Status Communicator::chooseMemory(uint32_t requested, Deadline deadline) {
  struct Asked {
    uint32_t memory, gpus;
  };
  const Asked mine{requested,
                   requested == ulyssesMemoryHost ? 0u : static_cast<uint32_t>(std::max(0, visibleGpuCount()))};
  std::vector<Asked> asked;
  ULYSSES_TRY(gatherValues(mine, asked, *channel_, deadline));
  uint32_t memory = ulyssesMemoryAuto;
  bool anyGpu = false;
  for (int r = 0; r < nranks_; ++r) {
    const Asked& theirs = asked[static_cast<size_t>(r)];
    anyGpu = anyGpu || theirs.gpus != 0;
    if (theirs.memory == ulyssesMemoryAuto) continue;
    if (memory != ulyssesMemoryAuto && memory != theirs.memory)
      return Status(ulyssesInvalidUsage,
                    formatText("rank {} asks for other memory than the ranks before it: host memory and "
                               "device memory do not mix in one communicator",
                               r));
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
    ULYSSES_ASSIGN(FactsFile theirs, factsFromJson({reinterpret_cast<const char*>(b.data()), b.size()},
                                                   formatText("the facts of rank {}", r)));
    if (theirs.ranks.size() != 1)
      return Status(ulyssesInternalError, formatText("rank {} sent facts of several ranks", r));
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

// Who maps windows: NCCL where chooseWindows() says so and it comes to be, else CUDA's handles.
Result<std::unique_ptr<WindowProvider>> Communicator::chooseProvider(Deadline deadline) {
  if (nranks_ == 1) return makeDeviceProvider(device_);
  const std::optional<NcclLibrary> nccl = loadNccl();
  std::vector<WindowFacts> facts;
  ULYSSES_TRY(gatherValues(WindowFacts{parameters_.windows, ncclFacts(nccl)}, facts, *channel_, deadline));
  WindowChoice choice = chooseWindows(facts, ranksPerDevice_);
  if (choice.nccl) {
    Result<std::unique_ptr<WindowProvider>> made =
        makeNcclProvider(*nccl, device_, *agreement_->page(), *channel_, deadline);
    if (made.ok() || endsCommunicator(made.status())) return made;
    choice.reason = made.status().message();
  }
  ULYSSES_LOG(Info, device_, "rank {} of {}: windows by ipc: {}", rank_, nranks_, choice.reason);
  return makeDeviceProvider(device_);
}

// Windows and kernels. What fails here leaves the communicator to its fallback, on all ranks.
Status Communicator::setUpDevice(size_t capBytes, Deadline deadline) {
  if (nranks_ > 1) {
    NcclTransport::Setup setup{};
    setup.rank = rank_;
    setup.nranks = nranks_;
    setup.device = device_;
    setup.ranksPerDevice = ranksPerDevice_;
    setup.stagingLimit = capBytes;
    setup.timeoutMs = timeoutMs_;
    setup.channel = channel_.get();
    setup.agreement = agreement_.get();
    setup.adopted = adopted_;
    ULYSSES_ASSIGN(nccl_, NcclTransport::create(setup, deadline));
  }
  if (!noWindows_.empty()) return {};
  ULYSSES_ASSIGN(std::unique_ptr<WindowProvider> provider, chooseProvider(deadline));
  registrar_ = std::make_unique<Registrar>(rank_, nranks_, std::move(provider), capBytes);
  if (nranks_ == 1) return {};  // nobody to exchange with: no flags, no kernels
  DeviceTransport::Setup setup{};
  setup.rank = rank_;
  setup.nranks = nranks_;
  setup.device = device_;
  setup.gpus = gpus_;
  setup.ranksPerDevice = ranksPerDevice_;
  setup.engines = plan::engineUse(parameters_.path);
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

OnDevice* Communicator::heldFor(const Call& call) {
  if (call.held != nullptr) return call.held;
  return &std::find_if(schedules_.begin(), schedules_.end(), [&](const CachedSchedule& c) {
            return c.schedule.get() == call.schedule;
          })->device;
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
  OnDevice* const held = heldFor(call);
  mine.prepared = (held->fused ? kPreparedFused : 0u) | (held->nccl ? kPreparedFallback : 0u);
  Status local = call.local;
  if (local.ok() && transport_) local = transport_->takeError();
  if (local.ok() && nccl_) local = nccl_->takeError();
  for (size_t i = 0; i < call.geometry.operands; ++i)
    mine.out[i] = local.ok() && registrar_ ? registrar_->locate(call.out[i], call.schedule->outExtent[i]) : Location{};
  mine.setLocalStatus(local);
  Judgement judgement;
  ULYSSES_TRY(agree(call, mine, &judgement, deadline));
  if (!judgement.status.ok()) return judgement.status;
  // A rank may have forgotten what another still holds: then all make it anew.
  const bool ready = allPrepared(contracts_, kPreparedFused);
  std::string reason = whyNotFused(judgement, contracts_);
  const auto refusal = [&] { return anyPlainOutput(contracts_) ? transport_->infoOf(*held->fused).refusal : ""; };
  if (reason.empty() && ready) reason = refusal();
  ULYSSES_TRY(judgeCapture(contracts_, reason.empty() ? kPreparedFused : kPreparedFallback));
  if (call.schedule->empty()) return {};
  // What is not held, or no longer, is given back after the launch: that waits for kernels of the GPU, where a peer's may
  // already wait for this rank.
  std::vector<std::shared_ptr<DeviceTransport::Prepared>> made;
  if (reason.empty() && !ready) {
    const DeviceTransport::Work work{call.schedule, identityOf(call.operation, call.geometry), held->policy};
    const Status prepared = transport_->prepare(std::span(&work, 1), DeviceTransport::Capture::Shared, &made, deadline);
    if (!prepared.ok() && (endsCommunicator(prepared) || !ncclRefusal().empty())) return prepared;
    if (prepared.ok()) held->fused.swap(made[0]);
    reason = prepared.ok() ? refusal() : prepared.message();
  }
  if (!reason.empty()) return moveByNccl(call, *held, reason, deadline);
  ULYSSES_TRY(transport_->launch(*held->fused, true, call.in, call.out, call.stream, contracts_));
  noteCall(true, transport_->lastPath(), "");
  return waitInGroup(call.stream);
}

std::string Communicator::whyNotFused(const Judgement& judgement, std::span<const Contract* const> contracts) const {
  if (!judgement.fused && (noWindows_.empty() || !lackWindowsAlone(contracts))) return judgement.reason;
  return transport_ ? "" : noWindows_;
}

std::string Communicator::ncclRefusal() const {
  return nccl_ ? nccl_->refusal() : "one rank";
}

Status Communicator::moveByNccl(const Call& call, OnDevice& held, const std::string& reason, Deadline deadline) {
  ULYSSES_TRY(refuseFallback(reason));
  if (const std::string refusal = ncclRefusal(); !refusal.empty()) return noFallback(reason, refusal);
  std::vector<std::shared_ptr<NcclTransport::Prepared>> made;  // given back after the launch, as above
  if (!allPrepared(contracts_, kPreparedFallback)) {
    const Schedule* const schedule = call.schedule;
    ULYSSES_TRY(nccl_->prepare(std::span(&schedule, 1), DeviceTransport::Capture::Shared, &made, deadline));
    held.nccl.swap(made[0]);
  }
  ULYSSES_TRY(launchMessages(*held.nccl, call));
  noteCall(false, "nccl", reason);
  return waitInGroup(call.stream);
}

// A rank that launches nothing where its peers do ends the communicator: nothing on the device tells them.
Status Communicator::launchMessages(NcclTransport::Prepared& prepared, const Call& call) {
  const Status launched = call.local.ok() ? nccl_->launch(prepared, call.in, call.out, call.stream) : call.local;
  if (!launched.ok()) abort();
  return launched;
}

Status Communicator::waitInGroup(ulyssesStream_t stream) {
  return group::running() && !isCapturing(stream) ? synchroniseStream(stream) : Status();
}

Status Communicator::agreeWhyNotFused(std::string* reason, bool* fusedOnly, Deadline deadline) {
  struct Wish {
    uint32_t ineligible, fusedOnly;
  };
  std::vector<Wish> wishes;
  ULYSSES_TRY(gatherValues(Wish{ineligibleBits(), parameters_.a2a == A2AMode::Fused}, wishes, *channel_, deadline));
  std::vector<Contract> contracts(wishes.size());
  std::vector<const Contract*> pointers;
  for (size_t r = 0; r < wishes.size(); ++r) {
    contracts[r].ineligible = wishes[r].ineligible;
    pointers.push_back(&contracts[r]);
    *fusedOnly = *fusedOnly || wishes[r].fusedOnly != 0;
  }
  const Judgement judgement = judge(pointers);
  *reason = whyNotFused(judgement, pointers);
  return {};
}

Status Communicator::prepareOnDevice(std::span<const DeviceTransport::Work> works, std::vector<Prepared>* prepared) {
  const std::lock_guard lock(calls_);
  const Deadline deadline = callDeadline();
  prepared->assign(works.size(), {});
  std::string reason;
  bool fusedOnly = false;
  ULYSSES_TRY(agreeWhyNotFused(&reason, &fusedOnly, deadline));
  const bool fallback = !fusedOnly && ncclRefusal().empty();
  if (reason.empty()) {
    std::vector<std::shared_ptr<DeviceTransport::Prepared>> made;
    const Status status = transport_->prepare(works, DeviceTransport::Capture::Own, &made, deadline);
    const bool wrong = status.code() == ulyssesInvalidArgument;
    if (!status.ok() && (endsCommunicator(status) || wrong || !fallback)) return status;
    if (!status.ok()) reason = status.message();
    for (size_t i = 0; i < works.size() && status.ok(); ++i)
      (*prepared)[i] = {made[i], nullptr, transport_->infoOf(*made[i]).refusal};
  }
  std::vector<const Schedule*> schedules;
  std::vector<Prepared*> refused;
  for (size_t i = 0; i < works.size(); ++i) {
    Prepared& p = (*prepared)[i];
    if (!reason.empty()) p.reason = reason;
    if (p.reason.empty() || !fallback) continue;
    schedules.push_back(works[i].schedule);
    refused.push_back(&p);
  }
  if (refused.empty()) return {};
  std::vector<std::shared_ptr<NcclTransport::Prepared>> made;
  ULYSSES_TRY(nccl_->prepare(schedules, DeviceTransport::Capture::Own, &made, deadline));
  for (size_t i = 0; i < refused.size(); ++i) refused[i]->nccl = made[i];
  return {};
}

Status Communicator::reserveFlat(size_t* largestPayload, size_t works) {
  const std::lock_guard lock(calls_);
  const Deadline deadline = callDeadline();
  std::string reason;
  bool fusedOnly = false;
  ULYSSES_TRY(agreeWhyNotFused(&reason, &fusedOnly, deadline));
  if (!reason.empty()) return Status(ulyssesNotSupported, reason);
  std::vector<uint64_t> wishes;
  ULYSSES_TRY(gatherValues<uint64_t>(*largestPayload, wishes, *channel_, deadline));
  *largestPayload = *std::min_element(wishes.begin(), wishes.end());
  const plan::PolicyFacts facts = plan::policyFacts(policy_, ulyssesUint8, allToAllSchedule(*largestPayload, 1, rank_, nranks_));
  return transport_->reserve(facts, *largestPayload, works, deadline);
}

Result<std::unique_ptr<Communicator::Flat>> Communicator::prepareFlat(Operation operation, size_t bytes) {
  auto flat = std::make_unique<Flat>();
  flat->geometry.batch = bytes;
  flat->geometry.dtype = ulyssesUint8;
  flat->geometry.operands = 1;
  flat->schedule = operation == Operation::AllGather ? allGatherSchedule(bytes, 1, rank_, nranks_)
                                                     : allToAllSchedule(bytes, 1, rank_, nranks_);
  const DeviceTransport::Work work{&flat->schedule, identityOf(operation, flat->geometry),
                                   plan::policyFacts(policy_, ulyssesUint8, flat->schedule)};
  ULYSSES_ASSIGN(flat->prepared.fused, transport_->prepareAlone(work));
  flat->prepared.reason = transport_->infoOf(*flat->prepared.fused).refusal;
  return flat;
}

Status Communicator::executeFlat(const Flat& flat, Operation operation, const void* in, void* out, ulyssesStream_t stream) {
  Call call;
  call.operation = operation;
  call.geometry = flat.geometry;
  call.schedule = &flat.schedule;
  call.local = checkBuffers(flat.schedule, &in, &out);
  call.in = &in;
  call.out = &out;
  call.stream = stream;
  return executeOnDevice(flat.prepared, call);
}

void Communicator::describe(const Prepared& prepared, size_t largestPayload, ulyssesPlanInfo_t& info) const {
  std::snprintf(info.path, sizeof info.path, "%s",
                prepared.nccl             ? "nccl"
                : prepared.reason.empty() ? "fused"
                                          : "fallback");
  std::snprintf(info.reason, sizeof info.reason, "%s", prepared.reason.c_str());
  if (prepared.nccl) {
    const NcclTransport::Info nccl = nccl_->infoOf(*prepared.nccl);
    info.chunkBytes = nccl.chunkBytes;
    info.chunks = nccl.rounds;
  }
  if (prepared.nccl || !prepared.fused) return;
  const DeviceTransport::Info& device = transport_->infoOf(*prepared.fused);
  if (prepared.reason.empty()) std::snprintf(info.reason, sizeof info.reason, "%s", device.reason.c_str());
  if (prepared.reason.empty() && device.engines) std::snprintf(info.path, sizeof info.path, "copy-engine");
  info.windowBytes = device.stagingBytes;
  info.ctas = static_cast<int>(device.ctas);
  info.chunkBytes = device.tileBytes * device.ctas;
  info.chunks = info.chunkBytes == 0 ? 1 : static_cast<int>(ceilDiv(largestPayload, info.chunkBytes));
}

void Communicator::drain() {
  if (transport_) transport_->drain();
}

Status Communicator::executeOnDevice(const Prepared& prepared, const Call& call) {
  Entry entry(*this);
  recorder_->begin(call.operation, call.geometry);
  Status status = launchPlanned(prepared, call, entry.check());
  recorder_->end(status, lastPath_.load(std::memory_order_relaxed));
  return status.ok() ? waitInGroup(call.stream) : status;
}

Status Communicator::launchPlanned(const Prepared& prepared, const Call& call, Status local) {
  Call checked = call;
  if (!local.ok()) checked.local = local;
  if (nranks_ == 1) return runAlone(checked);
  if (call.schedule->empty()) return checked.local;
  if (prepared.nccl) {
    ULYSSES_TRY(nccl_->takeError());
    ULYSSES_TRY(launchMessages(*prepared.nccl, checked));
    noteCall(false, "nccl", prepared.reason);
    return {};
  }
  if (!prepared.fused) return noFallback(prepared.reason, ncclRefusal());
  local = checked.local;
  // What an earlier exchange met is told, and must not make this one wrong: ranks learn of it at different times.
  const Status earlier = transport_->takeError();
  if (local.ok() && earlier.code() != ulyssesMismatch) local = earlier;
  const Status launched = transport_->launch(*prepared.fused, local.ok(), call.in, call.out, call.stream);
  if (!local.ok()) return local;
  ULYSSES_TRY(launched);
  ULYSSES_TRY(earlier);
  noteCall(true, transport_->lastPath(), "");
  return {};
}

}  // namespace ulysses
