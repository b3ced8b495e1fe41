// The fused path on device memory: what the kernels need is set up here, collectively; launches are local and wait for
// nothing.
#ifdef ULYSSES_HAVE_CUDA
#include "transport/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
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
#include "plan/launch_shape.h"
#include "window/ipc.h"

namespace ulysses {
namespace {

constexpr uint32_t kTableRows = 1024;            // windows a communicator may have at once
constexpr size_t kSmallBytes = size_t{16} << 10;  // per pair
constexpr size_t kStagingsInCap = 8;             // every plan has its own, beside the one of eager calls
constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kGrace = std::chrono::milliseconds(200);  // for the kernels of a rank that has gone in good order

Status cudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  const bool memory = error == cudaErrorMemoryAllocation;
  return Status(memory ? ulyssesOutOfMemory : ulyssesUnhandledCudaError,
                formatText("{}: {}", what, cudaGetErrorString(error)));
}
#define ULYSSES_CUDA(call) ULYSSES_TRY(cudaStatus((call), #call))

struct DeviceFree {
  void operator()(void* p) const { (void)cudaFree(p); }
};
using DeviceBuffer = std::unique_ptr<void, DeviceFree>;

Result<DeviceBuffer> deviceBuffer(size_t bytes) {
  void* p = nullptr;
  ULYSSES_TRY(cudaStatus(cudaMalloc(&p, bytes), "device memory for tables"));
  DeviceBuffer buffer(p);
  ULYSSES_CUDA(cudaMemset(p, 0, bytes));
  return buffer;
}

// Flags, staging and epoch: what one chain of launches needs.
struct Chain {
  Chain() = default;
  Chain(const Chain&) = delete;
  ~Chain() {  // local: the peers learn of it at their next call
    for (const uint32_t window : {stagingWindow, flagsWindow})
      if (window != 0) (void)registrar->release(registrar->base(channel.rank, window));
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
  Shape shape;
  DeviceBuffer table;
  uint32_t blocks = 0;
  int operands = 0;
  std::vector<size_t> outExtent;
  std::shared_ptr<Chain> own;  // for launches under capture
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
    if (last_ != nullptr) {
      if (host_ != nullptr && outstanding()) waitOrAbort();
      (void)cudaEventDestroy(last_);
    }
    if (host_ != nullptr) (void)cudaFreeHost(host_);
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
    // Stage 2: flags.
    ULYSSES_TRY(makeChain(&main_, deadline));
    monitor_ = std::thread([this] { watch(); });
    return {};
  }

