// The fused path on device memory: what the kernels need is set up here, collectively; launches are local and wait for
// nothing.
#ifdef ULYSSES_HAVE_CUDA
#include "transport/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "base/test_hooks.h"
#include "bootstrap/control_page.h"
#include "bootstrap/stage.h"
#include "device/exchange.h"
#include "device/work_table.h"
#include "plan/contract_hash.h"
#include "plan/launch_shape.h"
#include "transport/cta_account.h"
#include "transport/cuda_support.h"
#include "window/ipc.h"

namespace ulysses {
namespace {

constexpr uint32_t kTableRows = 1024;            // windows a communicator may have at once
constexpr size_t kSmallBytes = size_t{16} << 10;  // per pair
constexpr size_t kStagingsInCap = 8;             // every plan has its own, beside the one of eager calls
constexpr size_t kRecordedStaging = size_t{16} << 20;  // of all recorded eager calls: it can't grow under their graphs
constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kGrace = std::chrono::milliseconds(200);  // for the kernels of a rank that has gone in good order

// Flags, staging and epoch: what one chain of launches needs.
struct Chain {
  Chain() = default;
  Chain(const Chain&) = delete;
  ~Chain() {  // local: the peers learn of it at their next call
    for (const uint32_t window : {stagingWindow, flagsWindow})
      if (window != 0) registrar->release(window);
  }
  Registrar* registrar = nullptr;
  device::Channel channel{};
  DeviceBuffer epoch;
  uint32_t flagsWindow = 0, stagingWindow = 0;
  size_t stagingBytes = 0;
};

}  // namespace

class DeviceTransport::Prepared {
 public:
  // One way to launch it. The contract covers all that has to be equal on all ranks; it is never 0.
  struct Launch {
    LaunchShape shape;
    uint64_t contract = 0;
  };
  Launch eager, recorded;
  Info info;  // of the eager launch
  DeviceBuffer table;
  uint32_t blocks = 0;
  int operands = 0;
  std::vector<size_t> inExtent, outExtent;
  std::shared_ptr<Chain> chain;  // for launches under capture
};

namespace {

class CudaTransport final : public DeviceTransport {
 public:
  explicit CudaTransport(const Setup& setup) : s_(setup) {}

  ~CudaTransport() override {
    {
      const std::lock_guard lock(watch_);
      stop_ = true;
    }
    wake_.notify_all();
    if (monitor_.joinable()) monitor_.join();
    const DeviceGuard guard(s_.device);
    if (host_ != nullptr && outstanding()) waitOrAbort();
    for (const cudaEvent_t event : events_)
      if (event != nullptr) (void)cudaEventDestroy(event);
    if (host_ != nullptr) (void)cudaFreeHost(host_);
    giveBackCtas();
    (void)cudaGetLastError();
  }

  Status setUp(Deadline deadline) {
    const DeviceGuard guard(s_.device);
    // Stage 1: what is this rank's alone.
    int resident = 0;
    Status status = guard.status().ok() ? local(&resident) : guard.status();
    if (status.ok()) status = hooks::injectedFailure(hooks::Stage::Kernels);
    ULYSSES_TRY(agreeStage(*s_.channel, status, deadline));
    Bytes mine(sizeof resident);
    std::memcpy(mine.data(), &resident, sizeof resident);
    std::vector<Bytes> all;
    ULYSSES_TRY(s_.channel->allgather(mine, all, deadline));
    residentCtas_ = UINT32_MAX;
    for (const Bytes& b : all) {
      std::memcpy(&resident, b.data(), std::min(b.size(), sizeof resident));
      residentCtas_ = std::min(residentCtas_, static_cast<uint32_t>(resident));
    }
    if (s_.nranks > 1) {
      ULYSSES_ASSIGN(ledger_, CtaAccount::open(s_.gpus[static_cast<size_t>(s_.rank)], *s_.channel, deadline));
    }
    // Stage 2: flags.
    ULYSSES_TRY(makeChain(&main_, deadline));
    monitor_ = std::thread([this] { watch(); });
    return {};
  }

