// Ranks, device buffers and communicators for tests of the C API on device memory. Ranks are dealt the GPUs in turn
// (gpus.h).
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/test_hooks.h"
#include "gpu/support/gpus.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "topology/nccl_library.h"

namespace ulysses::testing {

// gpusToUse(), asked in a child: a process that forks ranks must not have touched CUDA itself.
inline int gpus() {
  static const int count =
      std::atoi(runRanks(As::Processes, 1, [](int) { return std::to_string(gpusToUse()); })[0].c_str());
  return count;
}
// Whether every one of P ranks has a GPU of its own.
inline bool ownGpus(int P) { return P <= gpus(); }
// Whether they have NCCL for what is not fused.
inline bool haveNccl(int P) {
  if (gpus() == 0) return false;
  const std::vector<NcclFacts> facts(static_cast<size_t>(P), ncclFacts(loadNccl()));
  return ncclRefusal(facts, (P + gpus() - 1) / gpus()).empty();
}
// Numbers of ranks: those given, and those of 2, 3, 4, 5 and 8 that there are GPUs for.
inline std::vector<int> rankCounts(std::vector<int> counts) {
  for (const int P : {2, 3, 4, 5, 8})
    if (gpus() > 1 && ownGpus(P) && std::find(counts.begin(), counts.end(), P) == counts.end()) counts.push_back(P);
  return counts;
}

#define NEEDS_GPU \
  if (gpus() == 0) ULYSSES_SKIP("no CUDA device")
// For what is about GPUs of the ranks' own, and for what is about ranks that share one.
#define NEEDS_GPUS(n)                                                                                      \
  NEEDS_GPU;                                                                                               \
  if (gpus() < (n))                                                                                        \
  ULYSSES_SKIP("GPUs of the ranks' own: " + std::to_string(n) + " are needed, ranks are dealt " + std::to_string(gpus()))
#define NEEDS_ONE_GPU \
  NEEDS_GPU;          \
  if (gpus() > 1) ULYSSES_SKIP("about ranks that share a GPU: these have " + std::to_string(gpus()) + " (ULYSSES_TEST_GPUS=1)")

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

// Ranks of one process that share a GPU share its context: one that allocates waits for kernels of the others, which wait for it. So
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

// Everything allocated and cleared on all ranks, before the first launch.
inline void settle(Meeting& meeting) {
  cudaDeviceSynchronize();
  meeting.wait();
}
// Everything launched is over on all ranks, before the first free.
inline bool finish(cudaStream_t stream, Meeting& meeting) {
  const bool good = cudaStreamSynchronize(stream) == cudaSuccess;
  meeting.wait();
  return good;
}

// A plan and its inverse, of one operand or several, destroyed together.
class PlanPair {
 public:
  PlanPair() = default;
  PlanPair(const PlanPair&) = delete;
  ~PlanPair() {
    (void)ulyssesPlanDestroy(inverse);
    (void)ulyssesPlanDestroy(plan);
  }
  ulyssesResult_t make(std::span<const ulyssesA2ADesc_t> descs, ulyssesComm_t comm) {
    const ulyssesResult_t made = ulyssesPlanCreate(&plan, static_cast<int>(descs.size()), descs.data(), comm);
    return made == ulyssesSuccess ? ulyssesPlanInverse(plan, nullptr, &inverse) : made;
  }
  ulyssesResult_t make(const ulyssesA2ADesc_t& desc, ulyssesComm_t comm) { return make(std::span(&desc, 1), comm); }

