// Ranks that are stopped, killed, late, forked, or many; a library that is loaded twice, or unloaded too early.
#include <dlfcn.h>
#include <fcntl.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "hostile/job.h"
#include "support/catch.h"

namespace ulysses::testing {
namespace {

constexpr auto kNothing = [](int) -> std::string { return ""; };

// A count that a longer run raises.
int countFrom(const char* variable, int fallback) {
  const char* value = std::getenv(variable);
  return value != nullptr ? std::atoi(value) : fallback;
}

size_t openDescriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

}  // namespace

TEST_CASE("a rank that is stopped for three seconds delays the others and harms nobody", "[hostile]") {
  CHECK(failures(runJob(3, kNothing, [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
          EXPECT_OK(init);
          std::string text = exchangeExact(kStaged, 3, rank, comm);
          const pid_t self = getpid();
          pid_t waker = -1;
          if (rank == 1) {
            waker = fork();
            if (waker == 0) {
              usleep(20000);
              kill(self, SIGSTOP);
              sleep(3);
              kill(self, SIGCONT);
              _exit(0);
            }
          }
          const auto begun = std::chrono::steady_clock::now();
          bool stopped = false;
          for (int i = 0; i < 100000 && text.empty(); ++i) {
            text = exchangeExact(i % 2 == 0 ? kStaged : kSmall, 3, rank, comm);
            // All ranks leave after the same number of calls: rank 0 says when it has seen the gap.
            int mine = rank == 0 && std::chrono::steady_clock::now() - begun > std::chrono::seconds(3), all[3] = {};
            EXPECT_OK(ulyssesAllGather(&mine, all, 1, ulyssesInt32, comm, nullptr));
            if (all[0] != 0) {
              stopped = true;
              break;
            }
          }
          EXPECT_RANK(stopped || !text.empty());
          if (waker > 0) waitpid(waker, nullptr, 0);
          return text;
        })) == "");
}

// ULYSSES_TEST_KILLS=1000 for a long run.
TEST_CASE("a rank killed at any point is named by the others, and leaves nobody waiting", "[hostile]") {
  const int kills = countFrom("ULYSSES_TEST_KILLS", kSanitized ? 8 : 30);
  std::mt19937 random(20240607);
  for (int i = 0; i < kills; ++i) {
    const int P = 2 + static_cast<int>(random() % 3), victim = static_cast<int>(random() % static_cast<unsigned>(P));
    const auto delayUs = static_cast<useconds_t>(random() % (i % 2 == 0 ? 15000 : 60000));  // in init, or in the calls
    CAPTURE(i, P, victim, delayUs);
    std::vector<std::string> texts = runJob(
        P,
        [&](int rank) -> std::string {
          if (rank != victim) return "";
          std::thread([delayUs] {
            usleep(delayUs);
            kill(getpid(), SIGKILL);
          }).detach();
          return "";
        },
        [&](int rank, ulyssesResult_t result, ulyssesComm_t comm) -> std::string {
          const Shape shapes[] = {kSmall, kStaged, {1, 2048, 8, 64, 4}};
          std::string text;
          for (int call = 0; result == ulyssesSuccess; ++call) {
            const Shape& t = shapes[call % 3];
            const std::vector<unsigned char> in = sequenceSide(t, P, rank), expected = headSide(t, P, rank);
            std::vector<unsigned char> out(expected.size());
            void* window = nullptr;
            if (call % 5 == 4) result = ulyssesMemAlloc(&window, 4096, comm);
            if (result != ulyssesSuccess) break;
            result = ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm,
                                nullptr);
            if (result == ulyssesSuccess) EXPECT_RANK(out == expected);
            (void)ulyssesMemFree(window, comm);
          }
          // One that died before it had met anybody can only be missed.
          EXPECT_RANK(result == ulyssesRemoteError || (comm == nullptr && result == ulyssesTimeout));
          EXPECT_RANK(lastErrorHas("rank " + std::to_string(victim)));
          return "";
        },
        5000);
    CHECK(texts[static_cast<size_t>(victim)] == "killed by signal 9");
    texts[static_cast<size_t>(victim)].clear();
    CHECK(failures(texts) == "");
  }
}

// The connections of a process that dies are closed before its death can be seen: a peer may have noticed, and destroyed
// its communicator, while another still takes the dead for alive.
TEST_CASE("a rank is named that dies just after another has destroyed its communicator", "[hostile]") {
  std::vector<std::string> texts = runJob(3, kNothing, [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
    EXPECT_OK(init);
    std::string text = exchangeExact(kSmall, 3, rank, comm);
    if (rank == 2) return text;  // and destroys
    if (rank == 0) {
      usleep(20000);
      kill(getpid(), SIGKILL);
    }
    text += exchangeExact(kSmall, 3, rank, comm);
    EXPECT_RANK(!text.empty() && lastErrorHas("the process of rank 0 has died"));
    return "";
  });
  CHECK(texts[0] == "killed by signal 9");
  texts[0].clear();
  CHECK(failures(texts) == "");
}

// ULYSSES_TEST_LATE_MS=20000 for a long run.
TEST_CASE("ranks that start one after the other", "[hostile]") {
  const auto late = static_cast<useconds_t>(countFrom("ULYSSES_TEST_LATE_MS", 700)) * 1000;
  CHECK(failures(runJob(
            4,
            [&](int rank) -> std::string {
              for (int i = 0; i < 3 - rank; ++i) usleep(late);
              return "";
            },
            [&](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
              EXPECT_OK(init);
              return exchangeExact(kStaged, 4, rank, comm);
            },
            120000, 120)) == "");
}

