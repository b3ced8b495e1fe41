// Who maps windows, NCCL or CUDA's handles: the choice, and what is left of it when something fails on one rank.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/test_hooks.h"
#include "gpu/support/device_ranks.h"
#include "support/catch.h"
#include "support/rendezvous_process.h"
#include "topology/nccl_library.h"

namespace ulysses::testing {
namespace {

constexpr Shape kShape{1, 4800, 8, 32, 2};

// More than what is left of memory that NCCL has registered already.
#ifdef ULYSSES_EMULATED
constexpr size_t kMuch = size_t{5} << 20;
#else
constexpr size_t kMuch = size_t{600} << 20;
#endif

// What the ranks log meanwhile. They are children of this process, which must not have logged itself.
class Logged {
 public:
  Logged() : path_(formatPath()), level_("ULYSSES_DEBUG", "INFO"), file_("ULYSSES_DEBUG_FILE", path_) {}
  ~Logged() { unlink(path_.c_str()); }
  int lines(const std::string& with) const {
    std::ifstream file(path_);
    int count = 0;
    for (std::string line; std::getline(file, line);) count += line.find(with) != std::string::npos;
    return count;
  }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }

 private:
  static std::string formatPath() {
    char path[] = "/tmp/ulysses_provider_XXXXXX";
    const int fd = mkstemp(path);
    if (fd >= 0) close(fd);
    return path;
  }
  const std::string path_;
  const Environment level_, file_;
};

// NCCL for ranks that share a GPU too, as far as it takes them.
class Asked {
 public:
  explicit Asked(const std::string& windows)
      : windows_("ULYSSES_WINDOWS", windows), multicast_("NCCL_NVLS_ENABLE", "0") {
    if (!ownGpus(2)) shared_.emplace("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  }

 private:
  const Environment windows_, multicast_;
  std::optional<const Environment> shared_;
};

bool ncclHasWindows() {
  const std::optional<NcclLibrary> nccl = loadNccl();
  return nccl && nccl->version >= (ownGpus(2) ? 22900 : 23000) && nccl->offersWindows();
}

// A real NCCL takes a second to make a communicator, and no more than two ranks that share a GPU.
#ifdef ULYSSES_EMULATED
constexpr As kWays[] = {As::Threads, As::Processes};
constexpr int kRankCounts[] = {2, 4};
#else
constexpr As kWays[] = {As::Processes};
constexpr int kRankCounts[] = {2};
#endif

std::string exactInto(void* window, int P, int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting,
                      uint64_t salt) {
  DeviceTensor in(sequenceSide(kShape, P, rank, salt));
  const std::vector<unsigned char> expected = headSide(kShape, P, rank, salt);
  EXPECT_RANK(cudaMemset(window, 0xEE, expected.size()) == cudaSuccess);
  settle(meeting);
  EXPECT_OK(exchange(kShape, in.data(), window, ulyssesScatterHeads, comm, stream));
  EXPECT_RANK(finish(stream, meeting));
  EXPECT_RANK(std::string(infoOf(comm).lastPath) == "direct");
  std::vector<unsigned char> got(expected.size());
  EXPECT_RANK(cudaMemcpy(got.data(), window, got.size(), cudaMemcpyDeviceToHost) == cudaSuccess && got == expected);
  meeting.wait();
  return "";
}

// Plain outputs and one in a window.
std::string exchangesAll(int P, int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) {
  void* window = nullptr;
  EXPECT_OK(ulyssesMemAlloc(&window, headSide(kShape, P, rank).size(), comm));
  std::string text = roundTrip(kShape, P, rank, comm, stream, meeting);
  if (text.empty()) text = exactInto(window, P, rank, comm, stream, meeting, 7);
  EXPECT_OK(ulyssesMemFree(window, comm));
  return text;
}

// The same on communicators that are made while something is planted on `victim`, or in the environment.
std::string made(As as, int P, int victim, hooks::Stage stage) {
  const RendezvousProcess rendezvous;
  Meeting meeting(as, P);
  const auto run = [&] {
    return failures(runRanks(as, P, [&](int rank) -> std::string {
      EXPECT_RANK(takeDeviceOf(rank));
      const ulyssesConfig_t config = deviceConfig(6000);
      if (rank == victim) hooks::plantFailure(stage, Status(ulyssesSystemError, "planted"));
      ulyssesComm_t comm = nullptr;
      EXPECT_OK(ulyssesCommInitRankConfig(&comm, P, rendezvous.id(), rank, &config));
      cudaStream_t stream = nullptr;
      EXPECT_RANK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
      std::string text = exchangesAll(P, rank, comm, stream, meeting);
      EXPECT_RANK(cudaGetLastError() == cudaSuccess || !text.empty());
      EXPECT_OK(ulyssesCommDestroy(comm));
      cudaStreamDestroy(stream);
      return text;
    }));
  };
  return as == As::Processes ? run() : inChild(run);
}

#define NEEDS_NCCL_WINDOWS \
  NEEDS_GPU;               \
  if (!ncclHasWindows()) ULYSSES_SKIP("no NCCL that has windows for these ranks")

}  // namespace

TEST_CASE(
    "windows by NCCL or by CUDA's handles: as asked for, and without a word by NCCL where ranks have their own GPUs",
    "[gpu][provider]") {
  NEEDS_NCCL_WINDOWS;
  for (const As as : kWays)
    for (const int P : kRankCounts)
      for (const char* windows : {"auto", "nccl", "ipc"}) {
        INFO((as == As::Threads ? "threads" : "processes") << " P=" << P << " " << windows);
        const Asked asked(windows);
        const Logged log;
        CHECK(made(as, P, -1, hooks::Stage::None) == "");
        const bool byNccl = windows == std::string("nccl") || (windows == std::string("auto") && ownGpus(P));
        INFO(log.text());
        CHECK(log.lines("windows by NCCL") == (byNccl ? P : 0));
        CHECK(log.lines("windows by ipc") == (byNccl ? 0 : P));
        CHECK(log.lines(byNccl ? "windows in device memory by nccl" : "windows in device memory by ipc") == P);
      }
}

TEST_CASE("windows by NCCL: a rank that asks for CUDA's handles has them on all", "[gpu][provider]") {
  NEEDS_NCCL_WINDOWS;
  const Asked asked("nccl");
  const Logged log;
  const RendezvousProcess rendezvous;
  Meeting meeting(As::Processes, 2);
  CHECK(failures(runRanks(As::Processes, 2, [&](int rank) -> std::string {
          if (rank == 1) setenv("ULYSSES_WINDOWS", "ipc", 1);
          EXPECT_RANK(takeDeviceOf(rank));
          const ulyssesConfig_t config = deviceConfig();
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitRankConfig(&comm, 2, rendezvous.id(), rank, &config));
          std::string text = exchangesAll(2, rank, comm, nullptr, meeting);
          EXPECT_OK(ulyssesCommDestroy(comm));
          return text;
        })) == "");
  CHECK(log.lines("windows by ipc: rank 1 asks for ipc") == 2);
}

TEST_CASE("windows by NCCL: a stage of setup that fails on one rank leaves CUDA's handles, on all", "[gpu][provider]") {
  NEEDS_NCCL_WINDOWS;
  const Asked asked("nccl");
  for (const As as : kWays)
    for (const int P : kRankCounts)
      for (const int victim : {0, P - 1})
        for (const auto stage :
             {hooks::Stage::NcclId, hooks::Stage::NcclComm, hooks::Stage::NcclRegister, hooks::Stage::NcclAddress}) {
          INFO((as == As::Threads ? "threads" : "processes")
               << " P=" << P << " victim " << victim << " stage " << static_cast<int>(stage));
          const Logged log;
          CHECK(made(as, P, victim, stage) == "");
          INFO(log.text());
          CHECK(log.lines("rank " + std::to_string(victim) + ": planted") == P);
          CHECK(log.lines("windows in device memory by ipc") == P);
        }
}

TEST_CASE(
    "windows by NCCL: a registration that fails on one rank leaves those before it, and CUDA's handles from then on",
    "[gpu][provider]") {
  NEEDS_NCCL_WINDOWS;
  const Asked asked("nccl");
  for (const As as : kWays)
    for (const int P : kRankCounts)
      for (const auto stage :
           {hooks::Stage::Allocate, hooks::Stage::Open, hooks::Stage::NcclRegister, hooks::Stage::NcclAddress}) {
        INFO((as == As::Threads ? "threads" : "processes") << " P=" << P << " stage " << static_cast<int>(stage));
        const bool everybodys =
            stage == hooks::Stage::Allocate || stage == hooks::Stage::Open;  // the call's own failure
        const Logged log;
        CHECK(onDevice(as, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                const size_t bytes = headSide(kShape, P, rank).size();
                void *before = nullptr, *after = nullptr, *third = nullptr;
                EXPECT_OK(ulyssesMemAlloc(&before, bytes, comm));
                std::string text = exactInto(before, P, rank, comm, stream, meeting, 1);
                if (!text.empty()) return text;
                if (rank == P - 1) hooks::plantFailure(stage, Status(ulyssesSystemError, "planted"));
                const ulyssesResult_t result = ulyssesMemAlloc(&after, kMuch, comm);
                EXPECT_RANK(result == (everybodys ? ulyssesSystemError : ulyssesSuccess));
                EXPECT_RANK(!everybodys || lastErrorSays("planted"));
                text = exactInto(before, P, rank, comm, stream, meeting, 2);
                if (text.empty() && !everybodys) text = exactInto(after, P, rank, comm, stream, meeting, 3);
                if (!text.empty()) return text;
                EXPECT_OK(ulyssesMemFree(before, comm));
                EXPECT_OK(ulyssesMemAlloc(&third, bytes, comm));
                text = exactInto(third, P, rank, comm, stream, meeting, 4);
                EXPECT_OK(ulyssesMemFree(third, comm));
                if (!everybodys) EXPECT_OK(ulyssesMemFree(after, comm));
                return text;
              }) == "");
        INFO(log.text());
        CHECK(log.lines("no more windows by NCCL") == (everybodys ? 0 : P));
      }
}

