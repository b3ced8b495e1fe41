// Messages through NCCL. What is sent, packed and unpacked in which order is decided in plan/messages.h.
#ifdef ULYSSES_HAVE_CUDA
#include "transport/nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/cuda_support.h"
#include "base/format.h"
#include "base/log.h"
#include "bootstrap/control_page.h"
#include "bootstrap/gather_values.h"
#include "bootstrap/stage.h"
#include "device/staging_copy.h"
#include "plan/messages.h"
#include "topology/nccl_library.h"
#include "transport/watcher.h"

namespace ulysses {
namespace {

constexpr size_t kEagerStaging = size_t{256} << 20;
constexpr size_t kRecordedStaging = size_t{16} << 20;  // of what graphs hold: a plan's own, or shared by recorded calls
constexpr uint64_t kBytesPerCta = uint64_t{64} << 10;
constexpr uint32_t kMostCtas = 64;  // for each part
constexpr size_t kBootstrapBytes = size_t{64} << 10;

Status ncclStatus(const NcclLibrary& nccl, NcclLibrary::Result result, const char* what,
                  const ncclComm* comm = nullptr) {
  if (result == 0) return {};
  (void)cudaGetLastError();
  return Status(ulyssesSystemError, formatText("{}: {}", what, nccl.textOf(result, comm)));
}

// A caller's communicator may be one that does not block: its calls go on behind their return.
NcclLibrary::Result settled(const NcclLibrary& nccl, NcclLibrary::Result result, ncclComm* comm) {
  while (result == NcclLibrary::kInProgress) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (const NcclLibrary::Result asked = nccl.ncclCommGetAsyncError(comm, &result); asked != 0) return asked;
  }
  return result;
}

// Messages with their tables in device memory.
struct Run {
  Messages messages;
  DeviceBuffer table;
  const device::Block* blocks = nullptr;
  const device::StagedPart* parts = nullptr;
  struct Span {
    uint32_t first = 0, count = 0, ctas = 1;
  };
  struct Round {
    Span pack, unpack;
  };
  Span own;  // the rank's own share
  std::vector<Round> rounds;
};

Status upload(Run& run, int rank) {
  std::vector<device::StagedPart> parts;
  const auto span = [&](const std::vector<device::Stream>& streams, const std::vector<Messages::Part>& of) {
    Run::Span s{static_cast<uint32_t>(parts.size()), static_cast<uint32_t>(of.size()), 1};
    uint64_t largest = 0;
    for (const Messages::Part& p : of) {
      parts.push_back({streams[static_cast<size_t>(p.peer)], p.begin, p.end, p.staging});
      largest = std::max(largest, p.end - p.begin);
    }
    s.ctas = static_cast<uint32_t>(std::clamp<uint64_t>((largest + kBytesPerCta - 1) / kBytesPerCta, 1, kMostCtas));
    return s;
  };
  const Messages& m = run.messages;
  if (const uint64_t bytes = m.sends[static_cast<size_t>(rank)].bytes; bytes != 0)
    run.own = span(m.sends, {{rank, 0, bytes, 0}});
  for (const Messages::Round& round : m.rounds)
    run.rounds.push_back({span(m.sends, round.pack), span(m.recvs, round.unpack)});

  const size_t blockBytes = m.blocks.size() * sizeof(device::Block),
               partBytes = parts.size() * sizeof(device::StagedPart);
  if (blockBytes + partBytes == 0) return {};
  ULYSSES_ASSIGN(run.table, deviceBuffer(blockBytes + partBytes));
  auto* base = static_cast<std::byte*>(run.table.get());
  ULYSSES_TRY(uploadNow(base, m.blocks.data(), blockBytes));
  ULYSSES_TRY(uploadNow(base + blockBytes, parts.data(), partBytes));
  run.blocks = reinterpret_cast<const device::Block*>(base);
  run.parts = reinterpret_cast<const device::StagedPart*>(base + blockBytes);
  return {};
}

}  // namespace

