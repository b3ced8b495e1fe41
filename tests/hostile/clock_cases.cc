// The wall clock jumps by hours, both ways, while ranks exchange and wait: a suspended laptop that comes back, a
// virtual machine that was moved, an administrator. Whatever asks for the wall clock in this binary, its libraries
// included, gets one that jumps; the kernel keeps the machine's. So a wait by the wall clock goes wrong wherever it
// counts its time.
#include <dlfcn.h>
#include <sys/time.h>

#include <chrono>
#include <random>
#include <thread>

#include "bootstrap/bootstrap.h"
#include "hostile/job.h"
#include "support/catch.h"
#include "support/fork_rank.h"

namespace {

std::atomic<std::atomic<int64_t>*> wallClockAhead = nullptr;  // seconds, for all processes that share the word

time_t ahead() {
  const std::atomic<int64_t>* seconds = wallClockAhead;
  return seconds != nullptr ? static_cast<time_t>(seconds->load()) : 0;
}

}  // namespace

// The C library's, with the jumps; visible, so that other libraries find them first.
#pragma GCC visibility push(default)
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static const auto original = reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = original(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
  return result;
}
extern "C" int gettimeofday(timeval* now, void*) noexcept {
  timespec t{};
  const int result = clock_gettime(CLOCK_REALTIME, &t);
  *now = {t.tv_sec, t.tv_nsec / 1000};
  return result;
}
extern "C" time_t time(time_t* out) noexcept {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  if (out != nullptr) *out = t.tv_sec;
  return t.tv_sec;
}
#pragma GCC visibility pop

namespace ulysses::testing {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds, std::chrono::seconds, std::chrono::steady_clock, std::chrono::system_clock;

// The wall clock of the processes forked while this object lives.
class WallClock {
 public:
  WallClock()
      : ahead_(static_cast<std::atomic<int64_t>*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    wallClockAhead = ahead_;
  }
  WallClock(const WallClock&) = delete;
  WallClock& operator=(const WallClock&) = delete;
  ~WallClock() {
    wallClockAhead = nullptr;
    munmap(ahead_, 4096);
  }
  void jump(seconds by) { *ahead_ += by.count(); }

 private:
  std::atomic<int64_t>* ahead_;
};

constexpr seconds kJumps[] = {6h, -6h};
constexpr milliseconds kTimeout = 1500ms;

// How long `wait` takes by the monotonic clock where the wall clock jumps meanwhile.
milliseconds acrossJump(WallClock& clock, seconds jump, const std::function<void()>& wait) {
  std::thread jumper([&] {
    std::this_thread::sleep_for(kTimeout / 5);
    clock.jump(jump);
  });
  const auto begun = steady_clock::now();
  wait();
  const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - begun);
  jumper.join();
  return took;
}

// Not early, but for the moment between a deadline's making and the wait, and late by what a busy machine takes. A wait by
// the wall clock ends when that jumps: after a fifth.
bool onTime(milliseconds took) {
  return took >= kTimeout / 2 && took < kTimeout + 3s;
}

}  // namespace

TEST_CASE("the jumps are seen: a deadline by the wall clock fires early, or hours late", "[hostile]") {
  WallClock clock;
  for (const seconds jump : kJumps) {
    const milliseconds took = acrossJump(clock, jump, [] {
      const auto givenUp = steady_clock::now() + 2 * kTimeout + 3s;
      const auto deadline = system_clock::now() + kTimeout;
      while (system_clock::now() < deadline && steady_clock::now() < givenUp) std::this_thread::sleep_for(1ms);
    });
    CHECK(!onTime(took));
    CHECK((took < kTimeout / 2) == (jump > 0s));
  }
}

