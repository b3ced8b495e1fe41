// Agreement and failure: cases 3, 4, 10 and 26.
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "base/test_hooks.h"
#include "bootstrap/agreement.h"
#include "bootstrap/control_page.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/tensors.h"

namespace ulysses::testing {
namespace {

const Shape kT{2, 4, 4, 3, 4};

bool errorNames(const std::string& text) {
  return std::string(ulyssesGetLastError()).find(text) != std::string::npos;
}

std::string validCall(int P, int rank, ulyssesComm_t comm) {
  Fenced in(sequenceSide(kT, P, rank)), out(headSide(kT, P, rank).size());
  EXPECT_OK(ulyssesA2A(in.data(), out.data(), 2, 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
  EXPECT_RANK(out.content() == headSide(kT, P, rank));
  return "";
}

ulyssesResult_t call(ulyssesComm_t comm, int P, int rank) {
  Fenced in(sequenceSide(kT, P, rank)), out(headSide(kT, P, rank).size());
  return ulyssesA2A(in.data(), out.data(), 2, 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr);
}

ulyssesConfig_t withTimeout(int ms) {
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.timeoutMs = ms;
  return config;
}

std::set<std::string> entries(const char* folder) {
  std::set<std::string> names;
  if (DIR* d = opendir(folder)) {
    while (const dirent* e = readdir(d)) names.insert(e->d_name);
    closedir(d);
  }
  return names;
}

}  // namespace

TEST_CASE("case 3a: control memory that fails on one rank fails init on all, a second init works", "[host][cases]") {
  ulyssesUniqueId first, second;
  REQUIRE(ulyssesGetUniqueId(&first) == ulyssesSuccess);
  REQUIRE(ulyssesGetUniqueId(&second) == ulyssesSuccess);
  for (const auto stage : {hooks::Stage::ControlMemory, hooks::Stage::Configuration}) {
    REQUIRE(ulyssesGetUniqueId(&first) == ulyssesSuccess);
    CHECK(failures(runRanks(As::Threads, 4, [&](int rank) -> std::string {
            if (rank == 2) hooks::plantFailure(stage, Status(ulyssesSystemError, "planted"));
            ulyssesComm_t comm = nullptr;
            EXPECT_RANK(ulyssesCommInitRank(&comm, 4, first, rank) == ulyssesSystemError);
            EXPECT_RANK(comm == nullptr && errorNames("rank 2") && errorNames("planted"));
            return "";
          })) == "");
  }
  CHECK(failures(runRanks(As::Threads, 4, [&](int rank) -> std::string {
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitRank(&comm, 4, second, rank));
          const std::string text = validCall(4, rank, comm);
          EXPECT_OK(ulyssesCommDestroy(comm));
          return text;
        })) == "");
}

TEST_CASE("case 3b: staging memory that fails on one rank fails that call on all, the next one tries again", "[host][cases]") {
  const Environment environment("ULYSSES_PATH", "staged");
  for (const auto stage : {hooks::Stage::Allocate, hooks::Stage::Open})
    for (const auto code : {ulyssesOutOfMemory, ulyssesSystemError})
      CHECK(failures(runComms(As::Threads, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
              const Shape big{1, 512, 8, 64, 4};
              Fenced in(sequenceSide(big, 4, rank)), out(headSide(big, 4, rank).size());
              const auto exchange = [&] {
                return ulyssesA2A(in.data(), out.data(), 1, 512, 8, 64, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr);
              };
              // No fallback in this communicator: an error, with the reason, on all.
              for (int i = 0; i < 2; ++i) {
                if (rank == 2) hooks::plantFailure(stage, Status(code, "planted"));
                EXPECT_RANK(exchange() == code && errorNames("rank 2") && errorNames("planted") && out.untouched());
                ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
                EXPECT_OK(ulyssesCommGetInfo(comm, &info));
                EXPECT_RANK(info.windowBytes == 0);
                const std::string text = validCall(4, rank, comm);
                if (!text.empty()) return text;
              }
              EXPECT_OK(exchange());
              EXPECT_RANK(out.content() == headSide(big, 4, rank));
              return "";
            })) == "");
}

TEST_CASE("case 3c, 3d: a rank that dies between or inside calls is named on the others, twice", "[host][cases]") {
  for (const bool inside : {false, true}) {
    INFO((inside ? "inside a call" : "between calls"));
    std::vector<std::string> texts = runComms(As::Processes, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
      std::string text = validCall(4, rank, comm);
      if (!text.empty()) return text;
      if (rank == 2) {
        if (!inside) _exit(3);
        // Killed while it waits inside the call: rank 3 comes late.
        std::thread([] {
          usleep(100000);
          kill(getpid(), SIGKILL);
        }).detach();
        call(comm, 4, rank);
        return "";
      }
      if (inside && rank == 3) sleep(1);
      const auto start = std::chrono::steady_clock::now();
      // Inside a call the dead rank may have arrived, so that the round completes without it: the next one fails.
      ulyssesResult_t result = call(comm, 4, rank);
      if (inside && result == ulyssesSuccess) result = call(comm, 4, rank);
      EXPECT_RANK(result == ulyssesRemoteError);
      EXPECT_RANK(errorNames("rank 2"));
      EXPECT_RANK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
      EXPECT_RANK(call(comm, 4, rank) == ulyssesRemoteError && errorNames("rank 2"));
      ulyssesResult_t async = ulyssesSuccess;
      EXPECT_OK(ulyssesCommGetAsyncError(comm, &async));
      EXPECT_RANK(async == ulyssesRemoteError);
      return "";
    }, nullptr, 30);
    CHECK(texts[2] == (inside ? "killed by signal 9" : "exited with 3"));
    texts[2].clear();
    CHECK(failures(texts) == "");
  }
}

