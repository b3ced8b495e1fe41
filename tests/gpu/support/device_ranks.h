// Ranks, device buffers and communicators for tests of the C API on device memory. All ranks share GPU 0.
#pragma once

#include <cuda_runtime_api.h>

#include <barrier>
#include <cstdlib>
#include <memory>
#include <thread>

#include "support/ranks.h"
#include "support/tensors.h"

namespace ulysses::testing {

inline bool haveDevice() {
  // In a child: a process that forks ranks must not have touched CUDA itself.
  return failures(runRanks(As::Processes, 1, [](int) -> std::string {
           int n = 0;
           return cudaGetDeviceCount(&n) == cudaSuccess && n > 0 ? "" : "none";
         })) == "";
}

#define NEEDS_GPU \
  if (!haveDevice()) ULYSSES_SKIP("no CUDA device")

// Device memory with 64 canary bytes on both sides.
class DeviceTensor {
 public:
  explicit DeviceTensor(size_t bytes, size_t shift = 0) : bytes_(bytes), shift_(256 + shift) {
    cudaMalloc(&memory_, bytes + 1024 + shift);
    cudaMemset(memory_, 0xA5, bytes + 1024 + shift);
    poison();
  }
  explicit DeviceTensor(const std::vector<unsigned char>& content, size_t shift = 0) : DeviceTensor(content.size(), shift) {
    set(content);
  }
  DeviceTensor(const DeviceTensor&) = delete;
  ~DeviceTensor() { cudaFree(memory_); }
  unsigned char* data() const { return static_cast<unsigned char*>(memory_) + shift_; }
  void poison() {
    cudaMemset(data(), 0xEE, bytes_);
    cudaStreamSynchronize(nullptr);  // other streams do not wait for it
  }
  void set(const std::vector<unsigned char>& content) {
    cudaMemcpy(data(), content.data(), content.size(), cudaMemcpyHostToDevice);
  }
  std::vector<unsigned char> content() const {
    std::vector<unsigned char> host(bytes_);
    cudaMemcpy(host.data(), data(), bytes_, cudaMemcpyDeviceToHost);
    return host;
  }
  bool intact() const {
    std::vector<unsigned char> host(bytes_ + 128);
    cudaMemcpy(host.data(), data() - 64, host.size(), cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < 64; ++i)
      if (host[i] != 0xA5 || host[host.size() - 1 - i] != 0xA5) return false;
    return true;
  }
  bool untouched() const { return content() == std::vector<unsigned char>(bytes_, 0xEE) && intact(); }

 private:
  void* memory_ = nullptr;
  size_t bytes_, shift_;
};

// Ranks of one process share the GPU's context: one that allocates waits for kernels of the others, which wait for it. So
// all meet before the first launch and after the last.
class Meeting {
 public:
  Meeting(As as, int nranks) : threads_(as == As::Threads), barrier_(nranks) {}
  void wait() {
    if (threads_) barrier_.arrive_and_wait();
  }

 private:
  bool threads_;
  std::barrier<> barrier_;
};

inline ulyssesConfig_t deviceConfig(int timeoutMs = 20000) {
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.memory = ulyssesMemoryCuda;
  config.timeoutMs = timeoutMs;
  return config;
}

// Ranks as threads too run in a child, so that this process stays without CUDA.
inline std::string inChild(const std::function<std::string()>& run) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);  // a queue for every rank's stream
  const std::string text = failures(runRanks(As::Processes, 1, [&](int) { return run(); }, 150));
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return text;
}

using DeviceBody = std::function<std::string(int rank, ulyssesComm_t, cudaStream_t, Meeting&)>;

inline std::string onDevice(As as, int P, const DeviceBody& body, const ulyssesConfig_t& config = deviceConfig()) {
  Meeting meeting(as, P);
  const auto run = [&] {
    return failures(runComms(as, P, [&](int rank, ulyssesComm_t comm) -> std::string {
      EXPECT_RANK(cudaSetDevice(0) == cudaSuccess);
      cudaStream_t stream = nullptr;
      EXPECT_RANK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
      const std::string text = body(rank, comm, stream, meeting);
      int device = -1;
      EXPECT_RANK(cudaGetDevice(&device) == cudaSuccess && device == 0);
      meeting.wait();
      cudaStreamSynchronize(stream);
      EXPECT_RANK(cudaGetLastError() == cudaSuccess || !text.empty());
      cudaStreamDestroy(stream);
      return text;
    }, &config, 120));
  };
  return as == As::Processes ? run() : inChild(run);
}

inline ulyssesDataType_t typeOf(size_t bytes) {
  return bytes == 1 ? ulyssesUint8 : bytes == 2 ? ulyssesBfloat16 : bytes == 4 ? ulyssesFloat32 : ulyssesFloat64;
}

inline ulyssesCommInfo_t infoOf(ulyssesComm_t comm) {
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
  (void)ulyssesCommGetInfo(comm, &info);
  return info;
}

}  // namespace ulysses::testing