class NcclTransport::Prepared {
 public:
  int operands = 0;
  std::shared_ptr<Run> eager, recorded;
  std::shared_ptr<DeviceBuffer> recordedStaging;
};

namespace {

class CudaNccl final : public NcclTransport {
 public:
  CudaNccl(const Setup& setup, std::optional<NcclLibrary> nccl)
      : s_(setup), nccl_(nccl.value_or(NcclLibrary{})), comm_(setup.adopted) {}

  ~CudaNccl() override {
    watcher_.stop();
    const DeviceGuard guard(s_.device);
    const int64_t end = nowMs() + 2000;
    while (sticky_.ok() && outstanding() && nowMs() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // As ncclCommDestroy: not before the peers have called it too. One that has died never does.
    if (sticky_.ok() && anyDead().empty() && !outstanding()) {
      if (comm_ != nullptr && s_.adopted == nullptr) (void)nccl_.ncclCommDestroy(comm_);
    } else {
      abortNccl();
    }
    if (last_ != nullptr) (void)cudaEventDestroy(last_);
    (void)cudaGetLastError();
  }

  Status agree(Deadline deadline) {
    const NcclFacts mine = ncclFacts(nccl_.version != 0 ? std::optional(nccl_) : std::nullopt);
    std::vector<NcclFacts> all;
    ULYSSES_TRY(gatherValues(mine, all, *s_.channel, deadline));
    refusal_ = ncclRefusal(all, s_.adopted != nullptr ? 1 : s_.ranksPerDevice);
    return {};
  }

  int version() const override { return nccl_.version; }
  const std::string& refusal() const override { return refusal_; }

  Status prepare(std::span<const Schedule* const> schedules, DeviceTransport::Capture capture,
                 std::vector<std::shared_ptr<Prepared>>* out, Deadline deadline) override {
    const DeviceGuard guard(s_.device);
    ULYSSES_TRY(connect(deadline));
    Status status = guard.status();
    size_t staging = 0;
    for (const Schedule* schedule : schedules) {
      auto prepared = std::make_shared<Prepared>();
      if (status.ok()) status = fill(*schedule, capture, *prepared);
      if (status.ok()) staging = std::max<size_t>(staging, prepared->eager->messages.stagingBytes);
      out->push_back(std::move(prepared));
    }
    // The staging before is drained: all ranks have launched what came before.
    if (status.ok() && staging > stagingBytes_) {
      status = drain(deadline);
      if (status.ok()) {
        staging_.reset();
        stagingBytes_ = 0;
        Result<DeviceBuffer> grown = deviceBuffer(staging);
        status = grown.status();
        if (status.ok()) {
          staging_ = grown.take();
          stagingBytes_ = staging;
        }
      }
    }
    return agreeStage(*s_.channel, status, deadline);
  }

  Status launch(Prepared& p, const void* const in[], void* const out[], ulyssesStream_t stream) override {
    const LaunchGuard guard(s_.device);
    ULYSSES_TRY(guard.status());
    const bool recording = isCapturing(stream);
    const Run& run = recording ? *p.recorded : *p.eager;
    const std::lock_guard lock(mutex_);
    ULYSSES_TRY(sticky_);
    if (!recording && run.messages.stagingBytes > stagingBytes_)  // the same on all ranks
      return Status(ulyssesOutOfMemory,
                    formatText("{} bytes of staging are needed; they were given up for more, which could "
                               "not be had",
                               run.messages.stagingBytes));
    if (!recording && launched_ && stream != lastStream_) ULYSSES_CUDA(cudaStreamWaitEvent(stream, last_, 0));

    device::StagedCopy x{};
    x.blocks = run.blocks;
    x.operands = p.operands;
    x.staging =
        reinterpret_cast<uint64_t>(recording ? p.recordedStaging ? p.recordedStaging->get() : nullptr : staging_.get());
    for (int i = 0; i < p.operands; ++i) {
      x.in[i] = reinterpret_cast<uint64_t>(in[i]);
      x.out[i] = reinterpret_cast<uint64_t>(out[i]);
    }
    const auto copy = [&](device::StagedWay way, const Run::Span& span) {
      x.way = way;
      x.parts = run.parts + span.first;
      x.count = span.count;
      x.ctas = span.ctas;
      return cudaStatus(static_cast<cudaError_t>(device::launchStagingCopy(x, stream)), "launch of a copy");
    };
    if (!ownInPlace(run, x)) ULYSSES_TRY(copy(device::StagedWay::Own, run.own));
    for (size_t k = 0; k < run.rounds.size(); ++k) {
      ULYSSES_TRY(copy(device::StagedWay::Pack, run.rounds[k].pack));
      ULYSSES_TRY(transfer(run.messages.rounds[k], x, stream));
      ULYSSES_TRY(copy(device::StagedWay::Unpack, run.rounds[k].unpack));
    }
    if (recording) return {};
    ULYSSES_CUDA(cudaEventRecord(last_, stream));
    launched_ = true;
    lastStream_ = stream;
    launchedMs_ = nowMs();
    if (ControlPage* page = s_.agreement->page(); page != nullptr)
      page->rank(s_.rank).launches.fetch_add(1, std::memory_order_release);
    return {};
  }

  bool busy() override {
    const DeviceGuard guard(s_.device);
    const std::lock_guard lock(mutex_);
    return outstanding();
  }

  Status takeError() override {
    const std::lock_guard lock(mutex_);
    return sticky_;
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    if (sticky_.ok()) sticky_ = Status(ulyssesRemoteError, formatText("rank {} aborted the communicator", s_.rank));
    abortNccl();
  }

  Info infoOf(const Prepared& prepared) const override {
    const Messages& m = prepared.eager->messages;
    uint64_t chunk = 0;
    for (const Messages::Round& round : m.rounds)
      for (const Messages::Message& message : round.sends) chunk = std::max(chunk, message.bytes);
    return {m.stagingBytes, chunk, static_cast<int>(m.rounds.size())};
  }

 private:
  // Collective. All ranks have just been heard of; one that dies in here is noticed by NCCL's own connections.
  Status connect(Deadline deadline) {
    if (connected_) return takeError();
    Meeting meeting;
    Status status = makeComm(deadline);
    if (status.ok()) status = prepareMeeting(&meeting);
    const Status made = agreeStage(*s_.channel, status, deadline);
    const Status met = made.ok() ? agreeStage(*s_.channel, meet(meeting, deadline), deadline) : made;
    if (!met.ok()) {
      abortNccl();
      if (met.code() != ulyssesTimeout && met.code() != ulyssesRemoteError)
        refusal_ = formatText("NCCL made no communicator: {}", met.message());
      return met;
    }
    connected_ = true;
    watcher_.start(
        s_.device, [this] { return look(); }, [this](const Status& trouble) { end(trouble); });
    ULYSSES_LOG(Info, s_.device, "rank {} of {}: NCCL {} {}", s_.rank, s_.nranks, ncclVersionText(nccl_.version),
                s_.adopted != nullptr ? "of the caller's" : "has a communicator");
    return {};
  }

  Status makeComm(Deadline deadline) {
    if (s_.adopted != nullptr) return {};
    struct Invitation {
      NcclLibrary::Result result = 0;
      NcclLibrary::UniqueId id{};
    } mine;
    if (s_.rank == 0) mine.result = nccl_.ncclGetUniqueId(&mine.id);
    std::vector<Invitation> all;
    ULYSSES_TRY(gatherValues(mine, all, *s_.channel, deadline));
    ULYSSES_TRY(ncclStatus(nccl_, all[0].result, "ncclGetUniqueId"));
    return ncclStatus(nccl_, nccl_.ncclCommInitRank(&comm_, s_.nranks, all[0].id, s_.rank), "ncclCommInitRank");
  }

  // What a first message of every pair needs: made before any rank sends, and freed when all have received, because a
  // rank of the same process that makes or frees memory may wait for what is on the device.
  struct Meeting {
    DeviceBuffer buffer;
    OwnStream stream;
  };
  Status prepareMeeting(Meeting* meeting) {
    ULYSSES_CUDA(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming));
    ULYSSES_CUDA(static_cast<cudaError_t>(device::loadStagingCopy()));
    ULYSSES_ASSIGN(meeting->buffer, deviceBuffer(2 * static_cast<size_t>(s_.nranks)));
    ULYSSES_ASSIGN(meeting->stream, ownStream());
    return {};
  }