TEST_CASE("case 3d: a rank killed in the middle of a large transfer", "[host][cases]") {
  std::vector<std::string> texts = runComms(As::Processes, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
    const Shape big{1, 4096, 16, 64, 4};
    Fenced in(sequenceSide(big, 4, rank)), out(headSide(big, 4, rank).size());
    if (rank == 2) std::thread([] {
        usleep(300000);
        kill(getpid(), SIGKILL);
      }).detach();
    for (;;) {
      const ulyssesResult_t r = ulyssesA2A(in.data(), out.data(), 1, 4096, 16, 64, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr);
      if (r == ulyssesSuccess) continue;
      EXPECT_RANK(r == ulyssesRemoteError && errorNames("rank 2"));
      return "";
    }
  }, nullptr, 30);
  CHECK(texts[2] == "killed by signal 9");
  texts[2].clear();
  CHECK(failures(texts) == "");
}

TEST_CASE("case 3e: a rank that never calls is named after the deadline, destroy returns", "[host][cases]") {
  ulyssesConfig_t config = withTimeout(1500);
  for (const As as : {As::Threads, As::Processes})
    CHECK(failures(runComms(as, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
            if (rank == 2) {
              sleep(3);
              return "";
            }
            EXPECT_RANK(call(comm, 4, rank) == ulyssesTimeout && errorNames("rank 2"));
            EXPECT_RANK(call(comm, 4, rank) == ulyssesTimeout && errorNames("rank 2"));
            return "";
          }, &config)) == "");
}

TEST_CASE("case 3f: a rank that arrives as the deadline passes gives one outcome for all", "[host][cases]") {
  // A new communicator for every try: a timeout is sticky. The tries differ by fractions of a millisecond.
  constexpr int kTries = kSanitized ? 60 : 1000, kTimeoutMs = 5;
  int completed = 0, timedOut = 0;
  for (int i = 0; i < kTries; ++i) {
    ulyssesUniqueId id;
    REQUIRE(ulyssesGetUniqueId(&id) == ulyssesSuccess);
    std::atomic<int> successes{0}, timeouts{0}, others{0};
    runRanks(As::Threads, 4, [&](int rank) -> std::string {
      ulyssesComm_t comm = nullptr;
      hooks::setCallTimeoutMs(kTimeoutMs);
      if (ulyssesCommInitRank(&comm, 4, id, rank) != ulyssesSuccess) return "init";
      ulyssesAllGather(nullptr, nullptr, 0, ulyssesInt8, comm, nullptr);
      if (rank == 2) usleep(static_cast<useconds_t>(kTimeoutMs * 1000 + i % 60 * 200));
      const ulyssesResult_t r = call(comm, 4, rank);
      ++(r == ulyssesSuccess ? successes : r == ulyssesTimeout ? timeouts : others);
      ulyssesCommDestroy(comm);
      return "";
    });
    CHECK(others == 0);
    CHECK((successes == 4 || timeouts == 4));
    completed += successes == 4;
    timedOut += timeouts == 4;
  }
  WARN(completed << " tries completed, " << timedOut << " timed out");
}

