// How fast the kernels are, ranks on the GPUs that they are dealt: `exchange_bench large|narrow|long|curve` (ranks as
// threads) and `exchange_bench replay` (ranks as processes; start MPS first).
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "gpu/bench/kernels.h"
#include "gpu/support/rank.h"
#include "perf/device/permute.h"

namespace {

using namespace ulysses;
using namespace ulysses::testing;

constexpr size_t kElement = 2;

struct Shape {
  ulyssesDirection_t direction;
  size_t seq, heads, headDim;
};

// One rank's buffers and launch for one shape; P divides all of it.
struct Bench {
  GpuRank& rank;
  Shape shape;
  PlanePart inPart, outPart;
  size_t bytes;
  std::shared_ptr<void> in, out, packed, wrong, table;
  device::Exchange exchange{};

  Bench(GpuRank& r, const Shape& s) : rank(r), shape(s) {
    const size_t p = r.nranks(), me = r.rank(), units = s.heads * s.headDim * kElement / 16;
    const PlanePart bySequence{me * s.seq / p, s.seq / p, 0, units, units};
    const PlanePart byHead{0, s.seq, me * units / p, units / p, units};
    const bool scatter = s.direction == ulyssesScatterHeads;
    inPart = scatter ? bySequence : byHead;
    outPart = scatter ? byHead : bySequence;
    bytes = s.seq / p * units * 16;
    in = deviceBytes(bytes);
    out = deviceBytes(bytes);
    packed = deviceBytes(bytes);
    wrong = deviceBytes(8);
    fill(in.get(), inPart, 5, rank.stream());
    layout::OperandRequest request;
    request.direction = s.direction;
    request.batch = 1;
    request.seq = s.seq;
    request.heads = s.heads;
    request.headDim = s.headDim;
    request.elementBytes = kElement;
    const layout::Operand operand = layout::resolve(request, r.nranks()).take();
    const auto work = device::makeWorkTable(r.rank(), r.nranks(), 1, [&](int from, int to, int) {
      const auto strides = [&](int of, layout::Side side) {
        return layout::definiteStrides(layout::localShape(operand, of, side), {});
      };
      return layout::blockCopies(operand, from, to, strides(from, layout::Side::In), strides(to, layout::Side::Out));
    });
    table = uploadTable(work);
    exchange.channel = r.channel();
    exchange.contract = 1;
    exchange.table = static_cast<const device::WorkTable*>(table.get());
    exchange.blocks = device::blockCount(work);
    exchange.operands = 1;
    exchange.tileBytes = 65536;
    exchange.in[0] = in.get();
    setDirect(true);
    check(cudaStreamSynchronize(rank.stream()), "inputs");
  }

  void setDirect(bool direct) {
    exchange.location[0] = direct ? device::windowLocation(1, 0) : device::kPlain;
    exchange.out[0] = direct ? static_cast<void*>(rank.window()) : out.get();
  }

