// Plain outputs without staging: ranks that fetch what they get out of their peers' inputs.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "hostile/job.h"
#include "support/catch.h"
#include "support/ranks.h"

namespace ulysses::testing {
namespace {

constexpr size_t kCount = 100003;  // rows far beyond what lies beside the contract

std::string gather(int rank, int P, ulyssesComm_t comm) {
  std::vector<uint32_t> mine(kCount), all(kCount * static_cast<size_t>(P));
  for (size_t i = 0; i < kCount; ++i) mine[i] = static_cast<uint32_t>(i * 31 + static_cast<size_t>(rank));
  EXPECT_OK(ulyssesAllGather(mine.data(), all.data(), kCount, ulyssesUint32, comm, nullptr));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_RANK(all[i] == static_cast<uint32_t>(i % kCount * 31 + i / kCount));
  return "";
}

ulyssesCommInfo_t infoOf(ulyssesComm_t comm) {
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
  (void)ulyssesCommGetInfo(comm, &info);
  return info;
}

// What the kernel says of processes here, which this library cannot change.
bool processesReadEachOther() {
  const std::vector<std::string> paths = runComms(As::Processes, 2, [](int rank, ulyssesComm_t comm) -> std::string {
    const std::string failure = gather(rank, 2, comm);
    return failure.empty() ? infoOf(comm).lastPath : failure;
  });
  return paths[0] == "direct";
}

}  // namespace

TEST_CASE("ranks that can read their peers' inputs fetch from them, and register nothing", "[host]") {
  const As as = GENERATE(As::Threads, As::Processes);
  if (as == As::Processes && !processesReadEachOther()) ULYSSES_SKIP("the kernel lets no rank read another's memory");
  const int P = GENERATE(2, 3, 4);
  CHECK(failures(runComms(as, P, [&](int rank, ulyssesComm_t comm) -> std::string {
          for (int i = 0; i < 3; ++i)
            if (const std::string failure = gather(rank, P, comm); !failure.empty()) return failure;
          const ulyssesCommInfo_t info = infoOf(comm);
          EXPECT_RANK(std::string(info.lastPath) == "direct");
          EXPECT_RANK(std::string(info.lastReason) == "out of the peers' inputs");
          EXPECT_RANK(info.windowBytes == 0);
          return "";
        })) == "");
}

TEST_CASE("one rank that asks for staging has all its payloads staged", "[host]") {
  const RendezvousProcess rendezvous;
  CHECK(failures(runRanks(As::Processes, 3, [&](int rank) -> std::string {
          if (rank == 1) EXPECT_RANK(setenv("ULYSSES_PATH", "staged", 1) == 0);
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitRank(&comm, 3, rendezvous.id(), rank));
          const std::string failure = gather(rank, 3, comm);
          EXPECT_RANK(std::string(infoOf(comm).lastPath) == "staged");
          EXPECT_OK(ulyssesCommDestroy(comm));
          return failure;
        })) == "");
}

TEST_CASE("ranks with windows beside ranks with plain outputs", "[host]") {
  CHECK(failures(runComms(As::Threads, 3, [](int rank, ulyssesComm_t comm) -> std::string {
          const size_t bytes = kCount * 3 * sizeof(uint32_t);
          void* window = nullptr;
          EXPECT_OK(ulyssesMemAlloc(&window, bytes, comm));
          std::vector<uint32_t> mine(kCount, static_cast<uint32_t>(rank) + 1), plain(kCount * 3);
          auto* out = rank == 1 ? static_cast<uint32_t*>(window) : plain.data();
          EXPECT_OK(ulyssesAllGather(mine.data(), out, kCount, ulyssesUint32, comm, nullptr));
          for (size_t i = 0; i < kCount * 3; ++i) EXPECT_RANK(out[i] == i / kCount + 1);
          EXPECT_RANK(std::string(infoOf(comm).lastPath) == "direct");
          EXPECT_OK(ulyssesMemFree(window, comm));
          return "";
        })) == "");
}

TEST_CASE("an input that the kernel cannot read is everybody's error, and the next call works", "[host]") {
  if (!processesReadEachOther()) ULYSSES_SKIP("the kernel lets no rank read another's memory");
  CHECK(failures(runComms(As::Processes, 2, [](int rank, ulyssesComm_t comm) -> std::string {
          const size_t half = size_t{1} << 20;
          void* in = mmap(nullptr, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          EXPECT_RANK(in != MAP_FAILED);
          std::memset(in, rank + 1, 2 * half);
          std::vector<unsigned char> out(2 * half);
          // What rank 1 has for rank 0 cannot be read; its own part can.
          if (rank == 1) EXPECT_RANK(mprotect(in, half, PROT_NONE) == 0);
          EXPECT_RANK(ulyssesAlltoAll(in, out.data(), half, ulyssesUint8, comm, nullptr) == ulyssesSystemError);
          EXPECT_RANK(std::string(ulyssesGetLastError()).find("rank 0: reading the input of rank 1") != std::string::npos);
          EXPECT_RANK(mprotect(in, half, PROT_READ) == 0);
          EXPECT_OK(ulyssesAlltoAll(in, out.data(), half, ulyssesUint8, comm, nullptr));
          for (size_t i = 0; i < 2 * half; ++i) EXPECT_RANK(out[i] == i / half + 1);
          munmap(in, 2 * half);
          return "";
        })) == "");
}

TEST_CASE("a fetch that fails is everybody's error, also of those who wait for staged chunks meanwhile", "[host]") {
  if (!processesReadEachOther()) ULYSSES_SKIP("the kernel lets no rank read another's memory");
  // Rank 2 may not read its peers, which stage to it.
  const auto prepare = [](int rank) -> std::string {
    return rank != 2 || refuse(SYS_process_vm_readv) ? "" : "seccomp";
  };
  CHECK(failures(runJob(3, prepare, [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
          EXPECT_OK(init);
          const size_t part = size_t{1} << 20;
          void* in = mmap(nullptr, 3 * part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          EXPECT_RANK(in != MAP_FAILED);
          std::memset(in, rank + 1, 3 * part);
          std::vector<unsigned char> out(3 * part);
          // What rank 1 has for rank 0 cannot be read.
          if (rank == 1) EXPECT_RANK(mprotect(in, part, PROT_NONE) == 0);
          EXPECT_RANK(ulyssesAlltoAll(in, out.data(), part, ulyssesUint8, comm, nullptr) == ulyssesSystemError);
          EXPECT_RANK(lastErrorHas("rank 0: reading the input of rank 1"));
          EXPECT_RANK(mprotect(in, part, PROT_READ) == 0);
          EXPECT_OK(ulyssesAlltoAll(in, out.data(), part, ulyssesUint8, comm, nullptr));
          for (size_t i = 0; i < 3 * part; ++i) EXPECT_RANK(out[i] == i / part + 1);
          munmap(in, 3 * part);
          return "";
        })) == "");
}

}  // namespace ulysses::testing
