// Cases of the project's list on device memory, through the C API: failures, splits, strides, caps, lifetime.
#include <unistd.h>

#include "base/test_hooks.h"
#include "gpu/support/device_ranks.h"
#include "gpu/support/pattern.h"
#include "gpu/support/shapes.h"
#include "support/catch.h"
#include "topology/nccl_library.h"

namespace ulysses::testing {
namespace {

// Planes of 2-byte elements, headDim 128 or the like, that P divides, with values written and checked on the device.
struct Planes {
  int P;
  size_t B, S, H, D;
  size_t unitsOfToken() const { return H * D * 2 / 16; }
  size_t planeBytes() const { return S / static_cast<size_t>(P) * unitsOfToken() * 16; }  // of one rank
  PlanePart sequencePart(int rank) const {
    const size_t p = static_cast<size_t>(P), r = static_cast<size_t>(rank);
    return {r * S / p, S / p, 0, unitsOfToken(), unitsOfToken()};
  }
  PlanePart headPart(int rank) const {
    const size_t p = static_cast<size_t>(P), r = static_cast<size_t>(rank);
    return {0, S, r * unitsOfToken() / p, unitsOfToken() / p, unitsOfToken()};
  }
  void fillAll(const DeviceTensor& tensor, const PlanePart& part, uint64_t seed, cudaStream_t stream) const {
    for (size_t b = 0; b < B; ++b) fill(tensor.data() + b * planeBytes(), part, seed + (b << 40), stream);
  }
  bool holds(const DeviceTensor& tensor, const PlanePart& part, uint64_t seed, cudaStream_t stream) const {
    DeviceTensor count(8);
    cudaMemsetAsync(count.data(), 0, 8, stream);
    for (size_t b = 0; b < B; ++b)
      countWrong(tensor.data() + b * planeBytes(), part, seed + (b << 40), reinterpret_cast<unsigned long long*>(count.data()), stream);
    return cudaStreamSynchronize(stream) == cudaSuccess && count.content() == std::vector<unsigned char>(8, 0);
  }
};

// Forward and its saved inverse, then a later forward: all exact, the first output as it was, never beyond the cap.
std::string forwardAndBackward(const Planes& g, int gradTracked, int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) {
  const size_t bytes = g.B * g.planeBytes();
  DeviceTensor in(bytes), out(bytes), back(bytes), laterIn(bytes), laterOut(bytes);
  g.fillAll(in, g.sequencePart(rank), 1, stream);
  g.fillAll(laterIn, g.sequencePart(rank), 2, stream);
  ulyssesA2ADesc_t d = descOf({g.B, g.S, g.H, g.D, 2});
  d.gradTracked = gradTracked;
  PlanPair plans;
  EXPECT_OK(plans.make(d, comm));
  settle(meeting);
  EXPECT_OK(execute(plans.plan, in.data(), out.data(), stream));
  EXPECT_OK(execute(plans.inverse, out.data(), back.data(), stream));
  EXPECT_OK(execute(plans.plan, laterIn.data(), laterOut.data(), stream));
  EXPECT_RANK(finish(stream, meeting));
  EXPECT_RANK(g.holds(out, g.headPart(rank), 1, stream) && out.intact());
  EXPECT_RANK(g.holds(back, g.sequencePart(rank), 1, stream) && back.intact());
  EXPECT_RANK(g.holds(laterOut, g.headPart(rank), 2, stream) && laterOut.intact());
  const ulyssesCommInfo_t info = infoOf(comm);
  EXPECT_RANK(info.windowBytes > 0 && info.windowBytes <= info.windowCapBytes);
  meeting.wait();
  return "";
}

constexpr size_t kCap = size_t{1} << 30;

// A plan whose plain outputs would be the fallback's. Nothing is touched, so the buffers are but addresses.
std::string expectRefused(ulyssesPlan_t plan, const char* why, cudaStream_t stream) {
  EXPECT_RANK(std::string(infoOf(plan).path) == "fallback" && std::string(infoOf(plan).reason).find(why) != std::string::npos);
  DeviceTensor in(256);
  EXPECT_RANK(execute(plan, in.data(), in.data() + (size_t{1} << 45), stream) == ulyssesNotSupported);
  EXPECT_RANK(lastErrorSays(why) && lastErrorSays("ulyssesMemAlloc"));
  EXPECT_RANK(cudaStreamSynchronize(stream) == cudaSuccess);
  return "";
}

std::string refusedForGradients(const Planes& g, int, ulyssesComm_t comm, cudaStream_t stream) {
  ulyssesA2ADesc_t d = descOf({g.B, g.S, g.H, g.D, 2});
  d.gradTracked = 1;
  PlanPair plans;
  EXPECT_OK(plans.make(d, comm));
  return expectRefused(plans.plan, "ULYSSES_A2A_LONG_TRAINING=chunked", stream);
}

// What init gives on every rank when `stage` fails on one, and what the communicator can then do.
std::string failingInit(int P, int victim, hooks::Stage stage) {
  ulyssesUniqueId id;
  if (ulyssesGetUniqueId(&id) != ulyssesSuccess) return "no unique id";
  const ulyssesConfig_t config = deviceConfig();
  return failures(runRanks(As::Threads, P, [&](int rank) -> std::string {
    EXPECT_RANK(takeDeviceOf(rank));
    if (rank == victim) hooks::plantFailure(stage, Status(ulyssesSystemError, "planted"));
    ulyssesComm_t comm = nullptr;
    const ulyssesResult_t made = ulyssesCommInitRankConfig(&comm, P, id, rank, &config);
    if (stage == hooks::Stage::Configuration) {
      EXPECT_RANK(made == ulyssesSystemError);
      EXPECT_RANK(lastErrorSays("planted"));
      return "";
    }
    EXPECT_RANK(made == ulyssesSuccess);
    DeviceTensor in(sequenceSide(kSmall, P, rank)), out(headSide(kSmall, P, rank).size());
    void* window = nullptr;
    cudaStream_t stream = nullptr;  // the default one is the same for threads that share a GPU: NCCL's kernels can't meet there
    EXPECT_RANK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    const ulyssesResult_t exchanged = exchange(kSmall, in.data(), out.data(), ulyssesScatterHeads, comm, stream);
    if (haveNccl(P)) {
      EXPECT_RANK(exchanged == ulyssesSuccess && cudaStreamSynchronize(stream) == cudaSuccess);
      EXPECT_RANK(out.content() == headSide(kSmall, P, rank) && out.intact());
      EXPECT_RANK(std::string(infoOf(comm).lastPath) == "nccl");
      EXPECT_RANK(std::string(infoOf(comm).lastReason).find("planted") != std::string::npos);
    } else {
      EXPECT_RANK(exchanged == ulyssesNotSupported && lastErrorSays("not fused") && lastErrorSays("planted"));
      EXPECT_RANK(out.untouched());
    }
    EXPECT_RANK(ulyssesMemAlloc(&window, 64, comm) == ulyssesNotSupported);
    EXPECT_RANK(lastErrorSays("planted"));
    EXPECT_OK(ulyssesCommDestroy(comm));
    EXPECT_RANK(cudaStreamDestroy(stream) == cudaSuccess && cudaGetLastError() == cudaSuccess);
    return "";
  }));
}

}  // namespace

TEST_CASE("case 5 on device memory: a setup stage that fails on one rank is the same outcome on all", "[gpu][cases]") {
  NEEDS_GPU;
  for (const int P : {2, 4})
    for (const int victim : {0, P - 1})
      for (const auto stage : {hooks::Stage::Configuration, hooks::Stage::Kernels, hooks::Stage::Flags}) {
        INFO("P=" << P << " victim " << victim << " stage " << static_cast<int>(stage));
        CHECK(inChild([&] { return failingInit(P, victim, stage); }) == "");
      }
}

TEST_CASE("case 5 on device memory: a call whose memory fails on one rank fails on all, the next one works", "[gpu][cases]") {
  NEEDS_GPU;
  for (const int P : {2, 4})
    for (const int victim : {0, P - 1}) {
      INFO("P=" << P << " victim " << victim);
      CHECK(onDevice(As::Threads, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
              const auto plant = [&](hooks::Stage stage) {
                if (rank == victim) hooks::plantFailure(stage, Status(ulyssesOutOfMemory, "planted"));
              };
              const auto planted = [](ulyssesResult_t result) {
                return result == ulyssesOutOfMemory && lastErrorSays("planted");
              };
              DeviceTensor in(sequenceSide(kStaged, P, rank)), out(headSide(kStaged, P, rank).size());
              for (const auto stage : {hooks::Stage::Tables, hooks::Stage::Staging, hooks::Stage::Allocate, hooks::Stage::Open}) {
                plant(stage);
                const ulyssesResult_t exchanged = exchange(kStaged, in.data(), out.data(), ulyssesScatterHeads, comm, stream);
                if (haveNccl(P)) {
                  EXPECT_RANK(exchanged == ulyssesSuccess && finish(stream, meeting));
                  EXPECT_RANK(out.content() == headSide(kStaged, P, rank) && out.intact());
                  EXPECT_RANK(std::string(infoOf(comm).lastPath) == "nccl");
                  EXPECT_RANK(std::string(infoOf(comm).lastReason).find("planted") != std::string::npos);
                  out.poison();
                  settle(meeting);
                } else {
                  EXPECT_RANK(planted(exchanged) && out.untouched());
                }
              }
              const ulyssesA2ADesc_t d = descOf(kStaged);
              ulyssesPlan_t plan = nullptr;
              for (const auto stage : {hooks::Stage::Tables, hooks::Stage::Flags, hooks::Stage::Staging, hooks::Stage::Allocate, hooks::Stage::Open}) {
                plant(stage);
                const ulyssesResult_t made = ulyssesPlanCreate(&plan, 1, &d, comm);
                if (haveNccl(P)) {
                  EXPECT_RANK(made == ulyssesSuccess && std::string(infoOf(plan).path) == "nccl");
                  EXPECT_OK(ulyssesPlanDestroy(plan));
                } else {
                  EXPECT_RANK(planted(made));
                }
              }
              void* window = nullptr;
              for (const auto stage : {hooks::Stage::Allocate, hooks::Stage::Open}) {
                plant(stage);
                EXPECT_RANK(planted(ulyssesMemAlloc(&window, 4096, comm)));
              }
              EXPECT_RANK(cudaGetLastError() == cudaSuccess);
              EXPECT_OK(ulyssesMemAlloc(&window, 4096, comm));
              EXPECT_OK(ulyssesMemFree(window, comm));
              return roundTrip(kStaged, P, rank, comm, stream, meeting);
            }) == "");
    }
}