  void expectExchanged() {
    check(cudaMemsetAsync(wrong.get(), 0, 8, rank.stream()), "count");
    countWrong(exchange.out[0], outPart, 5, static_cast<unsigned long long*>(wrong.get()), rank.stream());
    unsigned long long count = 1;
    check(cudaMemcpyAsync(&count, wrong.get(), 8, cudaMemcpyDeviceToHost, rank.stream()), "count");
    rank.finish();
    if (count != 0) throw std::runtime_error(std::to_string(count) + " wrong units");
    check(cudaMemsetAsync(exchange.out[0], 0xee, bytes, rank.stream()), "poison");
    check(cudaStreamSynchronize(rank.stream()), "poison");
  }
};

// Ranks as threads: rank 0 drives all of them, so that one clock sees all start and end.
class Driver {
 public:
  explicit Driver(std::vector<Bench*> ranks) : ranks_(std::move(ranks)) {
    check(cudaStreamCreateWithFlags(&clock_, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t* event : {&start_, &end_}) check(cudaEventCreate(event), "event");
    forEachRank([&](Bench& b) {
      check(cudaEventCreateWithFlags(&done_[b.rank.rank()], cudaEventDisableTiming), "event");
      enablePeers();
    });
  }

  double milliseconds(const std::function<void(Bench&)>& work) {
    delay(150000, clock_);  // until everything is enqueued
    check(cudaEventRecord(start_, clock_), "event");
    for (Bench* b : ranks_) check(cudaStreamWaitEvent(b->rank.stream(), start_, 0), "wait");
    forEachRank(work);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      check(cudaEventRecord(done_[i], ranks_[i]->rank.stream()), "event");
      check(cudaStreamWaitEvent(clock_, done_[i], 0), "wait");
    }
    check(cudaEventRecord(end_, clock_), "event");
    for (Bench* b : ranks_) b->rank.finish(5000);
    check(cudaEventSynchronize(end_), "event");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start_, end_), "time");
    return ms;
  }

  double median(const std::function<void(Bench&)>& work, int rounds = 11) {
    std::vector<double> times;
    milliseconds(work);
    for (int i = 0; i < rounds; ++i) times.push_back(milliseconds(work));
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return times[rounds / 2];
  }

  // Two passes, so that a drift shows: the median of both.
  double exchanged(bool direct, uint32_t ctas, uint64_t tileBytes) {
    for (Bench* b : ranks_) {
      b->setDirect(direct);
      b->exchange.ctas = ctas;
      b->exchange.tileBytes = tileBytes;
    }
    const double ms = median([](Bench& b) {
      check(static_cast<cudaError_t>(device::launchExchange(b.exchange, b.rank.stream())), "launch");
    });
    forEachRank([](Bench& b) { b.expectExchanged(); });
    return ms;
  }
  double plainCopy() {
    return median([](Bench& b) {
      check(cudaMemcpyAsync(b.out.get(), b.in.get(), b.bytes, cudaMemcpyDeviceToDevice, b.rank.stream()), "copy");
    });
  }
  // Permute locally, then one copy per pair; the other way round for gather-heads.
  double permuteAndCopies() {
    const auto sizes = [](Bench& b) {
      const uint32_t p = b.rank.nranks();
      return std::array{static_cast<uint32_t>(b.shape.seq / p), p,
                        static_cast<uint32_t>(b.shape.heads / p * b.shape.headDim * kElement / 16)};
    };
    const auto copies = [&](Bench& b, bool packed) {
      for (size_t step = 0; step < ranks_.size(); ++step) {
        const size_t peer = (b.rank.rank() + step) % ranks_.size(), part = b.bytes / ranks_.size();
        const auto* from = static_cast<std::byte*>(packed ? b.packed.get() : b.in.get()) + peer * part;
        auto* to = static_cast<std::byte*>(packed ? ranks_[peer]->out.get() : ranks_[peer]->packed.get());
        check(cudaMemcpyAsync(to + b.rank.rank() * part, from, part, cudaMemcpyDeviceToDevice, b.rank.stream()),
              "copy");
      }
    };
    // Without the handshakes that real ranks would need between the steps: the baseline is flattered.
    const double ms = median([&](Bench& b) {
      const auto [tokens, peers, units] = sizes(b);
      const auto permute = [&, t = tokens, p = peers, u = units](void* to, const void* from, bool back) {
        check(static_cast<cudaError_t>(perf::launchPermute(to, from, t, p, u, back, b.rank.stream())), "permutation");
      };
      if (b.shape.direction == ulyssesScatterHeads) {
        permute(b.packed.get(), b.in.get(), false);
        copies(b, true);
      } else {
        copies(b, false);
        permute(b.out.get(), b.packed.get(), true);
      }
    });
    return ms;
  }

  std::vector<Bench*>& ranks() { return ranks_; }

 private:
  // With the rank's GPU current.
  void forEachRank(const std::function<void(Bench&)>& work) {
    for (Bench* b : ranks_) {
      check(cudaSetDevice(deviceOf(b->rank.rank())), "cudaSetDevice");
      work(*b);
    }
    check(cudaSetDevice(deviceOf(0)), "cudaSetDevice");
  }

  std::vector<Bench*> ranks_;
  cudaStream_t clock_;
  cudaEvent_t start_, end_, done_[device::kMaxRanks];
};