  Status prepare(std::span<const Work> works, Capture capture, std::vector<std::shared_ptr<Prepared>>* out,
                 Deadline deadline) override {
    const DeviceGuard guard(s_.device);
    // The policy first, then what it may have: CTAs and window bytes, which the ranks agree on.
    std::vector<plan::PolicyChoice> choices;
    uint32_t wanted = 1;
    for (const Work& work : works) {
      choices.push_back(choosePolicy(work.policy));
      const LaunchRoom all{ctaLimit(), s_.registrar->capBytes(), 0, chunkedLimit(), 0, kSmallBytes};
      wanted = std::max(wanted, launchesOf(work.policy, choices.back(), work.schedule->largestPayload, all).eager.ctas);
    }
    LaunchRoom room;
    room.smallBytes = kSmallBytes;
    room.chunkedBytes = chunkedLimit();
    ULYSSES_TRY(agreeRoom(wanted, &room, deadline));
    // Recorded eager calls share one chain, whose staging is made once: graphs hold its address.
    const bool shared = capture == Capture::Shared, made = shared && recorded_ && recorded_->stagingBytes != 0;
    room.recordedBytes = made ? recorded_->stagingBytes
                              : std::min({room.chunkedBytes, room.windowBytes / 2, shared ? kRecordedStaging : SIZE_MAX});
    room.besidesBytes = made ? 0 : device::flagsBytes(s_.nranks, kSmallBytes) + room.recordedBytes;

    Status status = guard.status();
    if (status.ok()) status = hooks::injectedFailure(hooks::Stage::Tables);
    size_t staging = 0, recordedStaging = 0;
    for (size_t i = 0; i < works.size(); ++i) {
      auto prepared = std::make_shared<Prepared>();
      shape(works[i], choices[i], room, prepared.get());
      if (status.ok()) status = upload(*works[i].schedule, *prepared);
      if (status.ok() && prepared->info.refusal.empty() && !prepared->info.small && prepared->eager.shape.tileBytes == 0)
        status = Status(ulyssesOutOfMemory, formatText("{} bytes of window that may be used for staging (ULYSSES_STAGING, and "
                                                       "what the window cap has left) leave no room for {} ranks",
                                                       room.windowBytes, s_.nranks));
      staging = std::max(staging, prepared->eager.shape.stagingBytes);
      recordedStaging = std::max(recordedStaging, prepared->recorded.shape.stagingBytes);
      out->push_back(std::move(prepared));
    }
    ULYSSES_TRY(agreeStage(*s_.channel, status, deadline));
    ULYSSES_TRY(ensureStaging(main_, staging, deadline));
    std::shared_ptr<Chain> chain = shared ? recorded_ : nullptr;
    if (!chain) {
      chain = std::make_shared<Chain>();
      ULYSSES_TRY(makeChain(chain.get(), deadline));
      if (shared) recorded_ = chain;
    }
    if (shared && recordedStaging != 0) recordedStaging = room.recordedBytes;
    ULYSSES_TRY(ensureStaging(*chain, recordedStaging, deadline));
    for (const std::shared_ptr<Prepared>& p : *out) p->chain = chain;
    return {};
  }