TEST_CASE("case 16 on device memory: uneven and explicit splits", "[gpu][cases]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Threads, 4, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          for (const Shape& t : {Shape{1, 8, 6, 3, 4}, Shape{1, 10, 8, 3, 4}, Shape{1, 2, 8, 3, 4}}) {
            const std::string text = roundTrip(t, 4, rank, comm, stream, meeting);
            if (!text.empty()) return text;
          }
          const size_t splits[] = {3, 3, 3, 2}, headSplits[] = {1, 4, 0, 3}, begins[] = {0, 3, 6, 9}, headBegins[] = {0, 1, 5, 5};
          const auto r = static_cast<size_t>(rank);
          for (const bool byHeads : {false, true}) {
            const Shape t{2, 11, 8, 5, 2};
            ulyssesA2ADesc_t d = descOf(t);
            d.seqSplits = splits;
            if (byHeads) d.headSplits = headSplits;
            const Part seq{begins[r], splits[r]}, heads = byHeads ? Part{headBegins[r], headSplits[r]} : balanced(8, 4, rank);
            DeviceTensor in(tensor(t, seq, {0, 8})), out(tensor(t, {0, 11}, heads).size()), back(in.content().size());
            PlanPair plans;
            EXPECT_OK(plans.make(d, comm));
            EXPECT_RANK(std::string(infoOf(plans.plan).path) == "fused");
            settle(meeting);
            EXPECT_OK(execute(plans.plan, in.data(), out.data(), stream));
            EXPECT_OK(execute(plans.inverse, out.data(), back.data(), stream));
            EXPECT_RANK(finish(stream, meeting));
            EXPECT_RANK(out.content() == tensor(t, {0, 11}, heads) && out.intact());
            EXPECT_RANK(back.content() == in.content() && back.intact());
            meeting.wait();
          }
          return "";
        }) == "");
}