  // Collective: a byte between all pairs. NCCL connects a pair when it first sends, and waits on the host for that:
  // here, not in a launch.
  Status meet(const Meeting& meeting, Deadline deadline) {
    const auto n = static_cast<size_t>(s_.nranks);
    const OwnStream& stream = meeting.stream;
    auto* bytes = static_cast<std::byte*>(meeting.buffer.get());
    ULYSSES_TRY(grouped([&]() -> Status {
      for (int p = 0; p < s_.nranks; ++p) {
        if (p == s_.rank) continue;
        ULYSSES_TRY(check(nccl_.ncclSend(bytes + p, 1, NcclLibrary::kBytes, p, comm_, stream.get()), "ncclSend"));
        ULYSSES_TRY(check(nccl_.ncclRecv(bytes + n + p, 1, NcclLibrary::kBytes, p, comm_, stream.get()), "ncclRecv"));
      }
      return {};
    }));
    cudaError_t state = cudaErrorNotReady;
    while ((state = cudaStreamQuery(stream.get())) == cudaErrorNotReady) {
      if (deadline.passed()) {
        abortNccl();
        return Status(ulyssesTimeout, "NCCL did not connect the ranks before the deadline");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return cudaStatus(state, "NCCL's first messages");
  }

  Status fill(const Schedule& schedule, DeviceTransport::Capture capture, Prepared& p) {
    if (schedule.operands > static_cast<size_t>(device::kMaxOperands))
      return Status(ulyssesNotSupported, formatText("{} operands; on device memory a plan has at most {}",
                                                    schedule.operands, device::kMaxOperands));
    p.operands = static_cast<int>(schedule.operands);
    const auto make = [&](size_t limit, std::shared_ptr<Run>* run) -> Status {
      *run = std::make_shared<Run>();
      (*run)->messages = makeMessages(schedule, limit);
      return upload(**run, s_.rank);
    };
    ULYSSES_TRY(make(std::min(kEagerStaging, s_.stagingLimit), &p.eager));
    const size_t recorded = std::min(kRecordedStaging, s_.stagingLimit);
    p.recorded = p.eager;
    if (p.eager->messages.stagingBytes > recorded) ULYSSES_TRY(make(recorded, &p.recorded));
    const size_t bytes = p.recorded->messages.stagingBytes;
    if (bytes == 0) return {};
    const bool shared = capture == DeviceTransport::Capture::Shared;
    if (shared && recordedBytes_ >= bytes) {
      p.recordedStaging = recordedStaging_;
      return {};
    }
    // Graphs keep what they were recorded with.
    const size_t size = shared ? std::max(bytes, recorded) : bytes;
    ULYSSES_ASSIGN(DeviceBuffer buffer, deviceBuffer(size));
    p.recordedStaging = std::make_shared<DeviceBuffer>(std::move(buffer));
    if (shared) {
      recordedStaging_ = p.recordedStaging;
      recordedBytes_ = size;
    }
    return {};
  }

  Status transfer(const Messages::Round& round, const device::StagedCopy& x, ulyssesStream_t stream) {
    if (round.sends.empty() && round.recvs.empty()) return {};
    return grouped([&]() -> Status {
      for (const Messages::Message& m : round.sends) {
        const uint64_t address = (m.end.staged ? x.staging : x.in[m.end.operand]) + m.end.offset;
        ULYSSES_TRY(check(
            nccl_.ncclSend(reinterpret_cast<const void*>(address), m.bytes, NcclLibrary::kBytes, m.peer, comm_, stream),
            "ncclSend"));
      }
      for (const Messages::Message& m : round.recvs) {
        const uint64_t address = (m.end.staged ? x.staging : x.out[m.end.operand]) + m.end.offset;
        ULYSSES_TRY(
            check(nccl_.ncclRecv(reinterpret_cast<void*>(address), m.bytes, NcclLibrary::kBytes, m.peer, comm_, stream),
                  "ncclRecv"));
      }
      return {};
    });
  }

  // A group is ended also where something in it failed.
  template <class Body>
  Status grouped(Body&& body) {
    ULYSSES_TRY(check(nccl_.ncclGroupStart(), "ncclGroupStart"));
    const Status inside = body();
    const Status ended = check(nccl_.ncclGroupEnd(), "ncclGroupEnd");
    return inside.ok() ? ended : inside;
  }
  Status check(NcclLibrary::Result result, const char* what) const {
    return ncclStatus(nccl_, settled(nccl_, result, comm_), what, comm_);
  }

  // The own block of an all-gather may be where it belongs.
  bool ownInPlace(const Run& run, const device::StagedCopy& x) const {
    const device::Stream& own = run.messages.sends[static_cast<size_t>(s_.rank)];
    if (own.blocks != 1) return own.blocks == 0;
    const device::Block& block = run.messages.blocks[own.firstBlock];
    return x.in[block.operand] + block.src.offset == x.out[block.operand] + block.dst.offset;
  }

  bool outstanding() const {
    if (!launched_) return false;
    const RelaxedCapture relaxed;
    const cudaError_t state = cudaEventQuery(last_);
    if (state != cudaSuccess) (void)cudaGetLastError();
    return state == cudaErrorNotReady;
  }

  Status drain(Deadline deadline) {
    while (busy()) {
      ULYSSES_TRY(takeError());
      if (deadline.passed()) return Status(ulyssesTimeout, "earlier exchanges through NCCL are not over");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return {};
  }

  // The caller's own communicator stays as it is.
  void abortNccl() {
    if (s_.adopted == nullptr && comm_ != nullptr) (void)nccl_.ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  std::string anyDead() const {
    for (int r = 0; r < s_.nranks; ++r)
      if (r != s_.rank && s_.channel->dead(r)) return formatText("the process of rank {} has died", r);
    return "";
  }

  Status look() {
    const std::lock_guard lock(mutex_);
    return sticky_.ok() && outstanding() ? lookAround() : Status();
  }
  // Ends what waits for a rank that has died, or has not launched before the deadline.
  void end(const Status& trouble) {
    const std::lock_guard lock(mutex_);
    if (!sticky_.ok()) return;
    sticky_ = trouble;
    abortNccl();
    ULYSSES_LOG(Warn, s_.device, "rank {} of {}: {}", s_.rank, s_.nranks, trouble.message());
  }

  Status lookAround() const {
    ControlPage* page = s_.agreement->page();
    if (const int by = page != nullptr ? static_cast<int>(page->aborted().load()) : 0; by != 0)
      return Status(ulyssesRemoteError, formatText("rank {} aborted the communicator", by - 1));
    if (const std::string dead = anyDead(); !dead.empty()) return Status(ulyssesRemoteError, dead);
    if (s_.timeoutMs < 0 || nowMs() - launchedMs_ <= s_.timeoutMs) return {};
    const uint64_t mine = page != nullptr ? page->rank(s_.rank).launches.load() : 0;
    for (int r = 0; r < s_.nranks && page != nullptr; ++r)
      if (page->rank(r).launches.load(std::memory_order_acquire) < mine)
        return Status(ulyssesTimeout, formatText("rank {} did not launch the exchange before the deadline", r));
    return Status(
        ulyssesTimeout,
        "an exchange through NCCL was not over before the deadline: a rank on another host has not launched it");
  }

  const Setup s_;
  const NcclLibrary nccl_;
  std::string refusal_;
  bool connected_ = false;
  ncclComm* comm_;
  DeviceBuffer staging_;
  size_t stagingBytes_ = 0;
  std::shared_ptr<DeviceBuffer> recordedStaging_;  // of eager calls in graphs
  size_t recordedBytes_ = 0;

  std::mutex mutex_;  // over all below, and comm_ against its end
  Status sticky_;
  cudaEvent_t last_ = nullptr;
  bool launched_ = false;  // last_ has been recorded
  cudaStream_t lastStream_ = nullptr;
  int64_t launchedMs_ = 0;
  Watcher watcher_;
};

}  // namespace

Result<std::unique_ptr<NcclTransport>> NcclTransport::create(const Setup& setup, Deadline deadline) {
  auto transport = std::make_unique<CudaNccl>(setup, loadNccl());
  ULYSSES_TRY(transport->agree(deadline));
  return std::unique_ptr<NcclTransport>(std::move(transport));
}

Result<NcclRanks> ncclRanks(ncclComm* comm) {
  const std::optional<NcclLibrary> nccl = loadNccl();
  if (!nccl) return Status(ulyssesNotSupported, "there is no NCCL in the process");
  NcclRanks ranks;
  ULYSSES_TRY(ncclStatus(*nccl, nccl->ncclCommCount(comm, &ranks.nranks), "ncclCommCount"));
  ULYSSES_TRY(ncclStatus(*nccl, nccl->ncclCommUserRank(comm, &ranks.rank), "ncclCommUserRank"));
  ULYSSES_TRY(ncclStatus(*nccl, nccl->ncclCommCuDevice(comm, &ranks.device), "ncclCommCuDevice"));
  // Memory is made before the first collective and freed after the last, as above.
  struct Room {
    NcclLibrary nccl;
    OwnStream stream;
    DeviceBuffer memory;
    size_t bytes = 0;  // of a block
  };
  const auto room = std::make_shared<Room>();
  room->nccl = *nccl;
  const DeviceGuard guard(ranks.device);
  ULYSSES_TRY(guard.status());
  ULYSSES_ASSIGN(room->stream, ownStream());
  const auto n = static_cast<size_t>(ranks.nranks);
  const auto widen = [room, n](size_t bytes) -> Status {
    if (bytes <= room->bytes) return {};
    ULYSSES_ASSIGN(room->memory, deviceBuffer(bytes * (n + 1)));
    room->bytes = bytes;
    return {};
  };
  ULYSSES_TRY(widen(kBootstrapBytes));
  ranks.allgather = [room, widen, comm, n, device = ranks.device](const void* send, void* recv,
                                                                  size_t bytes) -> Status {
    const DeviceGuard here(device);
    ULYSSES_TRY(here.status());
    ULYSSES_TRY(widen(bytes));
    cudaStream_t stream = room->stream.get();
    auto* all = static_cast<std::byte*>(room->memory.get());
    std::byte* mine = all + room->bytes * n;
    ULYSSES_CUDA(cudaMemcpyAsync(mine, send, bytes, cudaMemcpyHostToDevice, stream));
    const NcclLibrary::Result result = room->nccl.ncclAllGather(mine, all, bytes, NcclLibrary::kBytes, comm, stream);
    ULYSSES_TRY(ncclStatus(room->nccl, settled(room->nccl, result, comm), "ncclAllGather", comm));
    ULYSSES_CUDA(cudaMemcpyAsync(recv, all, bytes * n, cudaMemcpyDeviceToHost, stream));
    return cudaStatus(cudaStreamSynchronize(stream), "an all-gather over the caller's NCCL communicator");
  };
  return ranks;
}

}  // namespace ulysses
#endif
