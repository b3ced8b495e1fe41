// How fast the product is through its C API, ranks on the GPUs that they are dealt: `product_bench large|host|overlap` and,
// where they share one, with MPS, `replay`.
// Prints one JSON object a line.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>

#include "gpu/bench/kernels.h"
#include "gpu/support/device_ranks.h"
#include "perf/device/permute.h"

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

// A stream of a rank's, on its GPU.
struct Lane {
  int rank;
  cudaStream_t stream;
};
std::vector<Lane> lanesOf(const Side* sides, int ranks) {
  std::vector<Lane> lanes;
  for (int r = 0; r < ranks; ++r) lanes.push_back({r, sides[r].stream});
  return lanes;
}

class Driver {
 public:
  Driver(const Side* sides, int ranks) : Driver(ranks, lanesOf(sides, ranks), lanesOf(sides, ranks)) {}
  // Time from a start that all of `started` wait for until all of `timed` are over.
  Driver(int ranks, std::vector<Lane> started, std::vector<Lane> timed)
      : ranks_(ranks), started_(std::move(started)), timed_(std::move(timed)), done_(timed_.size()) {
    cudaStreamCreateWithFlags(&clock_, cudaStreamNonBlocking);
    cudaEventCreate(&start_);
    cudaEventCreate(&end_);
    for (size_t i = 0; i < timed_.size(); ++i) {
      takeDeviceOf(timed_[i].rank);
      cudaEventCreateWithFlags(&done_[i], cudaEventDisableTiming);
      enablePeers();
    }
    takeDeviceOf(0);
  }