  bool capturing(ulyssesStream_t stream) const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) (void)cudaGetLastError();
    return status != cudaStreamCaptureStatusNone;
  }

  Status prepare(std::span<const Schedule* const> schedules, bool forCapture, std::vector<std::shared_ptr<Prepared>>* out,
                 Deadline deadline) override {
    const DeviceGuard guard(s_.device);
    Status status = guard.status();
    if (status.ok()) status = hooks::injectedFailure(hooks::Stage::Tables);
    size_t staging = 0;
    for (const Schedule* schedule : schedules) {
      auto prepared = std::make_shared<Prepared>();
      if (status.ok()) status = prepareOne(*schedule, *prepared);
      staging = std::max(staging, prepared->shape.stagingBytes);
      out->push_back(std::move(prepared));
    }
    ULYSSES_TRY(agreeStage(*s_.channel, status, deadline));
    ULYSSES_TRY(ensureStaging(main_, staging, deadline));
    if (!forCapture) return {};
    auto chain = std::make_shared<Chain>();
    ULYSSES_TRY(makeChain(chain.get(), deadline));
    ULYSSES_TRY(ensureStaging(*chain, staging, deadline));
    for (const std::shared_ptr<Prepared>& p : *out) p->own = chain;
    return {};
  }

  Status prepareOne(const Schedule& schedule, Prepared& prepared) const {
    LaunchFacts facts;
    facts.largestPayload = schedule.largestPayload;
    facts.nranks = s_.nranks;
    facts.ranksPerDevice = s_.ranksPerDevice;
    facts.residentCtas = residentCtas_;
    facts.maxCtas = s_.maxCtas;
    facts.stagingLimit = std::min(s_.stagingLimit, s_.registrar->capBytes() / kStagingsInCap);
    facts.smallBytes = kSmallBytes;
    const LaunchShape shape = launchShape(facts);
    if (!shape.small && shape.tileBytes == 0)
      return Status(ulyssesOutOfMemory, formatText("{} bytes of staging (the smaller of ULYSSES_STAGING and an eighth of the "
                                                   "window cap) leave no room for {} ranks", facts.stagingLimit, s_.nranks));
    prepared.shape = {shape.ctas, shape.tileBytes, shape.small, shape.small ? 0 : shape.stagingBytes};
    prepared.operands = static_cast<int>(schedule.operands);
    prepared.outExtent = schedule.outExtent;
    return upload(schedule, prepared);
  }

  Status launch(Prepared& p, uint64_t contract, const void* const in[], void* const out[],
                ulyssesStream_t stream) override {
    const DeviceGuard guard(s_.device);
    ULYSSES_TRY(guard.status());
    const bool recording = capturing(stream);
    if (recording && p.own == nullptr)
      return Status(ulyssesInvalidUsage, "an eager call cannot be captured: capture a plan's execution");
    Chain& chain = recording ? *p.own : main_;
    if (p.shape.stagingBytes > chain.stagingBytes)  // the same on all ranks
      return Status(ulyssesOutOfMemory, formatText("{} bytes of staging are needed; they were given up for more, which could "
                                                   "not be had", p.shape.stagingBytes));

    device::Exchange x{};
    x.channel = chain.channel;
    x.contract = contract;
    x.table = static_cast<const device::WorkTable*>(p.table.get());
    x.blocks = p.blocks;
    x.operands = p.operands;
    x.ctas = p.shape.ctas;
    x.tileBytes = std::max<uint64_t>(p.shape.tileBytes, device::kUnit);
    bool plain = contract == 0;
    for (int i = 0; i < p.operands && contract != 0; ++i) {
      x.in[i] = in[i];
      x.out[i] = out[i];
      const Location l = s_.registrar->locate(out[i], p.outExtent[static_cast<size_t>(i)]);
      x.location[i] = device::windowLocation(l.window, l.offset);
      plain = plain || l.plain();
    }
    if (plain) std::fill(std::begin(x.location), std::end(x.location), device::kPlain);
    lastDirect_ = !plain;

    if (!recording && used_ && stream != lastStream_) ULYSSES_CUDA(cudaStreamWaitEvent(stream, last_, 0));
    const int error = p.shape.small ? device::launchSmallExchange(x, stream) : device::launchExchange(x, stream);
    ULYSSES_TRY(cudaStatus(static_cast<cudaError_t>(error), "launch of the exchange"));
    if (recording) return {};
    ULYSSES_CUDA(cudaEventRecord(last_, stream));
    lastStream_ = stream;
    used_ = true;
    launchedMs_.store(nowMs(), std::memory_order_relaxed);
    pending_.store(true, std::memory_order_release);
    s_.agreement->page()->rank(s_.rank).launches.fetch_add(1, std::memory_order_release);
    return {};
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
    return agreeStage(*s_.channel, status, deadline);
  }

  Status takeError() override {
    {
      const std::lock_guard lock(watch_);
      if (!sticky_.ok()) return sticky_;
    }
    const auto* words = static_cast<volatile device::HostWords*>(host_);
    if (words->error != static_cast<uint32_t>(device::KernelError::Mismatch)) return {};
    const int rank = words->errorRank;
    static_cast<volatile device::HostWords*>(host_)->error = 0;
    return Status(ulyssesMismatch, formatText("rank {} launched an earlier exchange with another contract (or with wrong "
                                              "arguments) than rank 0: nothing was stored on any rank", rank));
  }

  void abort() override {
    if (host_ != nullptr) static_cast<volatile device::HostWords*>(host_)->abort = 1;
  }

  Shape shapeOf(const Prepared& prepared) const override { return prepared.shape; }

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
    ULYSSES_CUDA(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming));
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
    if (!used_) return {};
    ULYSSES_CUDA(cudaEventSynchronize(last_));
    pending_.store(false);
    return {};
  }

  static Status upload(const Schedule& schedule, Prepared& prepared) {
    if (schedule.operands > static_cast<size_t>(device::kMaxOperands))
      return Status(ulyssesNotSupported, formatText("{} operands; on device memory a plan has at most {}", schedule.operands,
                                                    device::kMaxOperands));
    const std::vector<unsigned char> table = device::makeWorkTable(
        schedule.rank, schedule.nranks, static_cast<int>(schedule.operands),
        [&](int from, int to, int operand) { return schedule.copies(from, to, static_cast<size_t>(operand)); });
    prepared.blocks = device::blockCount(table);
    ULYSSES_ASSIGN(prepared.table, deviceBuffer(table.size()));
    ULYSSES_CUDA(cudaMemcpy(prepared.table.get(), table.data(), table.size(), cudaMemcpyHostToDevice));
    return {};
  }

  // Whether the last launch outside a graph is still on the device.
  bool outstanding() {
    if (!pending_.load(std::memory_order_acquire)) return false;
    const cudaError_t state = cudaEventQuery(last_);
    if (state == cudaErrorNotReady) return true;
    if (state != cudaSuccess) (void)cudaGetLastError();
    pending_.store(false, std::memory_order_relaxed);
    return false;
  }

  void waitOrAbort() {
    const int64_t end = nowMs() + 2000;
    while (outstanding() && nowMs() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (outstanding()) abort();
    (void)cudaEventSynchronize(last_);
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
  Chain main_;
  cudaEvent_t last_ = nullptr;
  cudaStream_t lastStream_ = nullptr;
  bool used_ = false, lastDirect_ = false;
  std::atomic<bool> pending_{false};
  std::atomic<int64_t> launchedMs_{0};

  std::thread monitor_;
  std::mutex watch_;
  std::condition_variable wake_;
  bool stop_ = false;
  Status sticky_;
};

}  // namespace

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