TEST_CASE("case 4: what differs between ranks is named, nothing is touched, the next call is exact", "[host][cases]") {
  for (const As as : {As::Threads, As::Processes})
    CHECK(failures(runComms(as, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
            const size_t bytes = 16 * 16 * 6 * 16;
            Fenced in(bytes, 0, 3), out(bytes);
            const auto a2a = [&](size_t B, size_t S, size_t H, size_t D, ulyssesDataType_t t, ulyssesDirection_t dir) {
              return ulyssesA2A(in.data(), out.data(), B, S, H, D, t, dir, comm, nullptr);
            };
            const auto mismatch = [&](ulyssesResult_t r, const char* field) -> std::string {
              EXPECT_RANK(r == ulyssesMismatch);
              EXPECT_RANK(errorNames(field));
              EXPECT_RANK(out.untouched());
              return validCall(2, rank, comm);
            };
            const bool one = rank == 1;
            const auto S = ulyssesScatterHeads, G = ulyssesGatherHeads;
            std::string text;
            if (!(text = mismatch(a2a(2, one ? 16 : 8, 4, 3, ulyssesFloat32, S), "seq differs: rank 0 has 8, rank 1 has 16")).empty()) return text;
            if (!(text = mismatch(one ? a2a(2, 4, 4, 3, ulyssesFloat32, S) : a2a(2, 4, 4, 6, ulyssesFloat16, S), "dtype")).empty()) return text;
            if (!(text = mismatch(one ? a2a(4, 2, 4, 3, ulyssesFloat32, S) : a2a(2, 4, 4, 3, ulyssesFloat32, S), "batch")).empty()) return text;
            if (!(text = mismatch(a2a(2, 4, 4, 3, ulyssesFloat32, one ? G : S), "direction")).empty()) return text;
            if (!(text = mismatch(a2a(2, 4, 4, 3, one ? ulyssesBfloat16 : ulyssesFloat16, S), "bfloat16")).empty()) return text;
            if (!(text = mismatch(one ? ulyssesAllGather(in.data(), out.data(), 8, ulyssesInt32, comm, nullptr)
                                      : a2a(2, 4, 4, 3, ulyssesFloat32, S), "operation")).empty()) return text;
            if (!(text = mismatch(ulyssesAlltoAll(in.data(), out.data(), one ? 7 : 8, ulyssesInt32, comm, nullptr), "count")).empty()) return text;
            // Rank 1's own error is everybody's.
            const auto onOne = [&](const void* send, void* recv) {
              return ulyssesA2A(one ? send : in.data(), one ? recv : out.data(), 2, 4, 4, 3, ulyssesFloat32, S, comm, nullptr);
            };
            EXPECT_RANK(onOne(nullptr, out.data()) == ulyssesInvalidArgument && errorNames("rank 1") && errorNames("NULL"));
            EXPECT_RANK(onOne(in.data(), in.data() + 8) == ulyssesInvalidArgument && errorNames("overlaps"));
            EXPECT_RANK(onOne(in.data() + 1, out.data()) == ulyssesInvalidArgument && errorNames("aligned"));
            EXPECT_RANK(a2a(2, 4, 4, 3, one ? static_cast<ulyssesDataType_t>(77) : ulyssesFloat32, S) == ulyssesInvalidArgument);
            EXPECT_RANK(a2a(2, 4, 4, 3, ulyssesFloat32, one ? static_cast<ulyssesDirection_t>(9) : S) == ulyssesInvalidArgument);
            EXPECT_RANK(out.untouched());
            return validCall(2, rank, comm);
          })) == "");
}

TEST_CASE("case 10: jobs killed inside a call loop leave nothing behind", "[host][cases]") {
  const std::set<std::string> shm = entries("/dev/shm"), tmp = entries("/tmp");
  for (int job = 0; job < 20; ++job) {
    const std::vector<std::string> texts = runComms(As::Processes, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
      std::thread([job] {
        usleep(static_cast<useconds_t>(5000 + job * 700));
        kill(getpid(), SIGKILL);
      }).detach();
      const Shape big{1, 512, 8, 64, 4};
      Fenced in(sequenceSide(big, 2, rank)), out(headSide(big, 2, rank).size());
      for (;;)
        if (ulyssesA2A(in.data(), out.data(), 1, 512, 8, 64, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr) == ulyssesRemoteError) pause();
    }, nullptr, 30);
    for (const std::string& t : texts) CHECK(t == "killed by signal 9");
  }
  for (const std::string& name : entries("/dev/shm")) CHECK(shm.count(name) == 1);
  for (const std::string& name : entries("/tmp"))
    if (name.find("ulysses") != std::string::npos) CHECK(tmp.count(name) == 1);
}