  // `work` is called for every rank, with its GPU current. Negative where something went wrong.
  double milliseconds(const std::function<bool(size_t)>& work) {
    bool good = true;
    delay(100000 + 50000 * static_cast<uint64_t>(ranks_), clock_);  // until everything is enqueued
    cudaEventRecord(start_, clock_);
    for (const Lane& lane : started_) cudaStreamWaitEvent(lane.stream, start_, 0);
    for (int r = 0; r < ranks_; ++r) {
      takeDeviceOf(r);
      good = work(static_cast<size_t>(r)) && good;
    }
    takeDeviceOf(0);
    for (size_t i = 0; i < timed_.size(); ++i) {
      cudaEventRecord(done_[i], timed_[i].stream);
      cudaStreamWaitEvent(clock_, done_[i], 0);
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
  const int ranks_;
  const std::vector<Lane> started_, timed_;
  cudaStream_t clock_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
  std::vector<cudaEvent_t> done_;
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
      const double plain = driver.median([&](size_t r) {
        return cudaMemcpyAsync(sides[r].out->data(), sides[r].in->data(), bytes, cudaMemcpyDeviceToDevice, sides[r].stream) == cudaSuccess;
      });
      const auto permute = [&](size_t r, DeviceTensor& to, const DeviceTensor& from) {
        return perf::launchPermute(to.data(), from.data(), seq / p, P, units / p, !scatter, sides[r].stream) == 0;
      };
      const double baseline = driver.median([&](size_t r) {
        return scatter ? permute(r, *sides[r].packed, *sides[r].in) && copies(r, scatter)
                       : copies(r, scatter) && permute(r, *sides[r].out, *sides[r].packed);
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

// An exchange into a window beside a chain of GEMMs on another stream of every rank: how much of it they hide, and how much
// longer they take for it.
std::string overlap(int P, size_t seq, int maxCtas) {
  static constexpr uint32_t kSide = 2048;
  static std::array<Side, 8> sides, chains;
  const size_t bytes = seq / static_cast<size_t>(P) * kHeads * kHeadDim * 2;
  ulyssesConfig_t config = deviceConfig();
  config.maxCtas = maxCtas;
  return onDevice(As::Threads, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
    const size_t me = static_cast<size_t>(rank), matrix = size_t{kSide} * kSide * sizeof(float);
    DeviceTensor in(bytes), a(matrix), b(matrix), c(matrix);
    cudaStream_t compute = nullptr;
    EXPECT_RANK(cudaOk(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking)) == "");
    EXPECT_RANK(cudaOk(cudaMemset(a.data(), 0, matrix)) == "" && cudaOk(cudaMemset(b.data(), 0, matrix)) == "");
    Side& side = sides[me];
    side.stream = stream;
    side.in = &in;
    chains[me].stream = compute;
    chains[me].in = &a, chains[me].out = &c, chains[me].packed = &b;
    const size_t p = static_cast<size_t>(P), units = kHeads * kHeadDim * 2 / 16;
    fill(in.data(), {me * seq / p, seq / p, 0, units, units}, 9, stream);
    EXPECT_OK(ulyssesMemAlloc(&side.window, bytes, comm));
    ulyssesA2ADesc_t d = descOf(seq, ulyssesScatterHeads);
    d.boundOut = side.window;
    EXPECT_OK(ulyssesPlanCreate(&side.plan, 1, &d, comm));
    const ulyssesPlanInfo_t info = testing::infoOf(side.plan);
    cudaDeviceSynchronize();
    meeting.wait();
    if (rank == 0) {
      const auto exchanged = [](size_t r) { return execute(sides[r].plan, sides[r].in->data(), sides[r].window, sides[r].stream) == ulyssesSuccess; };
      const auto multiplied = [](size_t r, int times) {
        const auto floats = [](const DeviceTensor* t) { return reinterpret_cast<float*>(t->data()); };
        for (int i = 0; i < times; ++i)
          multiply(floats(chains[r].in), floats(chains[r].packed), floats(chains[r].out), kSide, chains[r].stream);
        return cudaGetLastError() == cudaSuccess;
      };
      const std::vector<Lane> computing = lanesOf(chains.data(), P);
      std::vector<Lane> all = lanesOf(sides.data(), P);
      all.insert(all.end(), computing.begin(), computing.end());
      Driver exchange(sides.data(), P), chain(chains.data(), P), both(P, all, all), beside(P, all, computing);
      const double alone = exchange.median(exchanged), one = chain.median([&](size_t r) { return multiplied(r, 1); });
      EXPECT_RANK(alone > 0 && one > 0);
      const int times = std::max(2, static_cast<int>(2 * alone / one));
      const double gemms = chain.median([&](size_t r) { return multiplied(r, times); });
      EXPECT_RANK(gemms > 0);
      const double together = both.median([&](size_t r) { return exchanged(r) && multiplied(r, times); });
      // With exchanges beside it for longer than it takes.
      const int exchanges = std::max(2, static_cast<int>(2 * gemms / alone));
      const double slowed = beside.median([&](size_t r) {
        bool good = true;
        for (int i = 0; i < exchanges; ++i) good = exchanged(r) && good;
        return multiplied(r, times) && good;
      });
      EXPECT_RANK(gemms > 0 && slowed > 0 && together > 0);
      const std::string how = std::string(info.path) + ", " + std::to_string(info.ctas) + " CTAs, " + std::to_string(times) + " GEMMs of " + std::to_string(kSide);
      record("exchange alone", P, bytes, how, alone, "ms");
      record("GEMM chain alone", P, bytes, how, gemms, "ms");
      record("both", P, bytes, how, together, "ms");
      record("of the exchange hidden", P, bytes, how, 100 * (alone + gemms - together) / alone, "%");
      record("GEMM chain beside exchanges", P, bytes, how, slowed / gemms, "times as long");
    }
    meeting.wait();
    EXPECT_RANK(cudaOk(cudaStreamSynchronize(stream)) == "" && cudaOk(cudaStreamSynchronize(compute)) == "");
    DeviceTensor wrong(8);
    cudaMemsetAsync(wrong.data(), 0, 8, stream);
    countWrong(side.window, {0, seq, me * units / p, units / p, units}, 9, reinterpret_cast<unsigned long long*>(wrong.data()), stream);
    EXPECT_RANK(cudaStreamSynchronize(stream) == cudaSuccess && wrong.content() == std::vector<unsigned char>(8, 0));
    meeting.wait();
    EXPECT_OK(ulyssesPlanDestroy(side.plan));
    EXPECT_OK(ulyssesMemFree(side.window, comm));
    cudaStreamDestroy(compute);
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
  } else if (what == "overlap") {
    const int P = gpus() >= 8 ? 8 : gpus() >= 4 ? 4 : 2;
    wrong += overlap(P, 32000, maxCtas) + overlap(P, 128000, maxCtas);
  } else {
    std::fprintf(stderr, "usage: product_bench large|host|replay|overlap [most CTAs]\n");
    return 2;
  }
  if (!wrong.empty()) std::fprintf(stderr, "product_bench: %s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}