TEST_CASE("windows by NCCL: of any bytes by rank, given back in any order by rank", "[gpu][provider]") {
  NEEDS_NCCL_WINDOWS;
  const Asked asked("nccl");
  ulyssesConfig_t config = deviceConfig();
  config.windowCapBytes = size_t{160} << 20;
  for (const As as : kWays)
    for (const int P : kRankCounts) {
      const Logged log;
      CHECK(onDevice(
                as, P,
                [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                  const size_t bytes = headSide(kShape, P, rank).size();
                  std::string text = roundTrip(kShape, P, rank, comm, stream, meeting);
                  const size_t used = infoOf(comm).windowBytes;
                  for (uint64_t round = 0; round < 3 && text.empty(); ++round) {
                    // Zeroed, also where another window has been; each rank has room for its own, and none for more
                    // than the cap.
                    constexpr int kCount = 13;  // more than one call tells the others of
                    void* windows[kCount] = {};
                    size_t sizes[kCount];
                    for (int i = 0; i < kCount; ++i) {
                      sizes[i] = (rank + i + static_cast<int>(round)) % 3 == 0
                                     ? 0
                                     : bytes + (static_cast<size_t>(rank * (i % 4)) << 20);
                      EXPECT_OK(ulyssesMemAlloc(&windows[i], sizes[i], comm));
                      EXPECT_RANK((windows[i] == nullptr) == (sizes[i] == 0));
                      if (sizes[i] == 0) continue;
                      std::vector<unsigned char> content(sizes[i], 1);
                      EXPECT_RANK(cudaMemcpy(content.data(), windows[i], sizes[i], cudaMemcpyDeviceToHost) ==
                                  cudaSuccess);
                      EXPECT_RANK(content == std::vector<unsigned char>(sizes[i], 0));
                    }
                    for (int i = 0; i < kCount && text.empty(); ++i) {
                      DeviceTensor in(sequenceSide(kShape, P, rank, round)), plain(bytes);
                      void* out = windows[i] != nullptr ? windows[i] : plain.data();
                      settle(meeting);
                      EXPECT_OK(exchange(kShape, in.data(), out, ulyssesScatterHeads, comm, stream));
                      EXPECT_RANK(finish(stream, meeting));
                      std::vector<unsigned char> got(bytes);
                      EXPECT_RANK(cudaMemcpy(got.data(), out, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
                      EXPECT_RANK(got == headSide(kShape, P, rank, round));
                      meeting.wait();
                    }
                    for (int i = 0; i < kCount; ++i)
                      EXPECT_OK(ulyssesMemFree(windows[(i * (rank + 1) + rank) % kCount], comm));
                    EXPECT_RANK(infoOf(comm).windowBytes == used);
                  }
                  // What one rank asks for all must have room for.
                  void* window = nullptr;
                  const size_t half = config.windowCapBytes / 2;
                  EXPECT_OK(ulyssesMemAlloc(&window, half, comm));
                  void* more = nullptr;
                  EXPECT_RANK(ulyssesMemAlloc(&more, rank == 0 ? 64 : half, comm) == ulyssesOutOfMemory &&
                              more == nullptr);
                  EXPECT_OK(ulyssesMemFree(window, comm));
                  return text;
                },
                config) == "");
      INFO(log.text());
      CHECK(log.lines("windows by NCCL") == P);
    }
}

#ifdef ULYSSES_EMULATED
TEST_CASE("windows by NCCL: where it can't, and does not say so before, CUDA's handles take over", "[gpu][provider]") {
  NEEDS_NCCL_WINDOWS;
  const Asked asked("nccl");
  for (const As as : {As::Threads, As::Processes})
    for (const auto& [how, why] : {std::pair{"old", "and this is 2.28.9"},
                                   {"lsa", "NCCL's LSA team of rank 0 has 1 of 2 ranks"},
                                   {"plain", "NCCL registers no symmetric memory here"},
                                   {"refuses", "ncclCommWindowRegister"},
                                   {"stuck", "ncclCommWindowRegister was not over in time"},
                                   {"unmapped", "ncclGetLsaDevicePointer"}}) {
      INFO((as == As::Threads ? "threads " : "processes ") << how);
      const Environment wrong("ULYSSES_EMULATED_NCCL", how);
      const Logged log;
      CHECK(made(as, 2, -1, hooks::Stage::None) == "");
      INFO(log.text());
      CHECK(log.lines(why) == 2);
      CHECK(log.lines("windows in device memory by ipc") == 2);
    }
  {
    const Environment off("NCCL_CUMEM_ENABLE", "0");
    const Logged log;
    CHECK(made(As::Processes, 2, -1, hooks::Stage::None) == "");
    CHECK(log.lines("NCCL_CUMEM_ENABLE=0, as on rank 0") == 2);
  }
  {
    const Environment full("ULYSSES_EMULATED_NCCL", "full");
    const Logged log;
    CHECK(made(As::Processes, 2, -1, hooks::Stage::None) == "");
    CHECK(log.lines("no more windows by NCCL") == 0);
    CHECK(log.lines("no window by NCCL: rank 0: ncclMemAlloc") >= 2);
  }
}

TEST_CASE("windows by NCCL: a rank that dies while all register is noticed", "[gpu][provider]") {
  NEEDS_NCCL_WINDOWS;
  const Asked asked("nccl");
  const RendezvousProcess rendezvous;
  const std::vector<std::string> texts = runRanks(
      As::Processes, 2,
      [&](int rank) -> std::string {
        EXPECT_RANK(takeDeviceOf(rank));
        const ulyssesConfig_t config = deviceConfig(60000);
        ulyssesComm_t comm = nullptr;
        EXPECT_OK(ulyssesCommInitRankConfig(&comm, 2, rendezvous.id(), rank, &config));
        if (rank == 1) setenv("ULYSSES_EMULATED_NCCL", "dies", 1);
        void* window = nullptr;
        EXPECT_RANK(ulyssesMemAlloc(&window, kMuch, comm) == ulyssesRemoteError);
        EXPECT_OK(ulyssesCommAbort(comm));
        return "";
      },
      20);
  CHECK(texts[0] == "");
  CHECK(texts[1] == "exited with 9");
}
#endif

}  // namespace ulysses::testing