TEST_CASE("case 26: one communicator entered by two threads at once is exact or an error on all, and does not hang", "[host][cases]") {
  ulyssesConfig_t config = withTimeout(20000);
  CHECK(failures(runComms(As::Processes, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          std::string texts[2];
          const auto loop = [&](int t) -> std::string {
            for (int i = 0; i < 200; ++i) {
              Fenced in(sequenceSide(kT, 2, rank)), out(headSide(kT, 2, rank).size());
              const ulyssesResult_t r = ulyssesA2A(in.data(), out.data(), 2, 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr);
              EXPECT_RANK(r == ulyssesSuccess || r == ulyssesInvalidUsage);
              if (r == ulyssesSuccess) EXPECT_RANK(out.content() == headSide(kT, 2, rank));
            }
            (void)t;
            return "";
          };
          std::thread other([&] { texts[1] = loop(1); });
          texts[0] = loop(0);
          other.join();
          return texts[0] + texts[1];
        }, &config)) == "");
}

TEST_CASE("case 26: exchanges beside communicators that come and go in another thread", "[host][cases]") {
  CHECK(failures(runComms(As::Processes, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          ulyssesComm_t other = nullptr;
          EXPECT_OK(ulyssesCommSplit(comm, 0, rank, &other, nullptr));
          std::atomic<bool> stop{false};
          std::string text;
          std::thread maker([&] {
            for (int i = 0; i < 20 && text.empty(); ++i) {
              ulyssesComm_t child = nullptr;
              if (ulyssesCommSplit(other, 0, 0, &child, nullptr) != ulyssesSuccess) text = "split";
              else if (ulyssesCommDestroy(child) != ulyssesSuccess) text = "destroy";
            }
            stop = true;
          });
          std::string exchange;
          // Both ranks make the same number of calls.
          for (int i = 0; i < 300 && exchange.empty(); ++i) exchange = validCall(2, rank, comm);
          maker.join();
          EXPECT_OK(ulyssesCommDestroy(other));
          return text + exchange;
        })) == "");
}

TEST_CASE("a communicator that a peer destroyed or aborted is reported at once", "[host]") {
  for (const bool aborted : {false, true})
    CHECK(failures(runRanks(As::Threads, 3, [&, id = [] { ulyssesUniqueId i; (void)ulyssesGetUniqueId(&i); return i; }()](int rank) -> std::string {
            ulyssesComm_t comm = nullptr;
            EXPECT_OK(ulyssesCommInitRank(&comm, 3, id, rank));
            std::string text = validCall(3, rank, comm);
            if (!text.empty()) return text;
            if (rank == 1) {
              usleep(50000);
              EXPECT_OK(aborted ? ulyssesCommAbort(comm) : ulyssesCommDestroy(comm));
              return "";
            }
            EXPECT_RANK(call(comm, 3, rank) == ulyssesRemoteError && errorNames("rank 1"));
            EXPECT_OK(ulyssesCommDestroy(comm));
            return "";
          })) == "");
}

TEST_CASE("a rank that comes after the others have timed out and aborted hears that it was late", "[host]") {
  ulyssesUniqueId id;
  REQUIRE(ulyssesGetUniqueId(&id) == ulyssesSuccess);
  const ulyssesConfig_t config = withTimeout(300);
  std::atomic<bool> aborted = false;
  CHECK(failures(runRanks(As::Threads, 2, [&](int rank) -> std::string {
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitRankConfig(&comm, 2, id, rank, &config));
          while (rank == 1 && !aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          ulyssesResult_t waiting = ulyssesSuccess;
          EXPECT_OK(ulyssesCommGetAsyncError(comm, &waiting));
          EXPECT_RANK(waiting == (rank == 1 ? ulyssesTimeout : ulyssesSuccess));
          EXPECT_RANK(call(comm, 2, rank) == ulyssesTimeout && errorNames("rank 1 did not make the call"));
          EXPECT_OK(rank == 0 ? ulyssesCommAbort(comm) : ulyssesCommDestroy(comm));
          aborted = true;
          return "";
        })) == "");
}

