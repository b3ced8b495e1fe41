#include "api/communicator.h"

#include "base/format.h"

#include <algorithm>
#include <cstring>

#include "api/buffers.h"
#include "api/entry.h"
#include "base/caught.h"
#include "base/checked.h"
#include "base/datatype.h"
#include "base/log.h"
#include "base/test_hooks.h"
#include "bootstrap/control_page.h"
#include "plan/policy_facts.h"
#include "transport/host_copy.h"

namespace ulysses {
namespace {

constexpr size_t kCachedSchedules = 32;

}  // namespace

Status Communicator::run(const Call& call) {
  Entry entry(*this);
  if (!call.local.ok()) return runEntered(call);
  Call checked = call;
  checked.local = entry.check();
  return runEntered(checked);
}

Status Communicator::runEager(Operation operation, const Contract::Geometry& geometry, const void* in, void* out,
                              ulyssesStream_t stream, Status local) {
  Entry entry(*this);
  Call call;
  call.operation = operation;
  call.geometry = geometry;
  call.in = &in;
  call.out = &out;
  call.stream = stream;
  if (local.ok()) local = entry.check();
  if (local.ok())
    local = caught([&]() -> Status {
      ULYSSES_ASSIGN(call.schedule, schedule(operation, geometry));
      return checkBuffers(*call.schedule, call.in, call.out);
    });
  call.local = std::move(local);
  return runEntered(call);
}

Status Communicator::runEntered(const Call& call) {
  recorder_->begin(call.operation, call.geometry);
  Status status = nranks_ == 1                             ? runAlone(call)
                  : onDevice() && call.schedule != nullptr ? performOnDevice(call)
                                                           : perform(call);
  recorder_->end(status, call.schedule != nullptr ? lastPath_.load(std::memory_order_relaxed) : "");
  if (status.code() == ulyssesTimeout || status.code() == ulyssesRemoteError) dumpOnce(status.message());
  return status;
}

Status Communicator::perform(const Call& checked) {
  const Deadline deadline = callDeadline();
  Contract mine;
  mine.operation = checked.operation;
  mine.geometry = checked.geometry;
  mine.geometry.hits = hits_;
  mine.geometry.hitsHash = hitsHash_;
  bool small = false;
  if (checked.local.ok() && checked.schedule != nullptr) {
    mine.ineligible = ineligibleBits();
    small = host_ && host_->fitsInline(*checked.schedule);
    if (host_ && mine.ineligible == 0) {
      small ? host_->packInline(*checked.schedule, checked.in) : host_->showInputs(*checked.schedule, checked.in);
    }
    for (size_t i = 0; i < checked.schedule->operands; ++i)
      mine.out[i] =
          registrar_ && !small ? registrar_->locate(checked.out[i], checked.schedule->outExtent[i]) : Location{};
  }
  mine.setLocalStatus(checked.local);
  Judgement judgement;
  ULYSSES_TRY(agree(checked, mine, &judgement, deadline, small));
  if (!judgement.status.ok()) return judgement.status;
  if (!small) recorder_->moving();
  if (checked.schedule == nullptr || checked.schedule->empty()) return {};
  return move(checked, judgement, small, deadline);
}

// The round of one call: everybody's contract, and the judgement that all ranks reach.
Status Communicator::agree(const Call& call, Contract& mine, Judgement* judgement, Deadline deadline, bool small) {
  mine.fusedOnly = parameters_.a2a == A2AMode::Fused;
  if (registrar_) {
    mine.freeWindowBytes = registrar_->freeBytes() + stagingBytes_;
    mine.firstStagingBytes = hooks::initialStagingBytes();
    const std::span<const uint32_t> freed = registrar_->unannounced(Contract::kMaxFreed);
    mine.freedCount = static_cast<uint32_t>(freed.size());
    std::copy(freed.begin(), freed.end(), mine.freed);
  }
  static_assert(sizeof(Contract) <= ControlPage::kRecordBytes);
  const Status round = agreement_->round(std::as_bytes(std::span(&mine, 1)).first(mine.recordBytes()), deadline);
  hits_ = hitsHash_ = 0;
  ULYSSES_TRY(round);
  if (small) host_->fetchInline(*call.schedule);
  for (int r = 0; r < nranks_; ++r)
    contracts_[static_cast<size_t>(r)] = reinterpret_cast<const Contract*>(agreement_->record(r));
  if (registrar_) {
    for (int r = 0; r < nranks_; ++r)
      for (uint32_t i = 0; i < contracts_[static_cast<size_t>(r)]->freedCount; ++i)
        registrar_->drop(r, contracts_[static_cast<size_t>(r)]->freed[i]);
  }
  *judgement = judge(contracts_);
  if (!judgement->status.ok())
    ULYSSES_LOG(Info, -1, "{}: {}", operationName(call.operation), judgement->status.message());
  return {};
}

Status Communicator::move(const Call& call, const Judgement& judgement, bool small, Deadline deadline) {
  const Transfer transfer{*call.schedule, call.in, call.out, contracts_, deadline};
  if (!judgement.fused) return moveByFallback(transfer, judgement.reason);
  if (small) {
    host_->unpackInline(transfer);
    noteCall(true, "staged", "the payload lay beside the contract");
    return {};
  }
  std::string reason = registrar_ ? "" : noWindows_;
  const HostTransport::Ways ways = reason.empty() ? host_->waysOf(transfer) : HostTransport::Ways{};
  if (ways.staged) ULYSSES_TRY(ensureStaging(transfer, &reason));
  if (!reason.empty()) return moveByFallback(transfer, reason);
  const bool plain = contracts_[static_cast<size_t>(rank_)]->anyPlainOutput();
  ULYSSES_TRY(moveFused(transfer, ways.fetched));
  noteCall(true, plain && ways.staged ? "staged" : "direct", plain && !ways.staged ? "out of the peers' inputs" : "");
  return {};
}

Status Communicator::moveFused(const Transfer& transfer, bool mayFail) {
  const Status moved = host_->exchange(transfer, staging_, stagingBytes_);
  if (moved.code() == ulyssesTimeout || moved.code() == ulyssesRemoteError) return moved;
  // Nobody returns before every row bound for it has landed, and touches a peer's memory after that peer returned.
  Contract done;
  done.operation = Operation::TransferDone;
  done.setLocalStatus(moved);
  ULYSSES_TRY(agreement_->round(std::as_bytes(std::span(&done, 1)).first(done.recordBytes()), transfer.deadline));
  if (!mayFail) return {};
  for (int r = 0; r < nranks_; ++r)
    contracts_[static_cast<size_t>(r)] = reinterpret_cast<const Contract*>(agreement_->record(r));
  return judge(contracts_).status;
}

Status Communicator::ensureStaging(const Transfer& transfer, std::string* reason) {
  size_t room = stagingLimit_, first = 0;
  for (const Contract* c : transfer.contracts) {
    room = std::min<size_t>(room, c->freeWindowBytes);
    first = std::max<size_t>(first, c->firstStagingBytes);
  }
  size_t wanted = StagingShape::wantedBytes(nranks_, room);
  if (stagingBytes_ == 0 && first != 0) wanted = std::min(wanted, first);
  const size_t sufficient = std::min(StagingShape::of(wanted, nranks_).chunkBytes, transfer.schedule.largestPayload);
  if (StagingShape::of(wanted, nranks_).chunkBytes == 0) {
    *reason = formatText("{} bytes of window cap leave no room for staging among {} ranks", room, nranks_);
    return {};
  }
  if (stagingBytes_ != 0 && stagingChunkBytes() >= sufficient) return {};
  // The window before is drained: every transfer through it has ended on all ranks, and all give it back now. The
  // contracts of this call are read before the memory changes hands; a round of the setup reuses nothing of them.
  if (staging_ != 0) {
    registrar_->retire(staging_);
    staging_ = 0;
    stagingBytes_ = 0;
  }
  uint32_t window = 0;
  const Status status = registrar_->allocate(wanted, *channel_, transfer.deadline, &window);
  if (status.code() == ulyssesTimeout || status.code() == ulyssesRemoteError) return status;
  if (!status.ok()) {
    const std::string text = formatText("staging memory: {}", status.message());
    if (!fallback_ || !refuseFallback(text).ok()) return Status(status.code(), text);
    *reason = text;
    return {};
  }
  staging_ = window;
  stagingBytes_ = wanted;
  ULYSSES_LOG(Info, -1, "rank {} of {}: staging window of {} bytes", rank_, nranks_, wanted);
  return {};
}

Status Communicator::refuseFallback(const std::string& reason) const {
  for (int r = 0; r < nranks_; ++r)
    if (contracts_[static_cast<size_t>(r)]->fusedOnly != 0)
      return Status(ulyssesNotSupported,
                    formatText("not fused ({}), and rank {} accepts nothing else (ULYSSES_A2A=fused)", reason, r));
  return {};
}

Status Communicator::moveByFallback(const Transfer& transfer, const std::string& reason) {
  ULYSSES_TRY(refuseFallback(reason));
  if (!fallback_)
    return Status(ulyssesNotSupported, formatText("not fused ({}), and this communicator has no fallback", reason));
  ULYSSES_TRY(fallback_->exchange(transfer));
  noteCall(false, fallback_->name(), reason);
  return {};
}

// P = 1: nothing is agreed, registered or sent.
Status Communicator::runAlone(const Call& call) {
  if (!call.local.ok()) return call.local;
  if (call.schedule == nullptr || call.schedule->empty()) return {};
  noteCall(true, "direct", "one rank");
  if (onDevice()) {
    ULYSSES_TRY(copyOnDevice(*call.schedule, call.in, call.out, call.stream));
    return waitInGroup(call.stream);
  }
  for (size_t i = 0; i < call.schedule->operands; ++i)
    for (const layout::BlockCopy& c : call.schedule->shares[0][i].direct.copies()) {
      const auto* src = static_cast<const std::byte*>(call.in[i]);
      auto* dst = static_cast<std::byte*>(call.out[i]);
      if (src + c.srcOffset != dst + c.dstOffset) copyBlock(c, src, dst, Store::Cached);
    }
  return {};
}

uint32_t Communicator::ineligibleBits() const {
  uint32_t bits = 0;
  if (parameters_.a2a == A2AMode::Off || hooks::fusedOff()) bits |= kFusedSwitchedOff;
  if (parameters_.path == "mpi" || parameters_.path == "nccl") bits |= kPathForced;
  if (!registrar_) bits |= kNoWindows;
  return bits;
}

std::string Communicator::fallbackReason() const {
  if (nranks_ == 1) return "";
  Contract mine;
  mine.ineligible = ineligibleBits();
  const Contract* one = &mine;
  const Judgement judgement = judge(std::span(&one, 1));
  return judgement.reason;
}

void Communicator::noteCall(bool fused, const char* path, std::string_view reason) {
  (fused ? fusedCalls_ : fallbackCalls_).fetch_add(1, std::memory_order_relaxed);
  lastPath_.store(path, std::memory_order_relaxed);
  if (lastReason_ == reason) return;
  if (!fused) ULYSSES_LOG(Info, -1, "rank {} of {}: fallback by {}: {}", rank_, nranks_, path, reason);
  const std::lock_guard lock(reasonMutex_);
  lastReason_ = reason;
}

Status Communicator::allgather(const Bytes& mine, std::vector<Bytes>& all) {
  const std::lock_guard lock(calls_);
  return channel_->allgather(mine, all, callDeadline());
}

Status Communicator::memAlloc(void** ptr, size_t bytes) {
  if (registrar_ == nullptr) return Status(ulyssesNotSupported, formatText("there are no windows: {}", noWindows_));
  Call call;
  call.operation = Operation::MemAlloc;
  {
    const std::lock_guard lock(calls_);
    call.local = registrar_->fits(bytes);
    if (call.local.ok() && ptr == nullptr) call.local = Status(ulyssesInvalidArgument, "ptr is NULL");
  }
  ULYSSES_TRY(run(call));
  const std::lock_guard lock(calls_);
  uint32_t window = 0;
  ULYSSES_TRY(registrar_->allocate(bytes, *channel_, callDeadline(), &window));
  ULYSSES_TRY(publish(window));
  *ptr = bytes != 0 ? registrar_->base(rank_, window) : nullptr;
  return {};
}

Status Communicator::memFree(void* ptr) {
  if (ptr == nullptr) return {};
  const std::lock_guard lock(calls_);
  const uint32_t window = registrar_ ? registrar_->allocatedAt(ptr) : 0;
  if (window == 0)
    return Status(ulyssesInvalidArgument,
                  formatText("{} is not the start of memory from ulyssesMemAlloc of this communicator", ptr));
  return releaseWindow(window);
}

Status Communicator::registerWindow(void* buff, size_t bytes, Status local, uint32_t* window) {
  if (registrar_ == nullptr) return Status(ulyssesNotSupported, formatText("there are no windows: {}", noWindows_));
  Call call;
  call.operation = Operation::WindowRegister;
  call.local = std::move(local);
  if (call.local.ok()) {
    const std::lock_guard lock(calls_);
    call.local = registrar_->adoptable(buff, bytes);
  }
  ULYSSES_TRY(run(call));
  const std::lock_guard lock(calls_);
  ULYSSES_TRY(registrar_->adopt(buff, bytes, *channel_, callDeadline(), window));
  return publish(*window);
}

Status Communicator::deregisterWindow(uint32_t window) {
  const std::lock_guard lock(calls_);
  return releaseWindow(window);
}

Status Communicator::publish(uint32_t window) {
  const Status known = transport_ ? transport_->publishWindow(window, callDeadline()) : Status();
  if (!known.ok()) registrar_->retire(window);
  return known;
}

Status Communicator::releaseWindow(uint32_t window) {
  if (transport_ && transport_->inUse(window))
    return Status(ulyssesInvalidUsage,
                  "an exchange that was launched into this memory is not over yet: wait for its stream, then give the "
                  "memory back");
  if (nccl_ && nccl_->busy())
    return Status(ulyssesInvalidUsage,
                  "an exchange through NCCL is not over yet, and may be one into this memory: wait for its stream, "
                  "then give the memory back");
  registrar_->release(window);
  return {};
}

Result<const Schedule*> Communicator::schedule(Operation operation, const Contract::Geometry& g) {
  const auto found = std::find_if(schedules_.begin(), schedules_.end(),
                                  [&](const CachedSchedule& c) { return c.operation == operation && c.geometry == g; });
  if (found != schedules_.end()) {
    std::rotate(schedules_.begin(), found, found + 1);
    return schedules_.front().schedule.get();
  }
  Schedule made;
  plan::PolicyFacts policy;
  const auto dtype = static_cast<ulyssesDataType_t>(g.dtype);
  const size_t element = elementBytes(static_cast<int>(g.dtype));
  if (operation == Operation::Exchange) {
    layout::OperandRequest request;
    request.direction = static_cast<ulyssesDirection_t>(g.direction);
    request.batch = g.batch;
    request.seq = g.seq;
    request.heads = g.heads;
    request.headDim = g.headDim;
    request.elementBytes = element;
    ULYSSES_ASSIGN(const layout::Operand operand, layout::resolve(request, nranks_));
    ULYSSES_ASSIGN(made, contiguousSchedule(operand, rank_));
    const OperandStrides contiguous = contiguousStrides(nranks_);
    policy = plan::policyFacts(policy_, dtype, std::span(&operand, 1), std::span(&contiguous, 1), {false});
  } else {
    const std::optional<size_t> whole = checkedProduct(g.batch, element, nranks_);
    if (!whole || *whole > SIZE_MAX / 2)
      return Status(ulyssesInvalidArgument,
                    formatText("{} elements for each of {} ranks exceed 63 bits", g.batch, nranks_));
    made = operation == Operation::AllGather ? allGatherSchedule(g.batch * element, element, rank_, nranks_)
                                             : allToAllSchedule(g.batch * element, element, rank_, nranks_);
    policy = plan::policyFacts(policy_, dtype, made);
  }
  if (schedules_.size() == kCachedSchedules) schedules_.pop_back();
  schedules_.insert(
      schedules_.begin(),
      {operation, g, std::make_unique<const Schedule>(std::move(made)), {std::move(policy), nullptr, nullptr}});
  return schedules_.front().schedule.get();
}

}  // namespace ulysses