  ulyssesPlan_t plan = nullptr, inverse = nullptr;
};

// Executes a plan of one operand.
inline ulyssesResult_t execute(ulyssesPlan_t plan, const void* in, void* out, cudaStream_t stream) {
  return ulyssesPlanExecute(plan, &in, &out, stream);
}

inline ulyssesPlanInfo_t infoOf(ulyssesPlan_t plan) {
  ulyssesPlanInfo_t info = ULYSSES_PLAN_INFO_INITIALIZER;
  (void)ulyssesPlanGetInfo(plan, &info);
  return info;
}

// Records what `record` does on a stream, and replays it. Whoever throws it away has waited for the stream.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  ~Graph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  }
  // The body's text, or what went wrong.
  std::string record(cudaStream_t stream, const std::function<std::string()>& body,
                     cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal,
                     const std::function<void()>& ended = [] {}) {
    EXPECT_RANK(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
    const std::string text = body();
    cudaGraph_t graph = nullptr;
    const bool recorded = cudaStreamEndCapture(stream, &graph) == cudaSuccess;
    ended();  // what follows is forbidden while another rank's thread records in a mode that says so
    EXPECT_RANK(recorded && cudaGraphGetNodes(graph, nullptr, &nodes_) == cudaSuccess);
    const bool made = cudaGraphInstantiate(&exec_, graph, 0) == cudaSuccess;
    cudaGraphDestroy(graph);
    EXPECT_RANK(made && cudaGraphUpload(exec_, stream) == cudaSuccess);
    return text;
  }
  bool replay(cudaStream_t stream) const { return cudaGraphLaunch(exec_, stream) == cudaSuccess; }
  size_t nodes() const { return nodes_; }

 private:
  cudaGraphExec_t exec_ = nullptr;
  size_t nodes_ = 0;
};

// `architecture`: what the GPU is to the tuning table, where it is not to be what it is.
inline std::string onDevice(As as, int P, const DeviceBody& body, const ulyssesConfig_t& config = deviceConfig(),
                            const std::string& architecture = "") {
  Meeting meeting(as, P);
  const auto run = [&] {
    hooks::setArchitecture(architecture);
    const auto dealt = [](int rank) { return takeDeviceOf(rank) ? std::string() : "no device for the rank"; };
    return failures(runComms(as, P, [&](int rank, ulyssesComm_t comm) -> std::string {
      cudaStream_t stream = nullptr;
      EXPECT_RANK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
      const std::string text = body(rank, comm, stream, meeting);
      int device = -1;
      EXPECT_RANK(cudaGetDevice(&device) == cudaSuccess && device == deviceOf(rank));
      meeting.wait();
      cudaStreamSynchronize(stream);
      EXPECT_RANK(cudaGetLastError() == cudaSuccess || !text.empty());
      cudaStreamDestroy(stream);
      return text;
    }, &config, 120, dealt));
  };
  return as == As::Processes ? run() : inChild(run);
}

inline ulyssesDataType_t typeOf(size_t bytes) {
  return bytes == 1 ? ulyssesUint8 : bytes == 2 ? ulyssesBfloat16 : bytes == 4 ? ulyssesFloat32 : ulyssesFloat64;
}

inline ulyssesA2ADesc_t descOf(const Shape& t) {
  ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
  d.batch = t.B, d.seq = t.S, d.heads = t.H, d.headDim = t.D, d.dtype = typeOf(t.elementBytes);
  return d;
}

inline ulyssesResult_t exchange(const Shape& t, const void* in, void* out, ulyssesDirection_t direction, ulyssesComm_t comm,
                                cudaStream_t stream) {
  return ulyssesA2A(in, out, t.B, t.S, t.H, t.D, typeOf(t.elementBytes), direction, comm, stream);
}

// Eager, to plain outputs and back, every byte checked.
inline std::string roundTrip(const Shape& t, int P, int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) {
  DeviceTensor in(sequenceSide(t, P, rank)), out(headSide(t, P, rank).size()), back(in.content().size());
  settle(meeting);
  EXPECT_OK(exchange(t, in.data(), out.data(), ulyssesScatterHeads, comm, stream));
  EXPECT_OK(exchange(t, out.data(), back.data(), ulyssesGatherHeads, comm, stream));
  EXPECT_RANK(finish(stream, meeting));
  EXPECT_RANK(out.content() == headSide(t, P, rank) && out.intact());
  EXPECT_RANK(back.content() == in.content() && back.intact());
  return "";
}

// Whether the last error of this thread's calls says it.
inline bool lastErrorSays(const std::string& text) { return std::string(ulyssesGetLastError()).find(text) != std::string::npos; }

inline ulyssesCommInfo_t infoOf(ulyssesComm_t comm) {
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
  (void)ulyssesCommGetInfo(comm, &info);
  return info;
}

}  // namespace ulysses::testing