namespace {

// To a peer that is no more, or says too little.
struct DeadChannel final : ControlChannel {
  int rank() const override { return 0; }
  int nranks() const override { return 2; }
  int nHosts() const override { return 1; }
  bool passesFds() const override { return true; }
  Status allgather(const Bytes& mine, std::vector<Bytes>& all, Deadline) override {
    all = {mine, Bytes(1, std::byte{1})};
    return {};
  }
  Status allgatherFds(std::span<const int>, std::vector<std::vector<UniqueFd>>&, Deadline) override { return {}; }
  int lifeline(int) const override { return -1; }
  bool dead(int r) const override { return r == 1 && died; }
  std::atomic<bool> died = false;
};

}  // namespace

TEST_CASE("a rank that dies as it has posted last, before it could complete the round, leaves nobody waiting",
          "[host]") {
  DeadChannel channel;
  std::vector<std::byte> memory(ControlPage::bytes(2) + kCacheLine);
  std::byte* base = memory.data() + (kCacheLine - reinterpret_cast<uintptr_t>(memory.data()) % kCacheLine);
  const std::unique_ptr<Agreement> agreement = makePageAgreement(0, 2, base, nullptr, channel);
  std::thread peer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // this rank has posted and looked
    ControlPage(base, 2).round(1).posted[1].store(1);
    channel.died = true;
  });
  const auto start = std::chrono::steady_clock::now();
  const Status status = agreement->round({}, Deadline::afterMs(10000));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK(status.ok());
  CHECK(agreement->round({}, Deadline::afterMs(10000)).code() == ulyssesRemoteError);
  peer.join();
}

TEST_CASE("over the wire, behind a short record are zeros, and a closed connection is a rank that died or left", "[host]") {
  DeadChannel channel;
  const std::unique_ptr<Agreement> agreement = makeWireAgreement(channel);
  const std::vector<std::byte> mine(ControlPage::kRecordBytes, std::byte{7});
  REQUIRE(agreement->round(mine, Deadline::afterMs(1000)).ok());
  CHECK(std::equal(mine.begin(), mine.end(), agreement->record(0)));
  CHECK(agreement->record(1)[0] == std::byte{1});
  CHECK(std::all_of(agreement->record(1) + 1, agreement->record(1) + mine.size(), [](std::byte b) { return b == std::byte{0}; }));
  CHECK(agreement->asyncError().ok());
  channel.died = true;
  CHECK(agreement->asyncError().code() == ulyssesRemoteError);
  CHECK(agreement->asyncError().message() == "rank 1 has died or left: its connection is closed");
}

TEST_CASE("a split without a place for the result on one rank is refused on all", "[host]") {
  CHECK(failures(runComms(As::Threads, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          ulyssesComm_t child = nullptr;
          EXPECT_RANK(ulyssesCommSplit(comm, 0, 0, rank == 1 ? nullptr : &child, nullptr) == ulyssesInvalidArgument);
          EXPECT_RANK(errorNames("rank 1") && child == nullptr);
          return validCall(2, rank, comm);
        })) == "");
}

TEST_CASE("plans outlive their communicator's handle on any rank, nothing runs after an abort", "[host]") {
  for (const bool aborted : {false, true}) {
    std::vector<ulyssesComm_t> comms(2);
    REQUIRE(ulyssesCommInitAll(comms.data(), 2, nullptr) == ulyssesSuccess);
    std::atomic<int> ready{0};
    CHECK(failures(runRanks(As::Threads, 2, [&](int rank) -> std::string {
            ulyssesComm_t comm = comms[static_cast<size_t>(rank)];
            ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
            d.batch = 2, d.seq = 4, d.heads = 4, d.headDim = 3, d.dtype = ulyssesFloat32;
            ulyssesPlan_t plan = nullptr;
            EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
            if (rank == 0) EXPECT_OK(aborted ? ulyssesCommAbort(comm) : ulyssesCommDestroy(comm));
            for (++ready; ready < 2;) usleep(1000);
            if (rank == 0) usleep(50000);
            Fenced in(sequenceSide(kT, 2, rank)), out(headSide(kT, 2, rank).size());
            const void* ins[] = {in.data()};
            void* outs[] = {out.data()};
            const ulyssesResult_t r = ulyssesPlanExecute(plan, ins, outs, nullptr);
            EXPECT_RANK(r == (aborted ? ulyssesRemoteError : ulyssesSuccess));
            EXPECT_RANK(aborted ? out.untouched() : out.content() == headSide(kT, 2, rank));
            EXPECT_OK(ulyssesPlanDestroy(plan));
            if (rank == 1) EXPECT_OK(ulyssesCommDestroy(comm));
            return "";
          })) == "");
  }
}