  Status launch(Prepared& p, bool valid, const void* const in[], void* const out[], ulyssesStream_t stream) override {
    const LaunchGuard guard(s_.device);
    ULYSSES_TRY(guard.status());
    const bool recording = isCapturing(stream);
    Chain& chain = recording ? *p.chain : main_;
    const Prepared::Launch& launch = recording ? p.recorded : p.eager;
    if (launch.shape.stagingBytes > chain.stagingBytes)  // the same on all ranks
      return Status(ulyssesOutOfMemory, formatText("{} bytes of staging are needed; they were given up for more, which could "
                                                   "not be had", launch.shape.stagingBytes));

    device::Exchange x{};
    x.channel = chain.channel;
    x.table = static_cast<const device::WorkTable*>(p.table.get());
    x.blocks = p.blocks;
    x.operands = p.operands;
    x.ctas = launch.shape.ctas;
    x.tileBytes = std::max<uint64_t>(launch.shape.tileBytes, device::kUnit);
    const uint64_t number = launched_.load(std::memory_order_relaxed) + 1;
    bool plain = false;
    for (int i = 0; i < p.operands && valid; ++i) {
      const auto at = static_cast<size_t>(i);
      x.in[i] = in[i];
      x.out[i] = out[i];
      const Location l = s_.registrar->locate(out[i], p.outExtent[at]);
      x.location[i] = device::windowLocation(l.window, l.offset);
      plain = plain || l.plain();
      if (recording) continue;
      for (const uint32_t window : {l.window, s_.registrar->locate(in[i], p.inExtent[at]).window})
        if (window < kTableRows) lastUse_[window] = number;
    }
    Status refused;
    if (valid && plain && !launch.shape.small && launch.shape.tileBytes == 0) {
      refused = p.info.refusal.empty()
                    ? Status(ulyssesInvalidUsage, "the window cap leaves no room for staging of its own to what graphs record: "
                                                  "record exchanges into windows, or raise the cap")
                    : Status(ulyssesNotSupported, formatText("not fused ({}), and this communicator has no fallback; outputs "
                                                             "in windows (ulyssesMemAlloc) need no staging", p.info.refusal));
    }
    valid = valid && refused.ok();
    // A wrong call is launched all the same, as one that nobody may take part in: the peers find out on the device.
    x.contract = valid ? launch.contract : 0;
    if (plain) std::fill_n(x.location, p.operands, device::kPlain);  // in all or in none
    lastDirect_ = !plain;

    if (!recording && number > 1 && stream != lastStream_) ULYSSES_CUDA(cudaStreamWaitEvent(stream, event(number - 1), 0));
    const int error = launch.shape.small ? device::launchSmallExchange(x, stream) : device::launchExchange(x, stream);
    ULYSSES_TRY(cudaStatus(static_cast<cudaError_t>(error), "launch of the exchange"));
    if (recording) return refused;
    ULYSSES_CUDA(cudaEventRecord(event(number), stream));
    lastStream_ = stream;
    launchedMs_.store(nowMs(), std::memory_order_relaxed);
    launched_.store(number, std::memory_order_release);
    s_.agreement->page()->rank(s_.rank).launches.fetch_add(1, std::memory_order_release);
    return refused;
  }

  bool lastWasDirect() const override { return lastDirect_; }

  Status publishWindow(uint32_t window, Deadline deadline) override {
    const DeviceGuard guard(s_.device);
    Status status = guard.status();
    if (status.ok() && window >= kTableRows)
      status = Status(ulyssesOutOfMemory, formatText("more than {} windows of device memory at once", kTableRows - 1));
    if (status.ok()) {
      device::WindowRow row{};
      for (int r = 0; r < s_.nranks; ++r) row.base[r] = reinterpret_cast<uint64_t>(s_.registrar->base(r, window));
      status = cudaStatus(cudaMemcpy(static_cast<device::WindowRow*>(windows_.get()) + window, &row, sizeof row,
                                     cudaMemcpyHostToDevice), "table of windows");
    }
    if (window < kTableRows) lastUse_[window] = 0;
    return agreeStage(*s_.channel, status, deadline);
  }

  bool inUse(uint32_t window) override {
    const DeviceGuard guard(s_.device);
    return window < kTableRows && lastUse_[window] != 0 && !over(lastUse_[window]);
  }

  Status takeError() override {
    if (ended_.load(std::memory_order_acquire)) {
      const std::lock_guard lock(watch_);
      return sticky_;
    }
    const auto* words = static_cast<volatile device::HostWords*>(host_);
    if (words->error != static_cast<uint32_t>(device::KernelError::Mismatch)) return {};
    const int rank = words->errorRank;
    static_cast<volatile device::HostWords*>(host_)->error = 0;
    return Status(ulyssesMismatch, formatText("an earlier exchange was launched by rank {} with wrong arguments, or with "
                                              "another contract than by the ranks before it: nothing was stored on any rank", rank));
  }

  void abort() override {
    if (host_ != nullptr) static_cast<volatile device::HostWords*>(host_)->abort = 1;
  }

