#include "device/device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "device/block.h"
#include "device/permute.h"

namespace ulysses::perf {
namespace {

Status cudaStatus(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  return {error == cudaErrorMemoryAllocation ? ulyssesOutOfMemory : ulyssesUnhandledCudaError,
          fmt::format("{}: {}", what, cudaGetErrorString(error))};
}

// Streams of threads that shared a hardware queue would wait for each other's waiting kernels. Before the first call.
int deviceCount() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : (static_cast<void>(cudaGetLastError()), 0);
}

class CudaRecording final : public Recording {
 public:
  ~CudaRecording() override {
    if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
  }
  cudaGraphExec_t exec = nullptr;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int number) : number_(number) {}
  ~CudaDevice() override {
    for (const cudaEvent_t event : marks_)
      if (event != nullptr) (void)cudaEventDestroy(event);
    for (const auto& span : spans_)
      for (const cudaEvent_t event : span) (void)cudaEventDestroy(event);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  Status setUp() {
    ULYSSES_TRY(cudaStatus(cudaSetDevice(number_), "cudaSetDevice"));
    ULYSSES_TRY(cudaStatus(cudaGetDeviceProperties(&properties_, number_), "cudaGetDeviceProperties"));
    ULYSSES_TRY(cudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    for (cudaEvent_t& event : marks_) ULYSSES_TRY(cudaStatus(cudaEventCreate(&event), "cudaEventCreate"));
    return {};
  }

  std::string name() const override { return properties_.name; }
  int number() const override { return number_; }
  void reachPeers() override {
    for (int peer = 0; peer < deviceCount(); ++peer)  // the library may have been there before
      if (peer != number_ && cudaDeviceEnablePeerAccess(peer, 0) != cudaSuccess) (void)cudaGetLastError();
  }
  size_t cacheBytes() const override { return static_cast<size_t>(properties_.l2CacheSize); }
  size_t memoryBytes() const override {
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }
  ulyssesStream_t stream() const override { return stream_; }

  Result<std::byte*> allocate(size_t bytes) override {
    void* data = nullptr;
    ULYSSES_TRY(cudaStatus(cudaMalloc(&data, bytes), fmt::format("{} bytes of device memory", bytes)));
    return static_cast<std::byte*>(data);
  }
  void free(std::byte* data) override { (void)cudaFree(data); }

  void put(std::byte* to, const std::byte* from, size_t bytes) override {
    keep(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
    keep(cudaStreamSynchronize(stream_));
  }
  void get(std::byte* to, const std::byte* from, size_t bytes) override {
    keep(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    keep(cudaStreamSynchronize(stream_));
  }
  void set(std::byte* data, int value, size_t bytes) override { keep(cudaMemsetAsync(data, value, bytes, stream_)); }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    keep(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
  }
  void permute(std::byte* to, const std::byte* from, size_t tokens, size_t peers, size_t units, bool back) override {
    keep(static_cast<cudaError_t>(launchPermute(to, from, tokens, peers, units, back, stream_)));
  }
  void look(const std::byte* data, size_t bytes, uint64_t visit, std::byte* sum) override {
    keep(static_cast<cudaError_t>(launchLook(data, bytes, visit, reinterpret_cast<uint64_t*>(sum), stream_)));
  }
  void busy(int us) override {
    if (us > 0) keep(static_cast<cudaError_t>(launchBusy(us, stream_)));
  }

  Status finish() override {
    keep(cudaStreamSynchronize(stream_));
    return std::exchange(first_, Status());
  }
  void mark(int which) override { keep(cudaEventRecord(marks_[which], stream_)); }
  double markedUs() const override {
    float ms = 0;
    return cudaEventElapsedTime(&ms, marks_[0], marks_[1]) == cudaSuccess ? static_cast<double>(ms) * 1e3 : 0;
  }
  void beginSpan() override {
    if (spansInUse_ == spans_.size()) {
      std::array<cudaEvent_t, 2> span{};
      for (cudaEvent_t& event : span) keep(cudaEventCreate(&event));
      spans_.push_back(span);
    }
    keep(cudaEventRecord(spans_[spansInUse_][0], stream_));
  }
  void endSpan() override { keep(cudaEventRecord(spans_[spansInUse_++][1], stream_)); }
  double spansUs() override {
    double us = 0;
    for (size_t i = 0; i < spansInUse_; ++i) {
      float ms = 0;
      keep(cudaEventElapsedTime(&ms, spans_[i][0], spans_[i][1]));
      us += static_cast<double>(ms) * 1e3;
    }
    spansInUse_ = 0;
    return us;
  }

  Result<std::unique_ptr<Recording>> record(const std::function<Status()>& work) override {
    // Of this thread alone: other ranks' threads allocate meanwhile.
    ULYSSES_TRY(
        cudaStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    const Status worked = work();
    cudaGraph_t graph = nullptr;
    const Status ended = cudaStatus(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    auto recording = std::make_unique<CudaRecording>();
    Status made = worked.ok() ? ended : worked;
    if (made.ok()) made = cudaStatus(cudaGraphInstantiate(&recording->exec, graph, 0), "cudaGraphInstantiate");
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    if (made.ok()) made = cudaStatus(cudaGraphUpload(recording->exec, stream_), "cudaGraphUpload");
    if (!made.ok()) return made;
    return std::unique_ptr<Recording>(std::move(recording));
  }
  Status replay(const Recording& recording) override {
    return cudaStatus(cudaGraphLaunch(static_cast<const CudaRecording&>(recording).exec, stream_), "cudaGraphLaunch");
  }

 private:
  void keep(cudaError_t error) {
    if (Status status = cudaStatus(error, "on the GPU"); first_.ok()) first_ = std::move(status);
  }

  const int number_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t marks_[2] = {};
  std::vector<std::array<cudaEvent_t, 2>> spans_;
  size_t spansInUse_ = 0;
  Status first_;
};

}  // namespace

std::string Device::whyNone() {
  return deviceCount() > 0 ? "" : "there is no GPU";
}

int Device::count() {
  return deviceCount();
}

Result<std::unique_ptr<Device>> Device::open(int rank) {
  const int count = deviceCount();
  if (count == 0) return Status(ulyssesNotSupported, "device memory: " + whyNone());
  auto device = std::make_unique<CudaDevice>(rank % count);
  ULYSSES_TRY(device->setUp());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace ulysses::perf
