// The copy-engine path through the C API. It is for ranks with GPUs of their own; where they share one, a hook lets it
// go there, with everything as it is but the copies between GPUs.
#include <cstdlib>

#include "gpu/support/device_ranks.h"
#include "support/catch.h"

namespace {

using namespace ulysses;
using namespace ulysses::testing;

const Shape kSizes[] = {{2, 4, 4, 3, 4}, {2, 1700, 6, 67, 4}, {3, 5999, 8, 16, 2}};

// Ranks that take copy engines wherever they can, with as little staging as `staging` says.
std::string byEngines(As as, int P, const char* staging, const DeviceBody& body) {
  setenv("ULYSSES_PATH", "copy-engine", 1);
  setenv("ULYSSES_STAGING", staging, 1);
  hooks::setEnginesOnSharedGpus(!ownGpus(P));
  const std::string text = onDevice(as, P, body);
  hooks::setEnginesOnSharedGpus(false);
  unsetenv("ULYSSES_STAGING");
  unsetenv("ULYSSES_PATH");
  return text;
}

std::vector<unsigned char> contentOf(const void* device, size_t bytes) {
  std::vector<unsigned char> content(bytes);
  cudaMemcpy(content.data(), device, bytes, cudaMemcpyDeviceToHost);
  return content;
}

void poison(void* device, size_t bytes) {
  cudaMemset(device, 0xEE, bytes);
  cudaStreamSynchronize(nullptr);
}

bool went(ulyssesComm_t comm, const char* path) {
  return std::string(infoOf(comm).lastPath) == path;
}

}  // namespace

TEST_CASE("copy engines: eager calls into windows and through slots, between calls by kernels", "[gpu][engines]") {
  NEEDS_GPU;
  for (const As as : {As::Threads, As::Processes})
    for (const char* staging : {"64M", "200K"})
      for (const int P : rankCounts({2, 4}))
        for (const Shape& t : kSizes) {
          if (as == As::Processes && P > 2 && !ownGpus(P)) continue;
          INFO("P=" << P << " S=" << t.S << " staging " << staging << (as == As::Threads ? " threads" : " processes"));
          CHECK(byEngines(as, P, staging,
                          [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                            const std::vector<unsigned char> there = headSide(t, P, rank),
                                                             here = sequenceSide(t, P, rank);
                            DeviceTensor in(here), plain(there.size()), back(here.size());
                            void* window = nullptr;
                            EXPECT_OK(ulyssesMemAlloc(&window, there.size(), comm));
                            const bool small = t.S < 100;  // no slots: plain outputs go by lines
                            for (int round = 0; round < 3; ++round) {
                              poison(window, there.size());
                              plain.poison();
                              back.poison();
                              settle(meeting);
                              EXPECT_OK(exchange(t, in.data(), window, ulyssesScatterHeads, comm, stream));
                              EXPECT_RANK(went(comm, "copy-engine"));
                              EXPECT_OK(exchange(t, in.data(), plain.data(), ulyssesScatterHeads, comm, stream));
                              EXPECT_RANK(went(comm, small ? "staged" : "copy-engine"));
                              EXPECT_OK(exchange(t, window, back.data(), ulyssesGatherHeads, comm, stream));
                              EXPECT_RANK(finish(stream, meeting));
                              EXPECT_RANK(contentOf(window, there.size()) == there);
                              EXPECT_RANK(plain.content() == there && plain.intact());
                              EXPECT_RANK(back.content() == here && back.intact());
                            }
                            EXPECT_OK(ulyssesMemFree(window, comm));
                            return "";
                          }) == "");
        }
}