TEST_CASE("case 19 on device memory: views, and a view on one rank alone", "[gpu][cases]") {
  NEEDS_GPU;
  struct View {
    const char* name;
    size_t before;    // rows of a longer buffer before the view
    bool transposed;  // [B, H, S/P, D]
    bool everywhere;
  };
  const Shape t{2, 600, 4, 24, 2};
  for (const View view : {View{"rows 4.. on all", 4, false, true}, View{"rows 4.. on rank 1", 4, false, false},
                          View{"transposed on all", 0, true, true}, View{"transposed on rank 1", 0, true, false}}) {
    INFO(view.name);
    CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
            const bool viewed = view.everywhere || rank == 1;
            const Part seq = balanced(t.S, 2, rank);
            const std::vector<unsigned char> packed = sequenceSide(t, 2, rank);
            const size_t rows = seq.second + (viewed ? view.before : 0), head = t.D * t.elementBytes;
            ulyssesA2ADesc_t d = descOf(t);
            size_t stride[] = {rows * t.H * t.D, t.H * t.D, t.D};
            if (viewed && view.transposed) stride[1] = t.D, stride[2] = rows * t.D;
            std::copy(stride, stride + 3, d.inStride);
            const size_t first = viewed ? view.before * stride[1] * t.elementBytes : 0;
            std::vector<unsigned char> spread(t.B * rows * t.H * head, 0xEE);
            for (size_t b = 0; b < t.B; ++b)
              for (size_t s = 0; s < seq.second; ++s)
                for (size_t h = 0; h < t.H; ++h)
                  std::memcpy(&spread[first + (b * stride[0] + s * stride[1] + h * stride[2]) * t.elementBytes],
                              &packed[((b * seq.second + s) * t.H + h) * head], head);
            DeviceTensor in(spread), out(headSide(t, 2, rank).size()), back(spread.size());
            PlanPair plans;
            EXPECT_OK(plans.make(d, comm));
            EXPECT_RANK(std::string(infoOf(plans.plan).path) == "fused");
            settle(meeting);
            EXPECT_OK(execute(plans.plan, in.data() + first, out.data(), stream));
            EXPECT_OK(execute(plans.inverse, out.data(), back.data() + first, stream));
            EXPECT_RANK(finish(stream, meeting));
            EXPECT_RANK(out.content() == headSide(t, 2, rank) && out.intact());
            EXPECT_RANK(back.content() == spread && back.intact());  // 0xEE between the views too
            meeting.wait();
            return "";
          }) == "");
  }
}