TEST_CASE("a thread that watches a communicator disturbs no call", "[host]") {
  CHECK(failures(runComms(As::Threads, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          std::atomic<bool> stop{false};
          std::string watched;
          std::thread watcher([&] {
            while (!stop) {
              ulyssesResult_t async = ulyssesSuccess;
              ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
              if (ulyssesCommGetAsyncError(comm, &async) != ulyssesSuccess || async != ulyssesSuccess) watched = "async error";
              if (ulyssesCommGetInfo(comm, &info) != ulyssesSuccess) watched = "info";
              if (ulyssesMemFree(nullptr, comm) != ulyssesSuccess) watched = "free";
            }
          });
          std::string text;
          for (int i = 0; i < 300 && text.empty(); ++i) text = validCall(2, rank, comm);
          stop = true;
          watcher.join();
          return text + watched;
        })) == "");
}

TEST_CASE("sequence numbers just below 2^31, 2^32 and 2^63 wrap without harm", "[host]") {
  for (const unsigned long long first : {(1ull << 31) - 3, (1ull << 32) - 3, (1ull << 46) - 3, (1ull << 63) - 3}) {
    ulyssesUniqueId id;
    REQUIRE(ulyssesGetUniqueId(&id) == ulyssesSuccess);
    CHECK(failures(runRanks(As::Threads, 3, [&](int rank) -> std::string {
            hooks::setFirstRound(first);
            ulyssesComm_t comm = nullptr;
            EXPECT_OK(ulyssesCommInitRank(&comm, 3, id, rank));
            for (int i = 0; i < 8; ++i) {
              const std::string text = validCall(3, rank, comm);
              if (!text.empty()) return text;
            }
            EXPECT_OK(ulyssesCommDestroy(comm));
            return "";
          })) == "");
  }
}

TEST_CASE("groups: one thread drives all ranks, errors come out of GroupEnd", "[host]") {
  std::vector<ulyssesComm_t> comms(3);
  REQUIRE(ulyssesCommInitAll(comms.data(), 3, nullptr) == ulyssesSuccess);
  std::vector<Fenced> in, out;
  for (int r = 0; r < 3; ++r) {
    in.emplace_back(sequenceSide(kT, 3, r));
    out.emplace_back(headSide(kT, 3, r).size());
  }
  REQUIRE(ulyssesGroupStart() == ulyssesSuccess);
  REQUIRE(ulyssesGroupStart() == ulyssesSuccess);
  for (size_t r = 0; r < 3; ++r)
    REQUIRE(ulyssesA2A(in[r].data(), out[r].data(), 2, 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comms[r], nullptr) == ulyssesSuccess);
  REQUIRE(ulyssesGroupEnd() == ulyssesSuccess);
  CHECK(out[0].untouched());
  REQUIRE(ulyssesGroupEnd() == ulyssesSuccess);
  for (int r = 0; r < 3; ++r) CHECK(out[static_cast<size_t>(r)].content() == headSide(kT, 3, r));

  REQUIRE(ulyssesGroupStart() == ulyssesSuccess);
  for (size_t r = 0; r < 3; ++r)
    REQUIRE(ulyssesA2A(r == 1 ? nullptr : in[r].data(), out[r].data(), 2, 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comms[r], nullptr) == ulyssesSuccess);
  CHECK(ulyssesGroupEnd() == ulyssesInvalidArgument);
  CHECK(errorNames("rank 1"));
  CHECK(ulyssesGroupEnd() == ulyssesInvalidUsage);

  // Split inside a group: ranks 0 and 2 together, rank 1 in none.
  std::vector<ulyssesComm_t> children(3);
  REQUIRE(ulyssesGroupStart() == ulyssesSuccess);
  for (int r = 0; r < 3; ++r)
    REQUIRE(ulyssesCommSplit(comms[static_cast<size_t>(r)], r == 1 ? ULYSSES_SPLIT_NOCOLOR : 5, -r, &children[static_cast<size_t>(r)], nullptr) == ulyssesSuccess);
  REQUIRE(ulyssesGroupEnd() == ulyssesSuccess);
  CHECK(children[1] == nullptr);
  int rank = -1, count = -1;
  REQUIRE(ulyssesCommUserRank(children[2], &rank) == ulyssesSuccess);
  REQUIRE(ulyssesCommCount(children[2], &count) == ulyssesSuccess);
  CHECK(rank == 0);  // the smaller key
  CHECK(count == 2);
  for (ulyssesComm_t c : {children[0], children[2], comms[0], comms[1], comms[2]}) CHECK(ulyssesCommDestroy(c) == ulyssesSuccess);
}

}  // namespace ulysses::testing