TEST_CASE("a rank may fork: what the child does to its copy is not seen by the peers", "[hostile]") {
  CHECK(failures(runJob(2, kNothing, [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
          EXPECT_OK(init);
          std::string text = exchangeExact(kStaged, 2, rank, comm);
          for (const int way : {0, 1, 2}) {
            const pid_t child = fork();
            if (child == 0) {
              if (way == 1) (void)ulyssesCommDestroy(comm);
              if (way == 2) (void)ulyssesCommAbort(comm);
              _exit(0);
            }
            waitpid(child, nullptr, 0);
            text += exchangeExact(kStaged, 2, rank, comm);
            text += exchangeExact(kSmall, 2, rank, comm);
          }
          return text;
        })) == "");
}

TEST_CASE("a rank that dies while a child of its lives on is noticed", "[hostile]") {
  SharedWords child;
  std::vector<std::string> texts = runJob(
      2, kNothing,
      [&](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
        EXPECT_OK(init);
        std::string text = exchangeExact(kStaged, 2, rank, comm);
        if (rank == 1) {
          const pid_t pid = fork();
          if (pid == 0) {
            for (int fd = 0; fd < 3; ++fd) close(fd);
            sleep(30);
            _exit(0);
          }
          child[0] = pid;
          kill(getpid(), SIGKILL);
        }
        ulyssesResult_t result = ulyssesSuccess;
        while (result == ulyssesSuccess) result = ulyssesAllGather(nullptr, nullptr, 0, ulyssesInt8, comm, nullptr);
        EXPECT_RANK(result == ulyssesRemoteError && lastErrorHas("rank 1"));
        return text;
      },
      10000, 5);
  CHECK(texts[0] == "");
  if (child[0] > 0) kill(child[0], SIGKILL);
}

TEST_CASE("64 communicators at once, made and used in turn", "[hostile]") {
  CHECK(failures(runJob(2, kNothing, [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
          EXPECT_OK(init);
          const size_t before = openDescriptors();
          std::vector<ulyssesComm_t> comms(64);
          for (ulyssesComm_t& c : comms) EXPECT_OK(ulyssesCommSplit(comm, 0, rank, &c, nullptr));
          for (int round = 0; round < 3; ++round)
            for (ulyssesComm_t c : comms) {
              const std::string text = exchangeExact(round == 1 ? kStaged : kSmall, 2, rank, c);
              if (!text.empty()) return text;
            }
          for (ulyssesComm_t c : comms) EXPECT_OK(ulyssesCommDestroy(c));
          EXPECT_RANK(openDescriptors() == before);
          return exchangeExact(kStaged, 2, rank, comm);
        })) == "");
}

namespace {

// The shared library as a program has it that loads it by itself.
struct Library {
  explicit Library(bool apart)
      : handle(apart ? dlmopen(LM_ID_NEWLM, ULYSSES_LIBRARY_FILE, RTLD_NOW | RTLD_LOCAL)
                     : dlopen(ULYSSES_LIBRARY_FILE, RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    };
    find(init, "ulyssesCommInitRankConfig");
    find(a2a, "ulyssesA2A");
    find(destroy, "ulyssesCommDestroy");
  }
  std::string exchange(int P, int rank, ulyssesComm_t comm) const {
    const Shape& t = kStaged;
    const std::vector<unsigned char> in = sequenceSide(t, P, rank), expected = headSide(t, P, rank);
    std::vector<unsigned char> out(expected.size());
    const auto direction = ulyssesScatterHeads;
    EXPECT_OK(a2a(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, direction, comm, nullptr));
    EXPECT_RANK(out == expected);
    return "";
  }

  void* handle;
  decltype(&ulyssesCommInitRankConfig) init = nullptr;
  decltype(&ulyssesA2A) a2a = nullptr;
  decltype(&ulyssesCommDestroy) destroy = nullptr;
};

}  // namespace

TEST_CASE("two copies of the library in one process make one communicator", "[hostile]") {
  if (kSanitized) ULYSSES_SKIP("a sanitizer's runtime cannot be loaded a second time");
  const RendezvousProcess rendezvous;
  const ulyssesUniqueId id = rendezvous.id();
  CHECK(failures(runRanks(As::Processes, 1, [&](int) -> std::string {
          const Library copies[] = {Library(false), Library(true)};
          for (const Library& copy : copies) EXPECT_RANK(copy.handle != nullptr && copy.init != nullptr);
          EXPECT_RANK(copies[0].a2a != copies[1].a2a);
          return failures(runRanks(As::Threads, 3, [&](int rank) -> std::string {
            const Library& mine = copies[rank % 2];
            const ulyssesConfig_t config = hostConfig(20000);
            ulyssesComm_t comm = nullptr;
            EXPECT_OK(mine.init(&comm, 3, id, rank, &config));
            const std::string text = mine.exchange(3, rank, comm);
            EXPECT_OK(mine.destroy(comm));
            return text;
          }));
        })) == "");
}

TEST_CASE("a library that is closed while a communicator lives stays until the process ends", "[hostile]") {
  const RendezvousProcess rendezvous;
  const ulyssesUniqueId id = rendezvous.id();
  CHECK(failures(runRanks(As::Processes, 2, [&](int rank) -> std::string {
          const Library library(false);
          EXPECT_RANK(library.handle != nullptr && library.init != nullptr);
          const ulyssesConfig_t config = hostConfig(20000);
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(library.init(&comm, 2, id, rank, &config));
          std::string text = library.exchange(2, rank, comm);
          EXPECT_RANK(dlclose(library.handle) == 0);
          text += library.exchange(2, rank, comm);
          EXPECT_OK(library.destroy(comm));
          return text;
        })) == "");
}

}  // namespace ulysses::testing