// Makes all ranks for a shape and lets rank 0 drive.
std::string driven(Party& party, const Shape& shape, size_t stagingBytes, const std::function<void(Driver&)>& measure) {
  static std::array<Bench*, device::kMaxRanks> benches;
  const size_t bytes = shape.seq * shape.heads * shape.headDim * kElement / party.nranks();
  GpuRank rank(party, {bytes, stagingBytes, 0});
  Bench bench(rank, shape);
  benches[party.rank()] = &bench;
  party.barrier();
  if (party.rank() == 0) {
    Driver driver(std::vector<Bench*>(benches.begin(), benches.begin() + party.nranks()));
    measure(driver);
  }
  party.barrier();
  return {};
}

const char* name(ulyssesDirection_t direction) {
  return direction == ulyssesScatterHeads ? "scatter" : "gather";
}

std::string large(Party& party, ulyssesDirection_t direction, size_t seq, size_t heads) {
  return driven(party, {direction, seq, heads, 128}, size_t{1} << 30, [&](Driver& d) {
    const double plain = d.plainCopy(), baseline = d.permuteAndCopies();
    std::printf("%s S=%zu H=%zu D=128 bf16 P=%d: plain copy %.4f ms, permute + copies %.4f ms\n", name(direction), seq,
                heads, party.nranks(), plain, baseline);
    const auto report = [&](const char* path, uint32_t ctas, uint64_t tile, double ms) {
      std::printf("  %-6s ctas %3u tile %4zu KiB  %.4f ms  %5.1f %% of plain  %.2fx permute + copies\n", path, ctas,
                  static_cast<size_t>(tile >> 10), ms, 100 * plain / ms, baseline / ms);
      std::fflush(stdout);
    };
    for (const uint32_t ctas : {8u, 16u, 24u, 33u}) report("direct", ctas, 65536, d.exchanged(true, ctas, 65536));
    for (const uint64_t tile : {8u << 10, 16u << 10, 32u << 10, 64u << 10, 128u << 10, 512u << 10}) {
      report("staged", 33, tile, d.exchanged(false, 33, tile));
    }
    for (const int inFlight : {2, 8}) {
      for (Bench* b : d.ranks()) b->exchange.tileBytes = 128 << 10;
      std::printf("  staged with %d in flight: %.4f ms\n", inFlight,
                  d.median([&](Bench& b) { launchVariant(b.exchange, inFlight, device::kThreads, b.rank.stream()); }));
    }
  });
}

// Staging that holds a whole plane against at most 128 MiB.
std::string longSequence(Party& party) {
  return driven(party, {ulyssesScatterHeads, 250000, 56, 128}, size_t{1} << 30, [&](Driver& d) {
    const uint32_t ctas = 33;
    const auto staging = [&](uint64_t tile) { return device::stagingBytes(party.nranks(), ctas, tile) / 1048576.0; };
    const uint64_t whole = 896000000 / (3 * 3 * ctas) / 16 * 16;
    std::printf("h3-250k, %u CTAs:\n", ctas);
    for (const uint64_t tile :
         {whole, uint64_t{32768}, uint64_t{65536}, uint64_t{131072}, uint64_t{262144}, uint64_t{451904}}) {
      std::printf("  staging %6.1f MiB: %.4f ms\n", staging(tile), d.exchanged(false, ctas, tile));
    }
  });
}

std::string curve(Party& party) {
  return driven(party, {ulyssesScatterHeads, 32000, 56, 128}, 4096, [&](Driver& d) {
    std::printf("payload per CTA, GB/s (S=32000 H=56 D=128 P=%d, direct)\nin flight threads", party.nranks());
    const uint32_t counts[] = {1, 2, 4, 8, 12, 16, 24, 33};
    for (const uint32_t ctas : counts) std::printf(" %6u", ctas);
    for (const int inFlight : {2, 4, 8}) {
      for (const int threads : {128, 256, 512}) {
        std::printf("\n%9d %7d", inFlight, threads);
        for (const uint32_t ctas : counts) {
          for (Bench* b : d.ranks()) b->exchange.ctas = ctas;
          const double ms =
              d.median([&](Bench& b) { launchVariant(b.exchange, inFlight, threads, b.rank.stream()); }, 5);
          std::printf(" %6.1f", d.ranks()[0]->bytes / ms / 1e6 / ctas);
        }
      }
    }
    std::printf("\n");
  });
}