TEST_CASE("copy engines: a plan with bound outputs, captured and replayed beside eager calls", "[gpu][engines]") {
  NEEDS_GPU;
  for (const As as : {As::Threads, As::Processes})
    for (const Shape& t : kSizes) {
      INFO("S=" << t.S << (as == As::Threads ? " threads" : " processes"));
      CHECK(byEngines(as, 2, "64M",
                      [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                        const size_t bytes = headSide(t, 2, rank).size();
                        DeviceTensor in(sequenceSide(t, 2, rank)), plain(bytes);
                        void* window = nullptr;
                        EXPECT_OK(ulyssesMemAlloc(&window, bytes, comm));
                        ulyssesA2ADesc_t d = descOf(t);
                        d.boundOut = window;
                        PlanPair plans;
                        EXPECT_OK(plans.make(d, comm));
                        EXPECT_RANK(std::string(infoOf(plans.plan).path) == "copy-engine");
                        Graph graph;
                        const std::string text = graph.record(stream, [&]() -> std::string {
                          EXPECT_OK(execute(plans.plan, in.data(), window, stream));
                          return "";
                        });
                        if (!text.empty()) return text;
                        for (uint64_t round = 0; round < 4; ++round) {
                          in.set(sequenceSide(t, 2, rank, round));
                          for (const bool replayed : {false, true}) {
                            poison(window, bytes);
                            settle(meeting);
                            if (replayed) {
                              EXPECT_RANK(graph.replay(stream));
                            } else {
                              EXPECT_OK(execute(plans.plan, in.data(), window, stream));
                            }
                            EXPECT_OK(exchange(t, in.data(), plain.data(), ulyssesScatterHeads, comm, stream));
                            EXPECT_RANK(finish(stream, meeting));
                            EXPECT_RANK(contentOf(window, bytes) == headSide(t, 2, rank, round));
                            EXPECT_RANK(plain.content() == headSide(t, 2, rank, round) && plain.intact());
                          }
                        }
                        EXPECT_OK(ulyssesMemFree(window, comm));
                        return "";
                      }) == "");
    }
}

TEST_CASE("copy engines: outputs that are not the bound one, and bound ones outside windows", "[gpu][engines]") {
  NEEDS_GPU;
  const Shape t{2, 900, 4, 31, 4};
  CHECK(byEngines(As::Threads, 2, "64M",
                  [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                    const size_t bytes = headSide(t, 2, rank).size();
                    DeviceTensor in(sequenceSide(t, 2, rank)), plain(bytes);
                    void* window = nullptr;
                    EXPECT_OK(ulyssesMemAlloc(&window, bytes, comm));
                    ulyssesA2ADesc_t d = descOf(t);
                    d.boundOut = rank == 1 ? plain.data() : window;
                    PlanPair plans;
                    EXPECT_RANK(plans.make(d, comm) == ulyssesInvalidArgument && lastErrorSays("boundOut"));
                    d.boundOut = window;
                    EXPECT_OK(plans.make(d, comm));
                    settle(meeting);
                    for (int round = 0; round < 3; ++round) {
                      void* const out = rank == 1 ? plain.data() : window;
                      EXPECT_RANK(execute(plans.plan, in.data(), out, stream) ==
                                  (rank == 1 ? ulyssesInvalidArgument : ulyssesSuccess));
                      EXPECT_RANK(finish(stream, meeting));
                      EXPECT_RANK(plain.untouched());
                      // Told by the next call, which is made all the same.
                      EXPECT_RANK(execute(plans.plan, in.data(), window, stream) == ulyssesMismatch);
                      EXPECT_OK(execute(plans.plan, in.data(), window, stream));
                      EXPECT_RANK(finish(stream, meeting));
                      EXPECT_RANK(contentOf(window, bytes) == headSide(t, 2, rank));
                    }
                    EXPECT_OK(ulyssesMemFree(window, comm));
                    return "";
                  }) == "");
}

TEST_CASE("copy engines are for GPUs of one's own: where two ranks share one, all take kernels", "[gpu][engines]") {
  NEEDS_GPU;
  const int P = gpus() + 1;
  const Shape t{2, 900, 16, 31, 4};
  setenv("ULYSSES_PATH", "copy-engine", 1);
  CHECK(
      onDevice(As::Threads, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
        const std::string text = roundTrip(t, P, rank, comm, stream, meeting);
        EXPECT_RANK(went(comm, "staged"));
        return text;
      }) == "");
  unsetenv("ULYSSES_PATH");
}

TEST_CASE("copy engines of ranks with GPUs of their own: large exchanges between windows take them unasked",
          "[gpu][engines][several]") {
  NEEDS_GPUS(2);
  const Shape t{1, 4096, 8, 1024, 2};  // 16 MB for a peer, of two, in rows of 8 KB
  for (const As as : {As::Threads, As::Processes})
    CHECK(onDevice(as, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
            const std::vector<unsigned char> there = headSide(t, 2, rank);
            DeviceTensor in(sequenceSide(t, 2, rank));
            void* window = nullptr;
            EXPECT_OK(ulyssesMemAlloc(&window, there.size(), comm));
            settle(meeting);
            EXPECT_OK(exchange(t, in.data(), window, ulyssesScatterHeads, comm, stream));
            EXPECT_RANK(finish(stream, meeting) && went(comm, "copy-engine"));
            EXPECT_RANK(contentOf(window, there.size()) == there);
            EXPECT_OK(ulyssesMemFree(window, comm));
            return "";
          }) == "");
}
