// Windows, caps and staging: cases 8, 22 and 23, and what a registrar must hold.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "base/test_hooks.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/tensors.h"

namespace ulysses::testing {
namespace {

size_t windowBytes(ulyssesComm_t comm) {
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
  return ulyssesCommGetInfo(comm, &info) == ulyssesSuccess ? info.windowBytes : SIZE_MAX;
}

std::string lastPath(ulyssesComm_t comm) {
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
  return ulyssesCommGetInfo(comm, &info) == ulyssesSuccess ? info.lastPath : "";
}

std::string exchangeInto(const Shape& t, int P, int rank, ulyssesComm_t comm, unsigned char* out, uint64_t salt = 0) {
  const std::vector<unsigned char> in = sequenceSide(t, P, rank, salt), expected = headSide(t, P, rank, salt);
  std::memset(out, 0xEE, expected.size());
  EXPECT_OK(ulyssesA2A(in.data(), out, t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
  EXPECT_RANK(std::memcmp(out, expected.data(), expected.size()) == 0);
  return "";
}

std::string exchange(const Shape& t, int P, int rank, ulyssesComm_t comm, uint64_t salt = 0) {
  std::vector<unsigned char> out(headSide(t, P, rank).size());
  return exchangeInto(t, P, rank, comm, out.data(), salt);
}

}  // namespace

TEST_CASE("outputs in windows are written directly, mixed with plain ones, the rest is staged", "[host]") {
  const Environment environment("ULYSSES_PATH", "staged");
  const Shape t{2, 600, 8, 64, 4};
  for (const As as : {As::Threads, As::Processes})
    for (const int P : {1, 2, 3, 4})
      CHECK(failures(runComms(as, P, [&](int rank, ulyssesComm_t comm) -> std::string {
              const size_t bytes = headSide(t, P, rank).size();
              void* window = nullptr;
              EXPECT_OK(ulyssesMemAlloc(&window, bytes + 4096, comm));
              auto* w = static_cast<unsigned char*>(window);
              for (size_t shift : {size_t{0}, size_t{4}, size_t{68}}) {
                // Everybody's output at another place of the window.
                std::string text = exchangeInto(t, P, rank, comm, w + shift + 4 * static_cast<size_t>(rank), shift);
                if (!text.empty()) return text;
                EXPECT_RANK(P == 1 || lastPath(comm) == "direct");
                // Rank 0's output is plain, the others' are not.
                std::vector<unsigned char> plain(bytes);
                text = exchangeInto(t, P, rank, comm, rank == 0 ? plain.data() : w, shift + 1);
                if (!text.empty()) return text;
                EXPECT_RANK(P == 1 || lastPath(comm) == (rank == 0 ? "staged" : "direct"));
              }
              EXPECT_OK(ulyssesMemFree(window, comm));
              EXPECT_RANK(ulyssesMemFree(window, comm) == ulyssesInvalidArgument);
              return exchange(t, P, rank, comm);
            })) == "");
}

TEST_CASE("P=1 registers nothing, hundreds of shapes leave one staging window within its limit", "[host]") {
  const Environment environment("ULYSSES_PATH", "staged");
  CHECK(failures(runComms(As::Threads, 1, [](int rank, ulyssesComm_t comm) -> std::string {
          const std::string text = exchange({1, 3000, 8, 32, 4}, 1, rank, comm);
          EXPECT_RANK(windowBytes(comm) == 0);
          // In place with the same layout: nothing to do.
          std::vector<unsigned char> buffer = sequenceSide({1, 64, 4, 8, 4}, 1, 0), same = buffer;
          EXPECT_OK(ulyssesA2A(buffer.data(), buffer.data(), 1, 64, 4, 8, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
          EXPECT_RANK(buffer == same);
          return text;
        })) == "");
  CHECK(failures(runComms(As::Threads, 4, [](int rank, ulyssesComm_t comm) -> std::string {
          size_t largest = 0;
          for (size_t i = 0; i < 200; ++i) {
            const std::string text = exchange({1, 40 + 7 * i, 4 + i % 5, 16 + i % 3, 4}, 4, rank, comm, i);
            if (!text.empty()) return text;
            EXPECT_RANK(windowBytes(comm) >= largest);
            largest = windowBytes(comm);
          }
          EXPECT_RANK(largest > 0 && largest <= (64u << 20));
          return "";
        })) == "");
}

TEST_CASE("case 22: a cap is never passed, whatever the size of the plane", "[host][cases]") {
  const size_t cap = 1 << 20;
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.windowCapBytes = cap;
  // P=4, H=8, D=64, 4 bytes: one row of a rank is 2048 bytes, a plane of 512 rows is the cap.
  for (const auto& t : {Shape{1, 4 * 512, 8, 64, 4}, Shape{1, 4 * 513, 8, 64, 4}, Shape{3, 4 * 512, 8, 64, 4}})
    CHECK(failures(runComms(As::Threads, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
            void* p = nullptr;
            EXPECT_RANK(ulyssesMemAlloc(&p, cap + 1, comm) == ulyssesOutOfMemory && p == nullptr);
            EXPECT_RANK(std::string(ulyssesGetLastError()).find(std::to_string(cap)) != std::string::npos);
            // What one rank alone cannot have, nobody gets.
            EXPECT_RANK(ulyssesMemAlloc(&p, rank == 3 ? cap + 1 : 4096, comm) == ulyssesOutOfMemory);
            EXPECT_RANK(std::string(ulyssesGetLastError()).find("rank 3") != std::string::npos);
            EXPECT_OK(ulyssesMemAlloc(&p, cap / 2 + 1, comm));
            EXPECT_RANK(windowBytes(comm) == cap / 2 + 1);
            std::string text = exchange(t, 4, rank, comm);
            EXPECT_RANK(windowBytes(comm) <= cap);
            EXPECT_OK(ulyssesMemFree(p, comm));
            EXPECT_RANK(windowBytes(comm) < cap / 2);
            if (text.empty()) text = exchange(t, 4, rank, comm);
            EXPECT_RANK(windowBytes(comm) <= cap);
            return text;
          }, &config)) == "");
}

TEST_CASE("the smallest cap of all ranks holds, one too small for staging is not supported, with the reason", "[host]") {
  const Environment environment("ULYSSES_PATH", "staged");
  ulyssesUniqueId id;
  REQUIRE(ulyssesGetUniqueId(&id) == ulyssesSuccess);
  CHECK(failures(runRanks(As::Threads, 2, [&](int rank) -> std::string {
          ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
          config.windowCapBytes = rank == 0 ? 100 : 1 << 20;
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitRankConfig(&comm, 2, id, rank, &config));
          ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
          EXPECT_OK(ulyssesCommGetInfo(comm, &info));
          EXPECT_RANK(info.windowCapBytes == 100);
          const Shape t{1, 600, 8, 64, 4};
          std::vector<unsigned char> in = sequenceSide(t, 2, rank), out(headSide(t, 2, rank).size());
          EXPECT_RANK(ulyssesA2A(in.data(), out.data(), 1, 600, 8, 64, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr) == ulyssesNotSupported);
          EXPECT_RANK(std::string(ulyssesGetLastError()).find("cap") != std::string::npos);
          EXPECT_OK(ulyssesCommDestroy(comm));
          return "";
        })) == "");
}

TEST_CASE("case 23 (small): staging grows on all ranks at once, earlier outputs stay", "[host][cases]") {
  CHECK(failures(runComms(As::Processes, 4, [](int rank, ulyssesComm_t comm) -> std::string {
          hooks::setInitialStagingBytes(rank == 1 ? 12 * 64 : 0);  // one rank's wish is everybody's
          const Shape small{1, 256, 8, 16, 4}, big{1, 4096, 8, 64, 4};
          std::vector<unsigned char> kept(headSide(small, 4, rank).size());
          std::string text = exchangeInto(small, 4, rank, comm, kept.data(), 1);
          EXPECT_RANK(windowBytes(comm) == 12 * 64);
          const std::vector<unsigned char> first = kept;
          for (const Shape& t : {big, small, big})
            if (text.empty()) text = exchange(t, 4, rank, comm, 9);
          EXPECT_RANK(windowBytes(comm) > 12 * 64);
          EXPECT_RANK(kept == first);
          return text;
        })) == "");
}

TEST_CASE("case 8: 64 MiB per rank with a /dev/shm of 16 MiB", "[host][cases]") {
  if (geteuid() != 0) ULYSSES_SKIP("a mount namespace of its own needs root");
  const std::vector<std::string> probe = runRanks(As::Processes, 1, [](int) -> std::string {
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                   mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=16m") == 0 ? "" : "no";
  });
  if (probe[0] == "no") ULYSSES_SKIP("mount namespaces are not allowed here");
  const Shape t{1, 2 * 16384, 8, 128, 4};  // 64 MiB for each rank
  const RendezvousProcess rendezvous;
  CHECK(failures(runRanks(As::Processes, 2, [&](int rank) -> std::string {
          EXPECT_RANK(unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
          EXPECT_RANK(mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=16m") == 0);
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitRank(&comm, 2, rendezvous.id(), rank));
          void* window = nullptr;
          EXPECT_OK(ulyssesMemAlloc(&window, headSide(t, 2, rank).size(), comm));
          std::string text = exchangeInto(t, 2, rank, comm, static_cast<unsigned char*>(window), 0);
          if (text.empty()) text = exchange(t, 2, rank, comm, 5);
          EXPECT_OK(ulyssesCommDestroy(comm));
          return text;
        }, 60)) == "");
}

}  // namespace ulysses::testing