TEST_CASE("ranks start, exchange and leave while the wall clock jumps by hours", "[hostile]") {
  WallClock clock;
  const pid_t jumper = forkRank();
  if (jumper == 0) {
    std::mt19937 random(11);
    for (;; usleep(200)) clock.jump(seconds(static_cast<int>(random() % 200001) - 100000));
  }
  CHECK(failures(runJob(
            3, [](int) -> std::string { return ""; },
            [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
              EXPECT_OK(init);
              const auto before = system_clock::now();
              std::string text;
              for (int i = 0; i < 200 && text.empty(); ++i)
                text = exchangeExact(i % 2 == 0 ? kStaged : kSmall, 3, rank, comm);
              ulyssesComm_t child = nullptr;
              EXPECT_OK(ulyssesCommSplit(comm, 0, 0, &child, nullptr));
              text += exchangeExact(kStaged, 3, rank, child);
              EXPECT_OK(ulyssesCommDestroy(child));
              const auto passed = system_clock::now() - before;
              EXPECT_RANK(passed < -60s || passed > 60s);
              return text;
            })) == "");
  kill(jumper, SIGKILL);
  waitpid(jumper, nullptr, 0);
}

TEST_CASE("the wall clock jumps while a rank waits for one that never comes: the deadline fires in time", "[hostile]") {
  const auto missesRank1 = [](ulyssesResult_t result, milliseconds took) -> std::string {
    EXPECT_RANK(result == ulyssesTimeout && lastErrorHas("rank 1"));
    EXPECT_RANK(onTime(took));
    return "";
  };
  for (const seconds jump : kJumps) {
    CAPTURE(jump.count());
    WallClock clock;
    // At init.
    const RendezvousProcess rendezvous;
    CHECK(failures(runRanks(As::Processes, 1, [&](int) -> std::string {
            const ulyssesConfig_t config = hostConfig(kTimeout.count());
            ulyssesComm_t comm = nullptr;
            ulyssesResult_t result = ulyssesSuccess;
            const milliseconds took = acrossJump(
                clock, jump, [&] { result = ulyssesCommInitRankConfig(&comm, 2, rendezvous.id(), 0, &config); });
            return missesRank1(result, took);
          })) == "");
    // In a call: over the shared page, and over connections, as between hosts.
    for (const bool oneHost : {true, false}) {
      CAPTURE(oneHost);
      SharedWords over;
      CHECK(failures(runJob(
                2,
                [&](int rank) -> std::string {
                  if (!oneHost) setenv("ULYSSES_HOSTID", rank == 0 ? "here" : "there", 1);
                  return "";
                },
                [&](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
                  EXPECT_OK(init);
                  if (rank == 1) {
                    while (over[0] == 0) usleep(1000);
                    return "";
                  }
                  ulyssesResult_t result = ulyssesSuccess;
                  const milliseconds took = acrossJump(
                      clock, jump, [&] { result = ulyssesAllGather(nullptr, nullptr, 0, ulyssesInt8, comm, nullptr); });
                  over[0] = 1;
                  return missesRank1(result, took);
                },
                kTimeout.count())) == "");
    }
    // Among the threads of one process.
    CHECK(failures(runRanks(As::Processes, 1, [&](int) -> std::string {
            const std::vector<Allgather> ends = inProcessAllgather(2, Deadline::afterMs(kTimeout.count()));
            int mine = 0, all[2];
            Status status;
            const milliseconds took = acrossJump(clock, jump, [&] { status = ends[0](&mine, all, sizeof mine); });
            EXPECT_RANK(status.code() == ulyssesTimeout);
            EXPECT_RANK(onTime(took));
            return "";
          })) == "");
  }
}

TEST_CASE("the wall clock jumps past the deadline, and the late rank still comes in time", "[hostile]") {
  for (const seconds jump : kJumps) {
    WallClock clock;
    CHECK(failures(runJob(
              2, [](int) -> std::string { return ""; },
              [&](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
                EXPECT_OK(init);
                if (rank == 1) {
                  usleep(200000);
                  clock.jump(jump);
                  usleep(200000);
                }
                return exchangeExact(kStaged, 2, rank, comm);
              })) == "");
  }
}

}  // namespace ulysses::testing
