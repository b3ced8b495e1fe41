// How fast the product is through its C API, all ranks on one GPU: `product_bench large|host` and, with MPS, `replay`.
// Prints one JSON object a line.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>

#include "gpu/bench/kernels.h"
#include "gpu/support/device_ranks.h"

namespace {

using namespace ulysses;
using namespace ulysses::testing;

constexpr size_t kHeads = 56, kHeadDim = 128;

void record(const char* what, int ranks, size_t bytes, const std::string& how, double value, const char* unit, double ofPlain = 0,
            double ofBaseline = 0) {
  std::printf("{\"what\": \"%s\", \"ranks\": %d, \"bytesPerRank\": %zu, \"how\": \"%s\", \"value\": %.4f, \"unit\": \"%s\"", what,
              ranks, bytes, how.c_str(), value, unit);
  if (ofPlain != 0) std::printf(", \"percentOfPlainCopy\": %.1f", ofPlain);
  if (ofBaseline != 0) std::printf(", \"timesPermuteAndCopies\": %.3f", ofBaseline);
  std::printf("}\n");
  std::fflush(stdout);
}

double medianOf(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::string cudaOk(cudaError_t error) { return error == cudaSuccess ? "" : cudaGetErrorString(error); }

ulyssesA2ADesc_t descOf(size_t seq, ulyssesDirection_t direction) {
  ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
  d.batch = 1, d.seq = seq, d.heads = kHeads, d.headDim = kHeadDim, d.direction = direction;
  return d;
}

// What one rank brings; rank 0 drives all of them, so that one clock sees all start and end.
struct Side {
  cudaStream_t stream = nullptr;
  DeviceTensor *in = nullptr, *out = nullptr, *packed = nullptr;
  void* window = nullptr;
  ulyssesPlan_t plan = nullptr;
  PlanePart outPart{};
};

class Driver {
 public:
  Driver(const Side* sides, int ranks) : sides_(sides), ranks_(static_cast<size_t>(ranks)) {
    cudaStreamCreateWithFlags(&clock_, cudaStreamNonBlocking);
    cudaEventCreate(&start_);
    cudaEventCreate(&end_);
    forEachRank([&](size_t r) {
      cudaEventCreateWithFlags(&done_[r], cudaEventDisableTiming);
      enablePeers();
    });
  }

  // Negative where something went wrong.
  double milliseconds(const std::function<bool(size_t)>& work) {
    bool good = true;
    delay(150000, clock_);  // until everything is enqueued
    cudaEventRecord(start_, clock_);
    for (size_t r = 0; r < ranks_; ++r) cudaStreamWaitEvent(sides_[r].stream, start_, 0);
    forEachRank([&](size_t r) { good = work(r) && good; });
    for (size_t r = 0; r < ranks_; ++r) {
      cudaEventRecord(done_[r], sides_[r].stream);
      cudaStreamWaitEvent(clock_, done_[r], 0);
    }
    cudaEventRecord(end_, clock_);
    float ms = 0;
    good = cudaEventSynchronize(end_) == cudaSuccess && good;
    good = cudaEventElapsedTime(&ms, start_, end_) == cudaSuccess && good;
    return good ? ms : -1;
  }

  double median(const std::function<bool(size_t)>& work, int rounds = 15) {
    std::vector<double> times;
    milliseconds(work);
    for (int i = 0; i < rounds; ++i) times.push_back(milliseconds(work));
    return *std::min_element(times.begin(), times.end()) < 0 ? -1 : medianOf(times);
  }

 private:
  // With the rank's GPU current.
  void forEachRank(const std::function<void(size_t)>& work) {
    for (size_t r = 0; r < ranks_; ++r) {
      takeDeviceOf(static_cast<int>(r));
      work(r);
    }
    takeDeviceOf(0);
  }

  const Side* sides_;
  size_t ranks_;
  cudaStream_t clock_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
  std::array<cudaEvent_t, 8> done_{};
};

// Both paths against the plain copy and permute + copies, which do without the handshakes that real ranks would need.
std::string large(int P, size_t seq, ulyssesDirection_t direction, int maxCtas) {
  static std::array<Side, 8> sides;
  const size_t p = static_cast<size_t>(P), units = kHeads * kHeadDim * 2 / 16, bytes = seq / p * units * 16;
  ulyssesConfig_t config = deviceConfig();
  config.maxCtas = maxCtas;
  const bool scatter = direction == ulyssesScatterHeads;
  return onDevice(As::Threads, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
    const size_t me = static_cast<size_t>(rank);
    const PlanePart bySequence{me * seq / p, seq / p, 0, units, units}, byHead{0, seq, me * units / p, units / p, units};
    DeviceTensor in(bytes), out(bytes), packed(bytes);
    Side& side = sides[me];
    side.stream = stream;
    side.in = &in, side.out = &out, side.packed = &packed;
    side.outPart = scatter ? byHead : bySequence;
    fill(in.data(), scatter ? bySequence : byHead, 9, stream);
    EXPECT_OK(ulyssesMemAlloc(&side.window, bytes, comm));
    const ulyssesA2ADesc_t d = descOf(seq, direction);
    EXPECT_OK(ulyssesPlanCreate(&side.plan, 1, &d, comm));
    ulyssesPlanInfo_t info = ULYSSES_PLAN_INFO_INITIALIZER;
    EXPECT_OK(ulyssesPlanGetInfo(side.plan, &info));
    cudaDeviceSynchronize();
    meeting.wait();
    if (rank == 0) {
      Driver driver(sides.data(), P);
      const auto execute = [&](bool direct) {
        return driver.median([&](size_t r) {
          const void* ins[] = {sides[r].in->data()};
          void* outs[] = {direct ? sides[r].window : sides[r].out->data()};
          return ulyssesPlanExecute(sides[r].plan, ins, outs, sides[r].stream) == ulyssesSuccess;
        });
      };
      const auto copies = [&](size_t r, bool fromPacked) {
        const size_t part = bytes / p;
        bool good = true;
        for (size_t step = 0; step < p; ++step) {
          const size_t peer = (r + step) % p;
          const unsigned char* from = (fromPacked ? sides[r].packed : sides[r].in)->data() + peer * part;
          unsigned char* to = (fromPacked ? sides[peer].out : sides[peer].packed)->data() + r * part;
          good = cudaMemcpyAsync(to, from, part, cudaMemcpyDeviceToDevice, sides[r].stream) == cudaSuccess && good;
        }
        return good;
      };
      const auto tokens = static_cast<uint32_t>(seq / p), peers = static_cast<uint32_t>(P), share = static_cast<uint32_t>(units / p);
      const double plain = driver.median([&](size_t r) {
        return cudaMemcpyAsync(sides[r].out->data(), sides[r].in->data(), bytes, cudaMemcpyDeviceToDevice, sides[r].stream) == cudaSuccess;
      });
      const double baseline = driver.median([&](size_t r) {
        if (scatter) permute(sides[r].in->data(), sides[r].packed->data(), tokens, peers, share, true, sides[r].stream);
        const bool good = copies(r, scatter);
        if (!scatter) permute(sides[r].packed->data(), sides[r].out->data(), tokens, peers, share, false, sides[r].stream);
        return good;
      });
      const std::string how = std::string(scatter ? "scatter" : "gather") + ", " + std::to_string(info.ctas) + " CTAs";
      record("plain copy", P, bytes, how, plain, "ms");
      record("permute + copies", P, bytes, how, baseline, "ms");
      for (const bool direct : {true, false}) {
        const double ms = execute(direct);
        EXPECT_RANK(ms > 0);
        record(direct ? "direct" : "staged", P, bytes, how, ms, "ms", 100 * plain / ms, baseline / ms);
      }
    }
    meeting.wait();
    DeviceTensor wrong(8);
    for (const void* result : {static_cast<const void*>(out.data()), static_cast<const void*>(side.window)}) {
      cudaMemsetAsync(wrong.data(), 0, 8, stream);
      countWrong(result, side.outPart, 9, reinterpret_cast<unsigned long long*>(wrong.data()), stream);
      EXPECT_RANK(cudaStreamSynchronize(stream) == cudaSuccess && wrong.content() == std::vector<unsigned char>(8, 0));
    }
    EXPECT_OK(ulyssesPlanDestroy(side.plan));
    EXPECT_OK(ulyssesMemFree(side.window, comm));
    return "";
  }, config);
}

// A rank's buffers and plan for the two that follow, ranks as processes.
struct Planned {
  DeviceTensor in, out;
  ulyssesPlan_t plan = nullptr;
  void* window = nullptr;
  explicit Planned(size_t bytes) : in(bytes), out(bytes) {}
  std::string make(size_t seq, size_t bytes, ulyssesComm_t comm) {
    const ulyssesA2ADesc_t d = descOf(seq, ulyssesScatterHeads);
    EXPECT_OK(ulyssesMemAlloc(&window, bytes, comm));
    EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
    return "";
  }
  ulyssesResult_t execute(bool direct, cudaStream_t stream) const {
    const void* ins[] = {in.data()};
    void* outs[] = {direct ? window : out.data()};
    return ulyssesPlanExecute(plan, ins, outs, stream);
  }
};

// What a call of Execute costs its caller.
std::string hostTime(int P, size_t seq) {
  const size_t bytes = seq * kHeads * kHeadDim * 2 / static_cast<size_t>(P);
  return onDevice(As::Processes, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting&) -> std::string {
    Planned planned(bytes);
    const std::string text = planned.make(seq, bytes, comm);
    if (!text.empty()) return text;
    for (const bool direct : {true, false}) {
      std::vector<double> times;
      for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 10; ++i) {
          const auto start = std::chrono::steady_clock::now();
          EXPECT_OK(planned.execute(direct, stream));
          const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
          if (round >= 4) times.push_back(took.count());
        }
        EXPECT_RANK(cudaOk(cudaStreamSynchronize(stream)) == "");
      }
      if (rank == 0) record("PlanExecute, host time", P, bytes, direct ? "direct" : "plain output", medianOf(times), "us");
    }
    EXPECT_OK(ulyssesPlanDestroy(planned.plan));
    return "";
  });
}

