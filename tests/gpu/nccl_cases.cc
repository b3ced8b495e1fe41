// NCCL as the fallback of device memory. Where two ranks share a GPU, NCCL takes them from 2.30 on where it is asked
// to; with an older one the refusal is what is tested. More ranks than two only with GPUs of their own.
#include <ulysses/ulysses_nccl.h>

#include <optional>

#include "base/test_hooks.h"
#include "gpu/support/device_ranks.h"
#include "support/catch.h"
#include "topology/nccl_library.h"

namespace ulysses::testing {
namespace {

constexpr Shape kShapes[] = {
    {2, 4, 4, 3, 4}, {1, 2, 4, 1, 2}, {2, 900, 4, 31, 4}, {3, 1200, 8, 32, 2}, {1, 35, 5, 7, 8}};
constexpr Shape kMedium{3, 1200, 8, 32, 2};

// NCCL made to take two ranks on one GPU.
class SharedGpu {
 public:
  SharedGpu() : ranks_("NCCL_MULTI_RANK_GPU_ENABLE", "1"), multicast_("NCCL_NVLS_ENABLE", "0") {}

 private:
  Environment ranks_, multicast_;
};

int ncclVersion() {
  const std::optional<NcclLibrary> nccl = loadNccl();
  return nccl ? nccl->version : 0;
}

#define NEEDS_NCCL                                                                                          \
  NEEDS_GPU;                                                                                                \
  if (ncclVersion() == 0) ULYSSES_SKIP("there is no libnccl");                                              \
  if (!ownGpus(2) && ncclVersion() < 23000) ULYSSES_SKIP("ranks share a GPU, and NCCL is older than 2.30"); \
  std::optional<SharedGpu> sharedGpu;                                                                       \
  if (!ownGpus(2)) sharedGpu.emplace()

std::string fellBack(ulyssesComm_t comm, const char* why) {
  const ulyssesCommInfo_t info = infoOf(comm);
  EXPECT_RANK(std::string(info.lastPath) == "nccl");
  EXPECT_RANK(std::string(info.lastReason).find(why) != std::string::npos);
  return "";
}

}  // namespace

TEST_CASE("where NCCL refuses ranks that share a GPU, what is not fused is refused with that reason", "[gpu][nccl]") {
  NEEDS_ONE_GPU;
  constexpr int P = 2;
  const Environment path("ULYSSES_PATH", "nccl");
  const Environment never("NCCL_MULTI_RANK_GPU_ENABLE", "0");
  CHECK(
      onDevice(As::Threads, P, [](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
        DeviceTensor in(sequenceSide(kMedium, P, rank)), out(headSide(kMedium, P, rank).size());
        settle(meeting);
        EXPECT_RANK(exchange(kMedium, in.data(), out.data(), ulyssesScatterHeads, comm, stream) == ulyssesNotSupported);
        EXPECT_RANK(lastErrorSays(ncclVersion() == 0 ? "no libnccl" : "ranks share a GPU"));
        EXPECT_RANK(out.untouched());
        return "";
      }) == "");
}

TEST_CASE("NCCL carries what is forced to it: every shape there and back", "[gpu][nccl]") {
  NEEDS_NCCL;
  const Environment path("ULYSSES_PATH", "nccl");
  for (const As as : {As::Threads, As::Processes})
    for (const int P : rankCounts({2}))
      CHECK(onDevice(as, P, [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
              for (const Shape& t : kShapes) {
                const std::string text = roundTrip(t, P, rank, comm, stream, meeting);
                if (!text.empty()) return text;
              }
              return fellBack(comm, "ULYSSES_PATH");
            }) == "");
}

TEST_CASE("NCCL in rounds below a small cap is exact", "[gpu][nccl]") {
  NEEDS_NCCL;
  const Environment path("ULYSSES_PATH", "nccl");
  ulyssesConfig_t config = deviceConfig();
  config.windowCapBytes = size_t{1} << 20;
  for (const int P : rankCounts({2}))
    CHECK(onDevice(
              As::Threads, P,
              [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                constexpr Shape kLarge{3, 4000, 8, 64, 2};
                PlanPair plans;
                EXPECT_OK(plans.make(descOf(kLarge), comm));
                EXPECT_RANK(infoOf(plans.plan).chunks > 1 && std::string(infoOf(plans.plan).path) == "nccl");
                return roundTrip(kLarge, P, rank, comm, stream, meeting);
              },
              config) == "");
}

TEST_CASE("case 1 on device memory: one call not fused on one rank falls back on both, the next is fused",
          "[gpu][nccl]") {
  NEEDS_NCCL;
  for (const int P : rankCounts({2}))
    CHECK(onDevice(As::Threads, P,
                   [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                     for (int call = 1; call <= 3; ++call) {
                       if (rank == 1) hooks::setFusedOff(call == 2);
                       const std::string text = roundTrip(kMedium, P, rank, comm, stream, meeting);
                       hooks::setFusedOff(false);
                       if (!text.empty()) return text;
                       EXPECT_RANK((std::string(infoOf(comm).lastPath) == "nccl") == (call == 2));
                     }
                     return "";
                   }) == "");
}

TEST_CASE("a plan over NCCL is replayed from a graph beside eager calls", "[gpu][nccl]") {
  NEEDS_NCCL;
  const Environment path("ULYSSES_PATH", "nccl");
  for (const int P : rankCounts({2}))
    CHECK(onDevice(As::Processes, P,
                   [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                     PlanPair plans;
                     EXPECT_OK(plans.make(descOf(kMedium), comm));
                     EXPECT_RANK(std::string(infoOf(plans.plan).path) == "nccl");
                     const std::vector<unsigned char> input = sequenceSide(kMedium, P, rank);
                     DeviceTensor in(input), out(headSide(kMedium, P, rank).size());
                     Graph graph;
                     const std::string text = graph.record(stream, [&]() -> std::string {
                       EXPECT_OK(execute(plans.plan, in.data(), out.data(), stream));
                       return "";
                     });
                     if (!text.empty()) return text;
                     for (int i = 0; i < 5; ++i) {
                       out.poison();
                       EXPECT_RANK(graph.replay(stream) && finish(stream, meeting));
                       EXPECT_RANK(out.content() == headSide(kMedium, P, rank) && out.intact());
                       const std::string eager = roundTrip(kShapes[2], P, rank, comm, stream, meeting);
                       if (!eager.empty()) return eager;
                     }
                     return "";
                   }) == "");
}

TEST_CASE("flat collectives over NCCL, in place and not", "[gpu][nccl]") {
  NEEDS_NCCL;
  const Environment path("ULYSSES_PATH", "nccl");
  for (const int P : rankCounts({2}))
    CHECK(onDevice(
              As::Threads, P, [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                constexpr size_t kCount = 70001;
                const auto block = [](int from, int to) {
                  std::vector<unsigned char> bytes(kCount);
                  for (size_t i = 0; i < kCount; ++i)
                    bytes[i] = static_cast<unsigned char>(i * 7 + static_cast<size_t>(from * 31 + to * 5));
                  return bytes;
                };
                const auto append = [](std::vector<unsigned char>& all, const std::vector<unsigned char>& more) {
                  all.insert(all.end(), more.begin(), more.end());
                };
                std::vector<unsigned char> gathered, sent, received;
                for (int r = 0; r < P; ++r) {
                  append(gathered, block(r, 0));
                  append(sent, block(rank, r));
                  append(received, block(r, rank));
                }
                const size_t allBytes = static_cast<size_t>(P) * kCount;
                DeviceTensor mine(block(rank, 0)), all(allBytes), in(sent), out(allBytes), inPlace(allBytes);
                cudaMemcpy(inPlace.data() + static_cast<size_t>(rank) * kCount, mine.data(), kCount,
                           cudaMemcpyDeviceToDevice);
                settle(meeting);
                EXPECT_OK(ulyssesAllGather(mine.data(), all.data(), kCount, ulyssesUint8, comm, stream));
                EXPECT_OK(ulyssesAllGather(inPlace.data() + static_cast<size_t>(rank) * kCount, inPlace.data(), kCount,
                                           ulyssesUint8, comm, stream));
                EXPECT_OK(ulyssesAlltoAll(in.data(), out.data(), kCount, ulyssesUint8, comm, stream));
                EXPECT_RANK(finish(stream, meeting));
                EXPECT_RANK(all.content() == gathered && inPlace.content() == gathered && out.content() == received);
                EXPECT_RANK(all.intact() && inPlace.intact() && out.intact());
                return fellBack(comm, "ULYSSES_PATH");
              }) == "");
}

TEST_CASE("a communicator over the caller's NCCL communicator is fused, and falls back to it", "[gpu][nccl]") {
  NEEDS_NCCL;
  for (const int P : rankCounts({2}))
    CHECK(inChild([P]() -> std::string {
            const std::optional<NcclLibrary> nccl = loadNccl();
            NcclLibrary::UniqueId id{};
            EXPECT_RANK(nccl && nccl->ncclGetUniqueId(&id) == 0);
            Meeting meeting(As::Threads, P);
            return failures(runRanks(As::Threads, P, [&](int rank) -> std::string {
              EXPECT_RANK(takeDeviceOf(rank));
              ncclComm* theirs = nullptr;
              EXPECT_RANK(nccl->ncclCommInitRank(&theirs, P, id, rank) == 0);
              cudaStream_t stream = nullptr;
              EXPECT_RANK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
              ulyssesComm_t comm = nullptr;
              EXPECT_OK(ulyssesCommInitNccl(&comm, theirs, nullptr));
              int mine = -1;
              EXPECT_OK(ulyssesCommUserRank(comm, &mine));
              EXPECT_RANK(mine == rank && infoOf(comm).ncclVersion == nccl->version);
              std::string text = roundTrip(kMedium, P, rank, comm, stream, meeting);
              EXPECT_RANK(!text.empty() || infoOf(comm).fallbackCalls == 0);
              if (rank == 0) hooks::setFusedOff(true);
              if (text.empty()) text = roundTrip(kMedium, P, rank, comm, stream, meeting);
              hooks::setFusedOff(false);
              EXPECT_RANK(!text.empty() || infoOf(comm).fallbackCalls == 2);
              EXPECT_OK(ulyssesCommDestroy(comm));
              meeting.wait();
              EXPECT_RANK(nccl->ncclCommDestroy(theirs) == 0);  // still there
              cudaStreamDestroy(stream);
              return text;
            }));
          }) == "");
}

TEST_CASE("a plan's execution over NCCL that is wrong on one rank ends the communicator on all", "[gpu][nccl][death]") {
  NEEDS_NCCL;
  const Environment path("ULYSSES_PATH", "nccl");
  for (const int P : rankCounts({2}))
    CHECK(onDevice(As::Processes, P,
                   [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                     PlanPair plans;
                     EXPECT_OK(plans.make(descOf(kMedium), comm));
                     DeviceTensor in(sequenceSide(kMedium, P, rank)), out(headSide(kMedium, P, rank).size());
                     settle(meeting);
                     const ulyssesResult_t result =
                         execute(plans.plan, in.data(), rank == 1 ? nullptr : out.data(), stream);
                     EXPECT_RANK(result == (rank == 1 ? ulyssesInvalidArgument : ulyssesSuccess));
                     ulyssesResult_t later = ulyssesSuccess;
                     for (int i = 0; i < 1000 && later == ulyssesSuccess; ++i) {
                       EXPECT_OK(ulyssesCommGetAsyncError(comm, &later));
                       std::this_thread::sleep_for(std::chrono::milliseconds(10));
                     }
                     EXPECT_RANK(later == ulyssesRemoteError);
                     return "";
                   }) == "");
}

}  // namespace ulysses::testing