TEST_CASE("plain outputs at the borders of the ways they go: small, by lines, through slots", "[gpu][cases]") {
  NEEDS_GPU;
  for (const int P : {2, 4})
    CHECK(onDevice(As::Threads, P, [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
            const size_t ranks = static_cast<size_t>(P);
            for (const size_t perPair : {size_t{16} << 10, size_t{256} << 10}) {
              Shape t{1, perPair / 64 * ranks, ranks, 32, 2};  // of two bytes: a head of a rank's sequence
              EXPECT_RANK(roundTrip(t, P, rank, comm, stream, meeting).empty());
              t.S += ranks;
              EXPECT_RANK(roundTrip(t, P, rank, comm, stream, meeting).empty());
            }
            return "";
          }) == "");
}

TEST_CASE("case 20 on device memory: empty exchanges", "[gpu][cases]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          for (const Shape& t : {Shape{0, 4, 4, 3, 4}, Shape{2, 0, 4, 3, 4}, Shape{2, 4, 0, 3, 4}, Shape{2, 4, 4, 0, 4}}) {
            EXPECT_OK(exchange(t, nullptr, nullptr, ulyssesScatterHeads, comm, stream));
            const ulyssesA2ADesc_t d = descOf(t);
            const void* ins[] = {nullptr};
            void* outs[] = {nullptr};
            ulyssesPlan_t plan = nullptr;
            EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
            EXPECT_OK(ulyssesPlanExecute(plan, ins, outs, stream));
            EXPECT_OK(ulyssesPlanDestroy(plan));
          }
          DeviceTensor in(sequenceSide(kSmall, 2, rank)), out(headSide(kSmall, 2, rank).size());
          Shape t = kSmall;
          if (rank == 0) t.B = 0;
          EXPECT_RANK(exchange(t, in.data(), out.data(), ulyssesScatterHeads, comm, stream) == ulyssesMismatch);
          EXPECT_RANK(out.untouched());
          return roundTrip(kSmall, 2, rank, comm, stream, meeting);
        }) == "");
}