// Time per launch in a graph of many, the slowest rank's.
std::string replay(Party& party, size_t seq) {
  const Shape shape{ulyssesScatterHeads, seq, 56, 128};
  const size_t bytes = seq * 56 * 128 * kElement / party.nranks();
  GpuRank rank(party, {bytes, size_t{64} << 20, bytes});
  Bench bench(rank, shape);
  constexpr int kLaunches = 20, kReplays = 40;
  const auto measure = [&](const char* path, uint32_t ctas, const std::function<int()>& launch, bool checked = true) {
    bench.exchange.ctas = ctas;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(rank.stream(), cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < kLaunches; ++i) check(static_cast<cudaError_t>(launch()), "launch");
    check(cudaStreamEndCapture(rank.stream(), &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    check(cudaGraphUpload(exec, rank.stream()), "upload");
    cudaEvent_t start, end;
    check(cudaEventCreate(&start), "event");
    check(cudaEventCreate(&end), "event");
    std::vector<double> times;
    for (int i = 0; i < kReplays; ++i) {
      check(cudaStreamSynchronize(rank.stream()), "wait");
      party.barrier();
      check(cudaEventRecord(start, rank.stream()), "event");
      check(cudaGraphLaunch(exec, rank.stream()), "replay");
      check(cudaEventRecord(end, rank.stream()), "event");
      rank.finish(5000);
      float ms = 0;
      check(cudaEventElapsedTime(&ms, start, end), "time");
      times.push_back(party.largest(ms * 1000 / kLaunches));
    }
    if (checked) bench.expectExchanged();
    party.barrier();
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    if (party.rank() == 0) {
      std::printf("  P=%d %4zu KiB per rank, %-6s ctas %2u: %.2f us\n", party.nranks(), bytes >> 10, path, ctas,
                  times[kReplays / 2]);
      std::fflush(stdout);
    }
    check(cudaGraphExecDestroy(exec), "destroy");
    check(cudaGraphDestroy(graph), "destroy");
  };
  int resident = 0;
  check(static_cast<cudaError_t>(device::residentCtas(&resident)), "residentCtas");
  bench.setDirect(true);
  measure(
      "empty", 1,
      [&] {
        delay(0, rank.stream());
        return 0;
      },
      false);
  for (const uint32_t ctas : {4u, 8u, 16u, 32u}) {
    if (static_cast<int>(ctas) * party.nranks() > resident) continue;
    bench.setDirect(true);
    measure("small", ctas, [&] { return device::launchSmallExchange(bench.exchange, rank.stream()); });
    measure("direct", ctas, [&] { return device::launchExchange(bench.exchange, rank.stream()); });
    bench.setDirect(false);
    bench.exchange.tileBytes = 65536;
    if (ctas >= 8) measure("staged", ctas, [&] { return device::launchExchange(bench.exchange, rank.stream()); });
  }
  return {};
}

int report(const std::string& wrong) {
  if (!wrong.empty()) std::fprintf(stderr, "exchange_bench: %s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  int failed = 0;
  if (what == "large" || what == "narrow") {
    for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads}) {
      const size_t seq = what == "large" ? 128000 : 1792000, heads = what == "large" ? 56 : 4;
      failed |=
          report(runRanks(RanksAs::Threads, 4, [&](Party& party) { return large(party, direction, seq, heads); }));
    }
  } else if (what == "long") {
    failed |= report(runRanks(RanksAs::Threads, 4, longSequence));
  } else if (what == "curve") {
    failed |= report(runRanks(RanksAs::Threads, 4, curve));
  } else if (what == "replay") {
    for (const auto& [nranks, seq] : {std::pair{2, 4}, {2, 256}, {4, 8}, {4, 256}, {8, 256}}) {
      failed |= report(runRanks(RanksAs::Processes, nranks, [&, s = seq](Party& party) { return replay(party, s); }));
    }
  } else {
    std::fprintf(stderr, "usage: exchange_bench large|narrow|long|curve|replay\n");
    return 2;
  }
  return failed;
}
