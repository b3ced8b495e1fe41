// Case 11: ranks of one host in namespaces of their own come to one verdict, and move exact data where they reach each
// other.
#include <dirent.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <new>

#include "support/catch.h"
#include "support/ranks.h"
#include "support/tensors.h"

namespace ulysses::testing {
namespace {

constexpr int kSeconds = 30;

ulyssesConfig_t hostMemory(int timeoutMs = 20'000) {
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.memory = ulyssesMemoryHost;
  config.timeoutMs = timeoutMs;
  return config;
}

std::string exchange(int P, int rank, ulyssesComm_t comm, unsigned char* out, const char* path) {
  const Shape t{2, 1200, 12, 16, 4};
  const std::vector<unsigned char> in = sequenceSide(t, P, rank), expected = headSide(t, P, rank);
  std::memset(out, 0xEE, expected.size());
  EXPECT_OK(ulyssesA2A(in.data(), out, t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
  EXPECT_RANK(std::memcmp(out, expected.data(), expected.size()) == 0);
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
  EXPECT_OK(ulyssesCommGetInfo(comm, &info));
  EXPECT_RANK(info.nHosts == 1 && info.singleHost == 1 && std::string(info.lastPath) == path);
  return "";
}

// One host, and both fused paths.
std::string fusedAndExact(int P, int rank, ulyssesComm_t comm) {
  const size_t bytes = headSide({2, 1200, 12, 16, 4}, P, rank).size();
  void* window = nullptr;
  EXPECT_OK(ulyssesMemAlloc(&window, bytes, comm));
  std::vector<unsigned char> plain(bytes);
  std::string text = exchange(P, rank, comm, static_cast<unsigned char*>(window), "direct");
  if (text.empty()) text = exchange(P, rank, comm, plain.data(), "staged");
  EXPECT_OK(ulyssesMemFree(window, comm));
  EXPECT_OK(ulyssesCommDestroy(comm));
  return text;
}

bool ownSharedMemoryFolder() {
  return unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0;
}
bool ownHostname() { return unshare(CLONE_NEWUTS) == 0 && sethostname("another-name", 12) == 0; }
bool ownNetwork() { return unshare(CLONE_NEWNET) == 0; }

bool allowed(const std::function<bool()>& enter) {
  return runRanks(As::Processes, 1, [&](int) -> std::string { return enter() ? "" : "no"; })[0].empty();
}

// Runs the body as the first process, pid 1, of a pid namespace of its own.
std::string inPidNamespace(const std::function<std::string()>& body) {
  int ends[2];
  EXPECT_RANK(unshare(CLONE_NEWPID) == 0 && pipe(ends) == 0);
  const pid_t pid = fork();
  EXPECT_RANK(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string text = getpid() == 1 ? body() : "not pid 1";
    _exit(write(ends[1], text.data(), text.size()) < 0 ? 99 : 0);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 512> buffer;
  for (ssize_t n; (n = read(ends[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_RANK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return text;
}

// An allgather for ranks that no network connects: over memory mapped before the ranks are forked.
class SharedAllgather {
 public:
  static constexpr size_t kMaxRanks = 4, kMaxBytes = 16384;

  explicit SharedAllgather(int nranks) : nranks_(nranks) {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    shared_ = new (memory) Shared;
  }
  ~SharedAllgather() { munmap(shared_, sizeof(Shared)); }
  SharedAllgather(const SharedAllgather&) = delete;
  SharedAllgather& operator=(const SharedAllgather&) = delete;

  ulyssesOob_t oob(int rank) {
    rank_ = rank;
    return {rank, nranks_, this, [](void* self, const void* send, void* recv, size_t bytes) {
              return static_cast<SharedAllgather*>(self)->gather(send, recv, bytes) ? 0 : 1;
            }};
  }

 private:
  struct Shared {
    std::array<std::atomic<int>, kMaxRanks> steps{};
    std::array<std::array<char, kMaxBytes>, kMaxRanks> blocks;
  };

  bool gather(const void* send, void* recv, size_t bytes) {
    if (bytes > kMaxBytes) return false;
    std::memcpy(shared_->blocks[static_cast<size_t>(rank_)].data(), send, bytes);
    if (!barrier()) return false;
    for (int r = 0; r < nranks_; ++r)
      std::memcpy(static_cast<char*>(recv) + static_cast<size_t>(r) * bytes,
                  shared_->blocks[static_cast<size_t>(r)].data(), bytes);
    return barrier();
  }

  bool barrier() {
    const int step = ++shared_->steps[static_cast<size_t>(rank_)];
    for (int tries = 0; tries < 20'000; ++tries, usleep(1000)) {
      int reached = 0;
      for (int r = 0; r < nranks_; ++r) reached += shared_->steps[static_cast<size_t>(r)] >= step;
      if (reached == nranks_) return true;
    }
    return false;
  }

  Shared* shared_ = nullptr;
  int nranks_, rank_ = 0;
};

// A folder for temporary files that this test alone uses, in TMPDIR of all ranks forked later.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
    setenv("TMPDIR", path_.c_str(), 1);
  }
  ~TemporaryFolder() {
    unsetenv("TMPDIR");
    rmdir(path_.c_str());
  }
  size_t entries() const {
    size_t count = 0;
    DIR* directory = opendir(path_.c_str());
    while (readdir(directory) != nullptr) ++count;
    closedir(directory);
    return count - 2;  // itself and its parent
  }

 private:
  std::string path_ = "/tmp/namespace-test-XXXXXX";
};

}  // namespace

TEST_CASE("case 11: a /dev/shm or a hostname of its own changes nothing", "[host][cases]") {
  const bool hostname = GENERATE(false, true);
  const std::function<bool()> enter = hostname ? ownHostname : ownSharedMemoryFolder;
  if (!allowed(enter)) ULYSSES_SKIP("unshare of mount and UTS namespaces needs root");
  const int P = GENERATE(2, 3);
  const RendezvousProcess rendezvous;
  CHECK(failures(runRanks(As::Processes, P, [&](int rank) -> std::string {
          if (rank == 1) EXPECT_RANK(enter());
          const ulyssesConfig_t config = hostMemory();
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitRankConfig(&comm, P, rendezvous.id(), rank, &config));
          return fusedAndExact(P, rank, comm);
        }, kSeconds)) == "");
}

TEST_CASE("case 11: pid namespaces, also where the ranks' process numbers coincide", "[host][cases]") {
  if (!allowed([] { return unshare(CLONE_NEWPID) == 0; })) ULYSSES_SKIP("unshare of pid namespaces needs root");
  const bool all = GENERATE(false, true);
  const int P = GENERATE(2, 3);
  const RendezvousProcess rendezvous;
  CHECK(failures(runRanks(As::Processes, P, [&](int rank) -> std::string {
          const auto body = [&]() -> std::string {
            const ulyssesConfig_t config = hostMemory();
            ulyssesComm_t comm = nullptr;
            EXPECT_OK(ulyssesCommInitRankConfig(&comm, P, rendezvous.id(), rank, &config));
            return fusedAndExact(P, rank, comm);
          };
          return all || rank == 1 ? inPidNamespace(body) : body();
        }, kSeconds)) == "");
}

TEST_CASE("case 11: a rank that dies in a pid namespace of its own is named", "[host][cases]") {
  if (!allowed([] { return unshare(CLONE_NEWPID) == 0; })) ULYSSES_SKIP("unshare of pid namespaces needs root");
  const RendezvousProcess rendezvous;
  const std::vector<std::string> texts = runRanks(As::Processes, 2, [&](int rank) -> std::string {
    return inPidNamespace([&]() -> std::string {
      EXPECT_RANK(setenv("ULYSSES_DUMP_DIR", "off", 1) == 0);
      const ulyssesConfig_t config = hostMemory();
      ulyssesComm_t comm = nullptr;
      EXPECT_OK(ulyssesCommInitRankConfig(&comm, 2, rendezvous.id(), rank, &config));
      if (rank == 1) _exit(0);
      uint32_t in = 0;
      std::array<uint32_t, 2> out{};
      EXPECT_RANK(ulyssesAllGather(&in, out.data(), 1, ulyssesUint32, comm, nullptr) == ulyssesRemoteError);
      EXPECT_RANK(std::string(ulyssesGetLastError()).find("rank 1") != std::string::npos);
      EXPECT_OK(ulyssesCommDestroy(comm));
      return "";
    });
  }, kSeconds);
  CHECK(failures(texts) == "");
}

TEST_CASE("case 11: a network namespace of its own: connected through a folder of temporary files", "[host][cases]") {
  if (!allowed(ownNetwork)) ULYSSES_SKIP("unshare of network namespaces needs root");
  const int P = GENERATE(2, 3), apart = GENERATE(0, 1);
  const TemporaryFolder folder;
  SharedAllgather gather(P);
  CHECK(failures(runRanks(As::Processes, P, [&](int rank) -> std::string {
          if (rank == apart) EXPECT_RANK(ownNetwork());
          const ulyssesOob_t oob = gather.oob(rank);
          const ulyssesConfig_t config = hostMemory();
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitOob(&comm, &oob, &config));
          EXPECT_RANK(folder.entries() == 0);
          return fusedAndExact(P, rank, comm);
        }, kSeconds)) == "");
  CHECK(folder.entries() == 0);
}

TEST_CASE("case 11: where nothing connects the ranks all get one error", "[host][cases]") {
  if (!allowed(ownNetwork)) ULYSSES_SKIP("unshare of network namespaces needs root");
  const int P = GENERATE(2, 3);
  SharedAllgather gather(P);
  const std::vector<std::string> said = runRanks(As::Processes, P, [&](int rank) -> std::string {
    if (rank == 1) EXPECT_RANK(ownNetwork());
    EXPECT_RANK(setenv("TMPDIR", "/nonexistent", 1) == 0);
    const ulyssesOob_t oob = gather.oob(rank);
    const ulyssesConfig_t config = hostMemory();
    ulyssesComm_t comm = nullptr;
    EXPECT_RANK(ulyssesCommInitOob(&comm, &oob, &config) == ulyssesRemoteError && comm == nullptr);
    return ulyssesGetLastError();
  }, kSeconds);
  for (const std::string& text : said) CHECK(text == said[0]);
  CHECK(said[0].find("rank 1 cannot connect to rank 0") != std::string::npos);
  CHECK(said[0].find("TMPDIR") != std::string::npos);
}

TEST_CASE("case 11: a unique id that a rank's network cannot reach: an error there, its name elsewhere",
          "[host][cases]") {
  if (!allowed(ownNetwork)) ULYSSES_SKIP("unshare of network namespaces needs root");
  const RendezvousProcess rendezvous;
  CHECK(failures(runRanks(As::Processes, 2, [&](int rank) -> std::string {
          if (rank == 1) EXPECT_RANK(ownNetwork());
          const ulyssesConfig_t config = hostMemory(2000);
          ulyssesComm_t comm = nullptr;
          const ulyssesResult_t result = ulyssesCommInitRankConfig(&comm, 2, rendezvous.id(), rank, &config);
          EXPECT_RANK(result == (rank == 0 ? ulyssesTimeout : ulyssesRemoteError) && comm == nullptr);
          EXPECT_RANK(std::string(ulyssesGetLastError()).find("rank 1") != std::string::npos);
          return "";
        }, kSeconds)) == "");
}

}  // namespace ulysses::testing