TEST_CASE("case 22 on device memory: planes at and above the window cap", "[gpu][cases]") {
  NEEDS_GPU;
  ulyssesConfig_t config = deviceConfig();
  config.windowCapBytes = size_t{8} << 20;
  for (const Planes& g : {Planes{4, 1, 32768, 8, 64}, Planes{4, 1, 32772, 8, 64}, Planes{4, 3, 32768, 8, 64}}) {
    INFO("B=" << g.B << " S=" << g.S);
    CHECK(g.planeBytes() >= config.windowCapBytes);
    CHECK(onDevice(As::Threads, 4, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
            EXPECT_RANK(infoOf(comm).windowCapBytes == config.windowCapBytes);
            return forwardAndBackward(g, 0, rank, comm, stream, meeting);
          }, config) == "");
  }
}

TEST_CASE("case 22 on device memory: exact forward and backward at long sequences", "[gpu][cases][large][gradients]") {
  NEEDS_GPU;
  for (const int P : {2, 4, 8})
    for (const char* longTraining : {"auto", "chunked"})
      for (const Planes& g : {Planes{P, 1, 32000, 56, 128}, Planes{P, 1, 128000, 56, 128}, Planes{P, 3, 250000, 56, 128}}) {
        if (P != 4 && !ownGpus(P)) continue;
        INFO("P=" << P << " S=" << g.S << " B=" << g.B << " " << longTraining);
        setenv("ULYSSES_A2A_LONG_TRAINING", longTraining, 1);
        CHECK(onDevice(As::Threads, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                // The policy then wants NCCL.
                if (std::string(longTraining) == "auto" && g.planeBytes() > (size_t{512} << 20) && g.B * g.planeBytes() > kCap &&
                    !haveNccl(P))
                  return refusedForGradients(g, rank, comm, stream);
                const std::string text = forwardAndBackward(g, 1, rank, comm, stream, meeting);
                EXPECT_RANK(!text.empty() || P != 4 || infoOf(comm).windowBytes <= 896000000);
                return text;
              }) == "");
      }
  unsetenv("ULYSSES_A2A_LONG_TRAINING");
}

TEST_CASE("plans that are gone have given their window memory back", "[gpu]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          const ulyssesA2ADesc_t d = descOf(kStaged);
          size_t most = 0;
          for (int i = 0; i < 5; ++i) {
            ulyssesPlan_t plan = nullptr;
            EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
            EXPECT_RANK(i == 0 || infoOf(comm).windowBytes == most);
            most = infoOf(comm).windowBytes;
            EXPECT_OK(ulyssesPlanDestroy(plan));
            EXPECT_RANK(infoOf(comm).windowBytes < most);
          }
          return roundTrip(kStaged, 2, rank, comm, stream, meeting);
        }) == "");
}

TEST_CASE("case 23 on device memory: small, big, small, big, and an earlier output is kept", "[gpu][cases][large]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Threads, 4, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          const Planes small{4, 1, 64, 56, 128}, big{4, 1, 144936, 56, 128};
          DeviceTensor smallIn(small.planeBytes()), kept(small.planeBytes()), again(small.planeBytes()), bigIn(big.planeBytes()),
              bigOut(big.planeBytes()), bigAgain(big.planeBytes());
          small.fillAll(smallIn, small.sequencePart(rank), 3, stream);
          big.fillAll(bigIn, big.headPart(rank), 4, stream);
          settle(meeting);
          const auto call = [&](const Planes& g, const DeviceTensor& from, const DeviceTensor& to, ulyssesDirection_t direction) {
            return exchange({g.B, g.S, g.H, g.D, 2}, from.data(), to.data(), direction, comm, stream);
          };
          EXPECT_OK(call(small, smallIn, kept, ulyssesScatterHeads));
          EXPECT_OK(call(big, bigIn, bigOut, ulyssesGatherHeads));
          EXPECT_OK(call(small, smallIn, again, ulyssesScatterHeads));
          EXPECT_OK(call(big, bigIn, bigAgain, ulyssesGatherHeads));
          EXPECT_RANK(finish(stream, meeting));
          for (const DeviceTensor* t : {&kept, &again}) EXPECT_RANK(small.holds(*t, small.headPart(rank), 3, stream) && t->intact());
          for (const DeviceTensor* t : {&bigOut, &bigAgain}) EXPECT_RANK(big.holds(*t, big.sequencePart(rank), 4, stream) && t->intact());
          return "";
        }) == "");
}