  const Info& infoOf(const Prepared& prepared) const override { return prepared.info; }

 private:
  static int64_t nowMs() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  Status local(int* resident) {
    ULYSSES_CUDA(static_cast<cudaError_t>(device::loadKernels()));
    ULYSSES_CUDA(static_cast<cudaError_t>(device::residentCtas(resident)));
    void* words = nullptr;
    ULYSSES_CUDA(cudaHostAlloc(&words, sizeof(device::HostWords), cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(words, 0, sizeof(device::HostWords));
    host_ = static_cast<device::HostWords*>(words);
    void* mapped = nullptr;
    ULYSSES_CUDA(cudaHostGetDevicePointer(&mapped, words, 0));
    hostOnDevice_ = static_cast<device::HostWords*>(mapped);
    ULYSSES_ASSIGN(windows_, deviceBuffer(kTableRows * sizeof(device::WindowRow)));
    for (cudaEvent_t& event : events_) ULYSSES_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return {};
  }

  // Collective.
  Status makeChain(Chain* chain, Deadline deadline) {
    chain->registrar = s_.registrar;
    chain->channel.rank = s_.rank;
    Result<DeviceBuffer> epoch = deviceBuffer(sizeof(device::Epoch));
    const size_t bytes = device::flagsBytes(s_.nranks, kSmallBytes);
    Status status = epoch.ok() ? s_.registrar->fits(bytes) : epoch.status();
    if (status.ok()) status = hooks::injectedFailure(hooks::Stage::Flags);
    ULYSSES_TRY(agreeStage(*s_.channel, status, deadline));
    chain->epoch = epoch.take();
    ULYSSES_TRY(s_.registrar->allocate(bytes, *s_.channel, deadline, &chain->flagsWindow));
    chain->channel.nranks = s_.nranks;
    for (int r = 0; r < s_.nranks; ++r)
      chain->channel.flags[r] = reinterpret_cast<char*>(s_.registrar->base(r, chain->flagsWindow));
    chain->channel.smallBytes = kSmallBytes;
    chain->channel.epoch = static_cast<device::Epoch*>(chain->epoch.get());
    chain->channel.host = hostOnDevice_;
    chain->channel.windows = static_cast<const device::WindowRow*>(windows_.get());
    return {};
  }

  // Collective. The chain is drained before its staging changes: every rank has launched all that came before.
  Status ensureStaging(Chain& chain, size_t bytes, Deadline deadline) {
    if (bytes <= chain.stagingBytes) return {};
    Status status;
    if (chain.stagingWindow != 0) status = drain();
    if (status.ok()) status = s_.registrar->fits(bytes - chain.stagingBytes);
    if (status.ok()) status = hooks::injectedFailure(hooks::Stage::Staging);
    ULYSSES_TRY(agreeStage(*s_.channel, status, deadline));
    const size_t before = chain.stagingBytes;
    if (chain.stagingWindow != 0) s_.registrar->retire(chain.stagingWindow);
    chain.stagingWindow = 0;
    chain.stagingBytes = 0;
    const Status grown = allocateStaging(chain, bytes, deadline);
    // What was prepared for the smaller one goes on with it.
    if (!grown.ok() && before != 0) (void)allocateStaging(chain, before, deadline);
    return grown;
  }

  Status allocateStaging(Chain& chain, size_t bytes, Deadline deadline) {
    ULYSSES_TRY(s_.registrar->allocate(bytes, *s_.channel, deadline, &chain.stagingWindow));
    chain.stagingBytes = bytes;
    for (int r = 0; r < s_.nranks; ++r)
      chain.channel.staging[r] = reinterpret_cast<char*>(s_.registrar->base(r, chain.stagingWindow));
    return {};
  }

  Status drain() {
    const uint64_t newest = launched_.load();
    if (newest == 0) return {};
    ULYSSES_CUDA(cudaEventSynchronize(event(newest)));
    settle(newest);
    return {};
  }

  // Collective. Takes CTAs out of the ledgers, all ranks or none.
  Status agreeRoom(uint32_t wanted, LaunchRoom* room, Deadline deadline) {
    struct Has {
      uint64_t windowBytes;
      uint32_t ctas, reserved;
    };
    constexpr int kTries = 4;  // another communicator on the GPU may take them between look and reservation
    CtaShare share;
    bool all = false;
    for (int i = 0; i < kTries && !all; ++i) {
      Bytes blob(sizeof(Has));
      std::vector<Bytes> blobs;
      const auto tell = [&](uint32_t ctas, bool reserved, Has* least) -> Status {
        const Has mine{s_.registrar->freeBytes() + main_.stagingBytes, ctas, reserved};
        std::memcpy(blob.data(), &mine, sizeof mine);
        ULYSSES_TRY(s_.channel->allgather(blob, blobs, deadline));
        *least = mine;
        for (const Bytes& b : blobs) {
          Has theirs{};
          std::memcpy(&theirs, b.data(), std::min(b.size(), sizeof theirs));
          *least = {std::min(least->windowBytes, theirs.windowBytes), std::min(least->ctas, theirs.ctas),
                    std::min(least->reserved, theirs.reserved)};
        }
        return {};
      };
      Has least{};
      ULYSSES_TRY(tell(ledger_->available(residentCtas_) / static_cast<uint32_t>(s_.ranksPerDevice), false, &least));
      room->windowBytes = least.windowBytes;
      share = shareCtas(wanted, heldEager_, heldRecorded_, least.ctas);
      const uint32_t more = share.moreEager + share.moreRecorded;
      const bool mine = more == 0 || ledger_->reserve(more, residentCtas_);
      if (more == 0) break;
      if (const Status told = tell(0, mine, &least); !told.ok()) {
        if (mine) ledger_->giveBack(more);
        return told;
      }
      all = least.reserved != 0;
      if (mine && !all) ledger_->giveBack(more);
      if (!all) share.moreEager = share.moreRecorded = 0;
    }
    heldEager_ += share.moreEager;
    heldRecorded_ += share.moreRecorded;
    s_.agreement->page()->rank(s_.rank).ctas.store(heldEager_ + heldRecorded_);
    room->ctas = share.ctas;
    if (share.ctas > heldEager_ && !std::exchange(crowded_, true))
      ULYSSES_LOG(Warn, s_.device, "rank {} of {}: {} CTAs of a launch are not resident beside those of the other communicators "
                  "on this GPU ({} fit): launch the exchanges of all of them in one order on all ranks, each behind the one "
                  "before", s_.rank, s_.nranks, share.ctas, residentCtas_);
    if (share.ctas > heldRecorded_)
      ULYSSES_LOG(Info, s_.device, "rank {} of {}: {} CTAs of what graphs record are not resident beside other calls: replay "
                  "graphs in one order with them", s_.rank, s_.nranks, share.ctas);
    return {};
  }

  // Also what ranks that have died can't give back themselves: whoever comes first does it.
  void giveBackCtas() {
    if (!ledger_) return;
    ControlPage& page = *s_.agreement->page();
    for (int r = 0; r < s_.nranks; ++r) {
      const bool died = s_.gpus[static_cast<size_t>(r)] == s_.gpus[static_cast<size_t>(s_.rank)] &&
                        s_.channel->lifeline(r) >= 0 && s_.channel->dead(r);
      if (r != s_.rank && !died) continue;
      if (const uint32_t ctas = page.rank(r).ctas.exchange(0); ctas != 0) ledger_->giveBack(ctas);
    }
  }

  uint32_t ctaLimit() const {
    uint32_t most = std::max<uint32_t>(1, residentCtas_ / static_cast<uint32_t>(s_.ranksPerDevice));
    most = std::min<uint32_t>(most, device::kMaxCtas);
    return s_.maxCtas != 0 ? std::min(most, s_.maxCtas) : most;
  }

  // Chunks keep within a part of the cap, so that several plans find room.
  size_t chunkedLimit() const { return std::min(s_.stagingLimit, s_.registrar->capBytes() / kStagingsInCap); }

  // Pure in what the ranks agree on.
  static void shape(const Work& work, const plan::PolicyChoice& choice, const LaunchRoom& room, Prepared* p) {
    const Launches launches = launchesOf(work.policy, choice, work.schedule->largestPayload, room);
    p->eager = {launches.eager, contractOf(work.identity, launches.eager)};
    p->recorded = {launches.recorded, contractOf(work.identity, launches.recorded)};
    const LaunchShape& shape = launches.eager;
    p->info = {shape.ctas, shape.tileBytes, shape.small, shape.stagingBytes, choice.reason, ""};
    if (choice.fused && static_cast<int>(shape.ctas) != choice.ctas) p->info.reason += formatText("; launched with {}", shape.ctas);
    if (!choice.fused && !shape.small) p->info.refusal = choice.reason;
  }

  // Over what must be equal on all ranks.
  static uint64_t contractOf(uint64_t identity, const LaunchShape& shape) {
    return contractHash({identity, shape.ctas, shape.tileBytes, shape.small});
  }

  static Status upload(const Schedule& schedule, Prepared& prepared) {
    if (schedule.operands > static_cast<size_t>(device::kMaxOperands))
      return Status(ulyssesNotSupported, formatText("{} operands; on device memory a plan has at most {}", schedule.operands,
                                                    device::kMaxOperands));
    const std::vector<unsigned char> table = device::makeWorkTable(
        schedule.rank, schedule.nranks, static_cast<int>(schedule.operands),
        [&](int from, int to, int operand) { return schedule.copies(from, to, static_cast<size_t>(operand)); });
    prepared.operands = static_cast<int>(schedule.operands);
    prepared.inExtent = schedule.inExtent;
    prepared.outExtent = schedule.outExtent;
    prepared.blocks = device::blockCount(table);
    ULYSSES_ASSIGN(prepared.table, deviceBuffer(table.size()));
    ULYSSES_CUDA(cudaMemcpy(prepared.table.get(), table.data(), table.size(), cudaMemcpyHostToDevice));
    return {};
  }

  // Launches outside graphs are numbered from 1 on; the last kEvents of them have an event each.
  cudaEvent_t event(uint64_t number) const { return events_[number % kEvents]; }
  void settle(uint64_t number) {
    uint64_t before = settled_.load(std::memory_order_relaxed);
    while (before < number && !settled_.compare_exchange_weak(before, number, std::memory_order_relaxed)) {
    }
  }
  // Whether a launch is over, and with it all before. One that is long past may be taken for one that is not, as long as
  // none of the last kEvents is over.
  bool over(uint64_t number) {
    if (settled_.load(std::memory_order_relaxed) >= number) return true;
    const uint64_t newest = launched_.load(std::memory_order_acquire);
    const uint64_t seen = std::max(number, newest < kEvents ? 1 : newest - kEvents + 1);
    const cudaError_t state = cudaEventQuery(event(seen));
    if (state != cudaSuccess) (void)cudaGetLastError();
    if (state == cudaErrorNotReady) return false;
    settle(seen);
    return true;
  }

  // Whether the last launch outside a graph is still on the device.
  bool outstanding() { return !over(launched_.load(std::memory_order_acquire)); }

  void waitOrAbort() {
    const int64_t end = nowMs() + 2000;
    while (outstanding() && nowMs() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (outstanding()) abort();
    (void)cudaEventSynchronize(event(launched_.load()));
  }

  // Ends kernels that wait for a rank that has died, or has not launched before the deadline.
  void watch() {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // a look from here disturbs no capture
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    (void)cudaSetDevice(s_.device);
    int64_t troubleSince = 0;
    std::unique_lock lock(watch_);
    while (!stop_) {
      wake_.wait_for(lock, kLook, [this] { return stop_; });
      if (stop_ || !sticky_.ok()) continue;
      const Status trouble = lookAround();
      if (trouble.ok()) {
        troubleSince = 0;
        continue;
      }
      // The gone rank's own kernels may have done all that this rank's wait for: a moment for that.
      if (troubleSince == 0) troubleSince = nowMs();
      if (nowMs() - troubleSince < kGrace.count()) continue;
      sticky_ = trouble;
      ended_.store(true, std::memory_order_release);
      abort();
      ULYSSES_LOG(Warn, s_.device, "rank {} of {}: {}", s_.rank, s_.nranks, trouble.message());
    }
  }

  Status lookAround() {
    const bool busy = outstanding();
    ControlPage& page = *s_.agreement->page();
    if (const int by = static_cast<int>(page.aborted().load()); by != 0)
      return Status(ulyssesRemoteError, formatText("rank {} aborted the communicator", by - 1));
    const uint64_t mine = page.rank(s_.rank).launches.load();
    for (int r = 0; r < s_.nranks; ++r) {
      if (r == s_.rank) continue;
      const bool behind = page.rank(r).launches.load(std::memory_order_acquire) < mine;
      if (page.rank(r).departed.load() != 0) {
        if (busy && behind) return Status(ulyssesRemoteError, formatText("rank {} has destroyed its communicator", r));
      } else if (s_.channel->dead(r)) {
        return Status(ulyssesRemoteError, formatText("the process of rank {} has died", r));
      } else if (busy && behind && s_.timeoutMs >= 0 && nowMs() - launchedMs_.load() > s_.timeoutMs) {
        return Status(ulyssesTimeout, formatText("rank {} did not launch the exchange before the deadline", r));
      }
    }
    return {};
  }

  const Setup s_;
  uint32_t residentCtas_ = 1;
  device::HostWords* host_ = nullptr;
  device::HostWords* hostOnDevice_ = nullptr;
  DeviceBuffer windows_;
  std::unique_ptr<CtaAccount> ledger_;  // null for one rank alone
  uint32_t heldEager_ = 0, heldRecorded_ = 0;  // CTAs of this rank in it
  bool crowded_ = false;
  Chain main_;
  std::shared_ptr<Chain> recorded_;  // of eager calls in graphs

  static constexpr uint64_t kEvents = 16;
  std::array<cudaEvent_t, kEvents> events_{};
  std::atomic<uint64_t> launched_{0}, settled_{0};  // launches; those known to be over
  std::array<uint64_t, kTableRows> lastUse_{};      // by window: the last launch that has it among its buffers
  cudaStream_t lastStream_ = nullptr;
  bool lastDirect_ = false;
  std::atomic<int64_t> launchedMs_{0};

  std::thread monitor_;
  std::mutex watch_;
  std::condition_variable wake_;
  bool stop_ = false;
  Status sticky_;
  std::atomic<bool> ended_{false};  // sticky_ is set, and stays
};

}  // namespace

bool isCapturing(ulyssesStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) (void)cudaGetLastError();
  return status != cudaStreamCaptureStatusNone;
}

Status copyOnDevice(const Schedule& schedule, const void* const in[], void* const out[], ulyssesStream_t stream) {
  for (size_t i = 0; i < schedule.operands; ++i)
    for (const layout::BlockCopy& c : schedule.shares[0][i].direct.copies()) {
      const auto* src = static_cast<const std::byte*>(in[i]) + c.srcOffset;
      auto* dst = static_cast<std::byte*>(out[i]) + c.dstOffset;
      if (src != dst)
        ULYSSES_CUDA(cudaMemcpy2DAsync(dst, c.dstPitch, src, c.srcPitch, c.rowBytes, c.rows, cudaMemcpyDeviceToDevice, stream));
    }
  return {};
}

Status synchroniseStream(ulyssesStream_t stream) { return cudaStatus(cudaStreamSynchronize(stream), "waiting for the stream"); }

int currentCudaDevice() {
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  return device;
}

void setCurrentCudaDevice(int device) {
  if (device >= 0 && cudaSetDevice(device) != cudaSuccess) (void)cudaGetLastError();
}

Result<std::unique_ptr<DeviceTransport>> DeviceTransport::create(const Setup& setup, Deadline deadline) {
  auto transport = std::make_unique<CudaTransport>(setup);
  ULYSSES_TRY(transport->setUp(deadline));
  return std::unique_ptr<DeviceTransport>(std::move(transport));
}

}  // namespace ulysses
#endif
