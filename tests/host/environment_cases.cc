// Cases 12 and 14: what the environment says of the machine, or keeps from it, never breaks a call on host memory.
#include <dlfcn.h>
#include <hwloc.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <iterator>

#include "support/catch.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "topology/probe.h"

namespace ulysses::testing {
namespace {

constexpr int kSeconds = 10;
constexpr Shape kShape{1, 600, 12, 16, 4};  // staged, and too large to travel beside the contract

// What a rank does to its environment before anything else.
struct Setting {
  const char* name;
  std::function<bool()> apply;
};

// This machine's topology, without I/O objects, in a file. Written by a process of its own, since hwloc's plugins leak.
std::string xmlWithoutIo() {
  std::string path = "/tmp/environment-test-XXXXXX";
  close(mkstemp(path.data()));
  const std::vector<std::string> texts = runRanks(As::Processes, 1, [&](int) -> std::string {
    hwloc_topology_t topology;
    EXPECT_RANK(hwloc_topology_init(&topology) == 0);
    EXPECT_RANK(hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE) == 0);
    EXPECT_RANK(hwloc_topology_load(topology) == 0);
    EXPECT_RANK(hwloc_topology_export_xml(topology, path.c_str(), 0) == 0);
    return "";
  });
  return texts[0].empty() ? path : "";
}

bool bindToOneProcessor() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) last = cpu;
  CPU_ZERO(&set);
  CPU_SET(last, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

// The kernel refuses what binds memory, as containers do.
bool refuseMemoryBinding() {
  const auto ifCall = [](uint32_t number, uint8_t skip) -> sock_filter {
    return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, skip, 0);
  };
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          ifCall(SYS_mbind, 4),
                          ifCall(SYS_set_mempolicy, 3),
                          ifCall(SYS_get_mempolicy, 2),
                          ifCall(SYS_migrate_pages, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)};
  const sock_fprog program{std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
         syscall(SYS_mbind, nullptr, 0, 0, nullptr, 0, 0) == -1 && errno == EPERM;
}

std::string exchange(int P, int rank, ulyssesComm_t comm) {
  const Shape& t = kShape;
  const std::vector<unsigned char> in = sequenceSide(t, P, rank), expected = headSide(t, P, rank);
  std::vector<unsigned char> out(expected.size(), 0xEE);
  EXPECT_OK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
  EXPECT_RANK(out == expected);
  return "";
}

std::vector<std::string> runWith(const Setting& setting, bool onAll) {
  const RendezvousProcess rendezvous;
  return runRanks(As::Processes, 2, [&](int rank) -> std::string {
    if (onAll || rank == 1) EXPECT_RANK(setting.apply());
    const RankFacts facts = probe(-1);
    EXPECT_RANK(!facts.gpu && facts.gpuCount == 0 && facts.failedQueries.empty());
    EXPECT_RANK((!facts.cpuset.empty() && facts.numaNodes > 0) || !facts.warnings.empty());
    ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
    config.memory = ulyssesMemoryHost;
    ulyssesComm_t comm = nullptr;
    EXPECT_OK(ulyssesCommInitRankConfig(&comm, 2, rendezvous.id(), rank, &config));
    std::string text = exchange(2, rank, comm);
    ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
    EXPECT_OK(ulyssesCommGetInfo(comm, &info));
    EXPECT_RANK(std::string(info.lastPath) == "staged");
    EXPECT_OK(ulyssesCommDestroy(comm));
    return text;
  }, kSeconds);
}

// The functions of the shared library, whose names this program's own copy has too.
struct Library {
  void* handle = dlopen(ULYSSES_LIBRARY_FILE, RTLD_NOW | RTLD_LOCAL);

  template <class Function>
  Function* find(Function*, const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle, name));
  }
};
#define ULYSSES_FIND(library, function) (library).find(&(function), #function)

// The GPU libraries that this process has loaded.
std::string loadedGpuLibraries() {
  std::string names;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const std::string name = info->dlpi_name;
        for (const char* gpu : {"libcuda.so", "libcudart", "libnccl", "libnvidia-ml"})
          if (name.find(gpu) != std::string::npos) *static_cast<std::string*>(found) += name + " ";
        return 0;
      },
      &names);
  return names;
}