TEST_CASE("case 28 on device memory: errors leave the current device and CUDA's last error alone", "[gpu][cases]") {
  NEEDS_GPU;
  ulyssesConfig_t config = deviceConfig();
  config.windowCapBytes = size_t{1} << 50;  // so that the device, not the cap, refuses
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          int before = -1, after = -1;
          EXPECT_RANK(cudaGetDevice(&before) == cudaSuccess);
          const auto clean = [&] { return cudaGetDevice(&after) == cudaSuccess && after == before && cudaGetLastError() == cudaSuccess; };
          DeviceTensor in(sequenceSide(kSmall, 2, rank)), out(headSide(kSmall, 2, rank).size());
          void* window = nullptr;
          EXPECT_RANK(ulyssesMemAlloc(&window, size_t{1} << 44, comm) == ulyssesOutOfMemory && clean());
          EXPECT_RANK(exchange(kSmall, nullptr, out.data(), ulyssesScatterHeads, comm, stream) == ulyssesInvalidArgument && clean());
          EXPECT_RANK(exchange(kSmall, in.data(), in.data(), ulyssesScatterHeads, comm, stream) == ulyssesInvalidArgument && clean());
          EXPECT_RANK(exchange(kSmall, in.data(), out.data() + 1, ulyssesScatterHeads, comm, stream) == ulyssesInvalidArgument && clean());
          ulyssesA2ADesc_t d = descOf(kSmall);
          d.heads = rank == 0 ? 4 : 8;
          ulyssesPlan_t plan = nullptr;
          EXPECT_RANK(ulyssesPlanCreate(&plan, 1, &d, comm) == ulyssesMismatch && clean());
          int device = -1;
          EXPECT_OK(ulyssesCommCuDevice(comm, &device));
          EXPECT_RANK(device == before && clean());
          return roundTrip(kSmall, 2, rank, comm, stream, meeting);
        }, config) == "");
}

TEST_CASE("case 29 on device memory: lazily loaded kernels, one rank three seconds late", "[gpu][cases]") {
  NEEDS_GPU;
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  for (const As as : {As::Threads, As::Processes}) {
    INFO((as == As::Threads ? "threads" : "processes"));
    CHECK(onDevice(as, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
            if (rank == 1) sleep(3);
            return roundTrip(kStaged, 2, rank, comm, stream, meeting);
          }) == "");
  }
  unsetenv("CUDA_MODULE_LOADING");
}

TEST_CASE("small sizes by processes: what a memory checker can follow", "[gpu][memcheck]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Processes, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          for (const Shape& t : {kSmall, Shape{1, 150, 6, 37, 2}, Shape{2, 900, 4, 31, 4}, Shape{2, 1300, 4, 31, 4}}) {
            const std::string text = roundTrip(t, 2, rank, comm, stream, meeting);
            if (!text.empty()) return text;
            DeviceTensor in(sequenceSide(t, 2, rank));
            const std::vector<unsigned char> expected = headSide(t, 2, rank);
            void* window = nullptr;
            EXPECT_OK(ulyssesMemAlloc(&window, expected.size(), comm));
            EXPECT_OK(exchange(t, in.data(), window, ulyssesScatterHeads, comm, stream));
            std::vector<unsigned char> got(expected.size());
            EXPECT_RANK(cudaStreamSynchronize(stream) == cudaSuccess);
            EXPECT_RANK(cudaMemcpy(got.data(), window, got.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
            EXPECT_RANK(got == expected);
            EXPECT_OK(ulyssesMemFree(window, comm));
          }
          return "";
        }, deviceConfig(100000)) == "");
}

}  // namespace ulysses::testing
