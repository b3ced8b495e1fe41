// Ranks without descriptors, memory, /dev/shm, /proc, or a call that the kernel refuses them: the same outcome on all.
#include <fcntl.h>
#include <sys/resource.h>

#include <fstream>

#include "host/param_model.h"
#include "hostile/job.h"
#include "support/catch.h"

namespace ulysses::testing {
namespace {

constexpr auto kNothing = [](int) -> std::string { return ""; };

rlimit limitOf(int resource) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  return limit;
}
bool setLimit(int resource, rlim_t value) {
  rlimit limit = limitOf(resource);
  limit.rlim_cur = value;
  return setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0;
}

// Opens descriptors until no more than `count` can be had.
bool leaveDescriptors(int count) {
  int highest = 0, left = count;
  for (int fd = 0; left > 0; ++fd)
    if (fcntl(fd, F_GETFD) < 0) --left, highest = fd;
  if (count == 0)
    while (fcntl(highest, F_GETFD) >= 0) ++highest;
  return setLimit(RLIMIT_NOFILE, static_cast<rlim_t>(highest + (count == 0 ? 0 : 1)));
}

size_t addressSpace() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("64 descriptors are enough for four ranks", "[hostile]") {
  CHECK(failures(runJob(
            4, [](int) -> std::string { return setLimit(RLIMIT_NOFILE, 64) ? "" : "setrlimit"; },
            [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
              EXPECT_OK(init);
              void* window = nullptr;
              EXPECT_OK(ulyssesMemAlloc(&window, 4096, comm));
              ulyssesComm_t child = nullptr;
              EXPECT_OK(ulyssesCommSplit(comm, rank % 2, 0, &child, nullptr));
              std::string text = exchangeExact(kStaged, 4, rank, comm) + exchangeExact(kStaged, 2, rank / 2, child);
              EXPECT_OK(ulyssesCommDestroy(child));
              EXPECT_OK(ulyssesMemFree(window, comm));
              return text;
            })) == "");
}

TEST_CASE("a rank whose descriptors run out at init says so, and the others name it", "[hostile]") {
  if (kSanitized) ULYSSES_SKIP("UBSan looks at types through a pipe, for which there is no descriptor here");
  for (const int poor : {0, 2}) {
    int succeeded = 0;
    for (int count = 0; count <= 14; ++count) {
      CAPTURE(poor, count);
      SharedWords codes;
      const std::string texts = failures(runJob(
          3,
          [&](int rank) -> std::string {
            return rank != poor || leaveDescriptors(count) ? "" : "no way to leave so few descriptors";
          },
          [&](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
            codes[rank] = init;
            if (init == ulyssesSuccess) return exchangeExact(kSmall, 3, rank, comm);
            EXPECT_RANK(init == ulyssesSystemError);
            EXPECT_RANK(lastErrorHas("rank " + std::to_string(poor)));
            EXPECT_RANK(lastErrorHas("Too many open files") || lastErrorHas("ulimit -n"));
            return "";
          }));
      CHECK(texts == "");
      CHECK(codes[0] == codes[1]);
      CHECK(codes[0] == codes[2]);
      succeeded += codes[0] == ulyssesSuccess;
      if (count == 0) CHECK(codes[0] == ulyssesSystemError);
    }
    CHECK(succeeded > 0);
  }
}

TEST_CASE("descriptors that run out after init fail that call on all ranks, the next one works", "[hostile]") {
  const Environment environment("ULYSSES_PATH", "staged");
  CHECK(failures(runJob(3, kNothing, [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
          EXPECT_OK(init);
          const rlim_t before = limitOf(RLIMIT_NOFILE).rlim_cur;
          if (rank == 1) EXPECT_RANK(leaveDescriptors(0));
          void* window = nullptr;
          EXPECT_RANK(ulyssesMemAlloc(&window, 4096, comm) == ulyssesSystemError && window == nullptr);
          EXPECT_RANK(lastErrorHas("rank 1"));
          std::vector<char> big(size_t{4} << 20), out(big.size());
          EXPECT_RANK(ulyssesAllGather(big.data(), out.data(), 100000, ulyssesFloat32, comm, nullptr) ==
                      ulyssesSystemError);
          EXPECT_RANK(lastErrorHas("rank 1"));
          ulyssesComm_t child = nullptr;
          EXPECT_RANK(ulyssesCommSplit(comm, 0, 0, &child, nullptr) == ulyssesSystemError && child == nullptr);
          if (rank == 1) EXPECT_RANK(setLimit(RLIMIT_NOFILE, before));
          EXPECT_OK(ulyssesCommSplit(comm, 0, 0, &child, nullptr));
          EXPECT_OK(ulyssesMemAlloc(&window, 4096, comm));
          std::string text = exchangeExact(kStaged, 3, rank, comm) + exchangeExact(kStaged, 3, rank, child);
          EXPECT_OK(ulyssesMemFree(window, comm));
          EXPECT_OK(ulyssesCommDestroy(child));
          return text;
        })) == "");
}

TEST_CASE("memory that one rank may not have is out of memory on all, the next call works", "[hostile]") {
  const Environment environment("ULYSSES_PATH", "staged");
  if (kSanitized) ULYSSES_SKIP("sanitizers reserve the address space that this test limits");
  CHECK(failures(runJob(3, kNothing, [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
          EXPECT_OK(init);
          const rlim_t before = limitOf(RLIMIT_AS).rlim_cur;
          if (rank == 1) EXPECT_RANK(setLimit(RLIMIT_AS, addressSpace() + (size_t{1} << 20)));
          void* window = nullptr;
          EXPECT_RANK(ulyssesMemAlloc(&window, size_t{64} << 20, comm) == ulyssesOutOfMemory && window == nullptr);
          EXPECT_RANK(lastErrorHas("rank 1") && lastErrorHas("67108864"));
          // Staging takes 2.25 MiB for three ranks.
          const Shape& t = kStaged;
          std::vector<unsigned char> in = sequenceSide(t, 3, rank), out(headSide(t, 3, rank).size());
          EXPECT_RANK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm,
                                 nullptr) == ulyssesOutOfMemory);
          EXPECT_RANK(lastErrorHas("rank 1"));
          std::string text = exchangeExact(kSmall, 3, rank, comm);
          if (rank == 1) EXPECT_RANK(setLimit(RLIMIT_AS, before));
          EXPECT_OK(ulyssesMemAlloc(&window, size_t{64} << 20, comm));
          text += exchangeExact(kStaged, 3, rank, comm);
          EXPECT_OK(ulyssesMemFree(window, comm));
          return text;
        })) == "");
}