void exchangeThroughSharedLibrary() {
  const Library library;
  CAPTURE(ULYSSES_LIBRARY_FILE);
  REQUIRE(library.handle != nullptr);
  const auto getUniqueId = ULYSSES_FIND(library, ulyssesGetUniqueId);
  const auto initRank = ULYSSES_FIND(library, ulyssesCommInitRankConfig);
  const auto a2a = ULYSSES_FIND(library, ulyssesA2A);
  const auto destroy = ULYSSES_FIND(library, ulyssesCommDestroy);
  REQUIRE((getUniqueId && initRank && a2a && destroy));
  REQUIRE(getUniqueId != &ulyssesGetUniqueId);
  ulyssesUniqueId id;
  REQUIRE(getUniqueId(&id) == ulyssesSuccess);
  CHECK(failures(runRanks(As::Threads, 2, [&](int rank) -> std::string {
          ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
          config.memory = ulyssesMemoryHost;
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(initRank(&comm, 2, id, rank, &config));
          const Shape& t = kShape;
          const std::vector<unsigned char> in = sequenceSide(t, 2, rank), expected = headSide(t, 2, rank);
          std::vector<unsigned char> out(expected.size(), 0xEE);
          const auto type = ulyssesFloat32;
          EXPECT_OK(a2a(in.data(), out.data(), t.B, t.S, t.H, t.D, type, ulyssesScatterHeads, comm, nullptr));
          EXPECT_RANK(out == expected);
          EXPECT_OK(destroy(comm));
          return "";
        })) == "");
  CHECK(loadedGpuLibraries() == "");
}

}  // namespace

TEST_CASE("case 12: whatever hwloc is told and the kernel allows, facts or a warning, and exact data", "[host][cases]") {
  const std::string xml = xmlWithoutIo();
  REQUIRE(xml != "");
  const auto set = [](const char* name, const std::string& value) { return setenv(name, value.c_str(), 1) == 0; };
  const std::vector<Setting> settings{
      {"a machine made up by words", [&] { return set("HWLOC_SYNTHETIC", "numa:2 core:2 pu:1"); }},
      {"words that make no machine", [&] { return set("HWLOC_SYNTHETIC", "numa:0 what"); }},
      {"a file that is missing", [&] { return set("HWLOC_XMLFILE", "/nonexistent/topology.xml"); }},
      {"a file without I/O objects", [&] { return set("HWLOC_XMLFILE", xml); }},
      {"the same, said to be this machine",
       [&] { return set("HWLOC_XMLFILE", xml) && set("HWLOC_THISSYSTEM", "1"); }},
      {"one processor", bindToOneProcessor},
      {"memory binding refused", refuseMemoryBinding}};
  for (const Setting& setting : settings)
    for (const bool onAll : {true, false}) {
      CAPTURE(setting.name, onAll);
      CHECK(failures(runWith(setting, onAll)) == "");
    }
  unlink(xml.c_str());
}

TEST_CASE("case 12: the facts tell the processor that a rank is bound to", "[host][cases]") {
  CHECK(failures(runRanks(As::Processes, 1, [](int) -> std::string {
          EXPECT_RANK(bindToOneProcessor());
          EXPECT_RANK(probe(-1).cpuset == std::to_string(sched_getcpu()));
          return "";
        })) == "");
}

TEST_CASE("case 14: the shared library loads with all symbols bound, and moves host memory without a GPU library",
          "[host][cases]") {
  // The loader reads LD_BIND_NOW as a program starts: this one starts itself again.
  if (std::getenv("LD_BIND_NOW") != nullptr) return exchangeThroughSharedLibrary();
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    setenv("LD_BIND_NOW", "1", 1);
    execl("/proc/self/exe", "host_tests", "case 14: the shared library loads*", static_cast<char*>(nullptr));
    _exit(99);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK(status == 0);
}

}  // namespace ulysses::testing