// Time per execution in a replayed graph of many, handshakes included.
std::string replay(int P, size_t seq, int maxCtas) {
  constexpr int kLaunches = 20, kReplays = 40;
  const size_t bytes = seq * kHeads * kHeadDim * 2 / static_cast<size_t>(P);
  ulyssesConfig_t config = deviceConfig();
  config.maxCtas = maxCtas;
  return onDevice(As::Processes, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting&) -> std::string {
    Planned planned(bytes);
    const std::string text = planned.make(seq, bytes, comm);
    if (!text.empty()) return text;
    cudaEvent_t start = nullptr, end = nullptr;
    EXPECT_RANK(cudaOk(cudaEventCreate(&start)) == "" && cudaOk(cudaEventCreate(&end)) == "");
    for (const bool direct : {true, false}) {
      EXPECT_OK(planned.execute(direct, stream));
      EXPECT_RANK(cudaOk(cudaStreamSynchronize(stream)) == "");
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      EXPECT_RANK(cudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)) == "");
      for (int i = 0; i < kLaunches; ++i) EXPECT_OK(planned.execute(direct, stream));
      EXPECT_RANK(cudaOk(cudaStreamEndCapture(stream, &graph)) == "");
      EXPECT_RANK(cudaOk(cudaGraphInstantiate(&exec, graph, 0)) == "" && cudaOk(cudaGraphUpload(exec, stream)) == "");
      std::vector<double> times;
      for (int i = 0; i < kReplays; ++i) {
        EXPECT_RANK(cudaOk(cudaStreamSynchronize(stream)) == "");
        EXPECT_OK(ulyssesA2A(nullptr, nullptr, 0, seq, kHeads, kHeadDim, ulyssesBfloat16, ulyssesScatterHeads, comm, stream));  // all meet
        EXPECT_RANK(cudaOk(cudaEventRecord(start, stream)) == "" && cudaOk(cudaGraphLaunch(exec, stream)) == "");
        EXPECT_RANK(cudaOk(cudaEventRecord(end, stream)) == "" && cudaOk(cudaStreamSynchronize(stream)) == "");
        float ms = 0;
        EXPECT_RANK(cudaOk(cudaEventElapsedTime(&ms, start, end)) == "");
        times.push_back(ms * 1000 / kLaunches);
      }
      ulyssesPlanInfo_t info = ULYSSES_PLAN_INFO_INITIALIZER;
      EXPECT_OK(ulyssesPlanGetInfo(planned.plan, &info));
      if (rank == 0)
        record("graph replay", P, bytes, std::string(direct ? "direct" : "plain output") + ", " + std::to_string(info.ctas) + " CTAs",
               medianOf(times), "us");
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
    }
    EXPECT_OK(ulyssesPlanDestroy(planned.plan));
    return "";
  }, config);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int maxCtas = argc > 2 ? std::atoi(argv[2]) : 0;
  std::string wrong;
  if (what == "large") {
    for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads}) wrong += large(4, 128000, direction, maxCtas);
  } else if (what == "host") {
    wrong += hostTime(2, 8) + hostTime(2, 1024);
  } else if (what == "replay") {
    wrong += replay(4, 8, maxCtas) + replay(4, 256, maxCtas) + replay(8, 256, maxCtas);
  } else {
    std::fprintf(stderr, "usage: product_bench large|host|replay [most CTAs]\n");
    return 2;
  }
  if (!wrong.empty()) std::fprintf(stderr, "product_bench: %s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}