TEST_CASE("gathered parameters, some in windows and some not, that one rank has no memory for", "[hostile]") {
  const Environment environment("ULYSSES_WINDOW_CAP", "32M");
  if (kSanitized) ULYSSES_SKIP("sanitizers reserve the address space that this test limits");
  CHECK(failures(runJob(3, kNothing, [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
          EXPECT_OK(init);
          Model m(rank, 3);
          EXPECT_OK(m.open(comm));
          EXPECT_OK(m.add({{size_t{96} << 20, ulyssesInt8}}));  // beyond the cap
          EXPECT_OK(m.add({{size_t{1} << 20, ulyssesInt8}}));   // a window
          const rlim_t before = limitOf(RLIMIT_AS).rlim_cur;
          if (rank == 1) EXPECT_RANK(setLimit(RLIMIT_AS, addressSpace() + (size_t{32} << 20)));
          EXPECT_RANK(m.commit() == ulyssesOutOfMemory && lastErrorHas("rank 1"));
          if (rank == 1) EXPECT_RANK(setLimit(RLIMIT_AS, before));
          std::string text = exchangeExact(kStaged, 3, rank, comm);
          EXPECT_OK(m.commit());
          return text + m.visit(0) + m.visit(1);
        })) == "");
}

TEST_CASE("a full /dev/shm is of no concern", "[hostile]") {
  if (getuid() != 0) ULYSSES_SKIP("mounts of its own need root");
  CHECK(failures(runJob(
            2,
            [](int) -> std::string {
              EXPECT_RANK(ownMounts());
              EXPECT_RANK(mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") == 0);
              const int fd = open("/dev/shm/full", O_CREAT | O_WRONLY, 0600);
              const std::vector<char> block(4096);
              while (write(fd, block.data(), block.size()) > 0) {
              }
              close(fd);
              return "";
            },
            [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
              EXPECT_OK(init);
              return exchangeExact(kStaged, 2, rank, comm);
            })) == "");
}

TEST_CASE("without /proc nothing tells that ranks share a host: one verdict on all, and a host id helps", "[hostile]") {
  if (getuid() != 0) ULYSSES_SKIP("mounts of its own need root");
  const auto withoutProc = [](int) -> std::string {
    EXPECT_RANK(ownMounts());
    EXPECT_RANK(mount("tmpfs", "/proc", "tmpfs", 0, "size=4k") == 0);
    return "";
  };
  for (const int from : {0, 1})
    CHECK(failures(runJob(
              3, [&](int rank) { return rank >= from ? withoutProc(rank) : std::string(); },
              [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
                EXPECT_OK(init);
                const std::vector<unsigned char> in = sequenceSide(kSmall, 3, rank);
                std::vector<unsigned char> out(headSide(kSmall, 3, rank).size());
                EXPECT_RANK(ulyssesA2A(in.data(), out.data(), kSmall.B, kSmall.S, kSmall.H, kSmall.D, ulyssesFloat32,
                                       ulyssesScatterHeads, comm, nullptr) == ulyssesNotSupported);
                EXPECT_RANK(lastErrorHas("memory cannot be shared"));
                return "";
              })) == "");
  CHECK(failures(runJob(
            3,
            [&](int rank) {
              setenv("ULYSSES_HOSTID", "here", 1);
              return withoutProc(rank);
            },
            [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
              EXPECT_OK(init);
              return exchangeExact(kStaged, 3, rank, comm);
            })) == "");
}

TEST_CASE("a rank whose kernel refuses shared memory: one error on all, at init or in the call", "[hostile]") {
  const Environment environment("ULYSSES_PATH", "staged");
  for (const int refused : {0, 1}) {
    CAPTURE(refused);
    CHECK(failures(runJob(
              3, [&](int rank) -> std::string { return rank != refused || refuse(SYS_memfd_create) ? "" : "seccomp"; },
              [&](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
                const auto named = [&] {
                  return lastErrorHas("rank " + std::to_string(refused)) && lastErrorHas("memfd_create");
                };
                // Control memory is rank 0's; staging memory is everybody's.
                if (refused == 0) {
                  EXPECT_RANK(init == ulyssesSystemError && named());
                  return "";
                }
                EXPECT_OK(init);
                std::string text = exchangeExact(kSmall, 3, rank, comm);
                const Shape& t = kStaged;
                std::vector<unsigned char> in = sequenceSide(t, 3, rank), out(headSide(t, 3, rank).size());
                EXPECT_RANK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads,
                                       comm, nullptr) == ulyssesSystemError);
                EXPECT_RANK(named());
                void* window = nullptr;
                EXPECT_RANK(ulyssesMemAlloc(&window, 64, comm) == ulyssesSystemError && named());
                return text + exchangeExact(kSmall, 3, rank, comm);
              })) == "");
  }
}

TEST_CASE("calls that a container may refuse are not needed", "[hostile]") {
  for (const int call : {SYS_mbind, SYS_pidfd_open, SYS_getrandom, SYS_sched_setaffinity, SYS_process_vm_readv}) {
    CAPTURE(call);
    CHECK(failures(runJob(
              2, [&](int) -> std::string { return refuse(call) ? "" : "seccomp"; },
              [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
                EXPECT_OK(init);
                return exchangeExact(kStaged, 2, rank, comm);
              })) == "");
  }
}

}  // namespace ulysses::testing
