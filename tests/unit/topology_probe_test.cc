// What the probe makes of the answers of libcuda, NVML and hwloc: the first two through tables of functions that play
// a machine, hwloc through its own ways to pretend one.
#include "topology/probe.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/process.h"
#include "support/catch.h"
#include "topology/cuda_driver.h"
#include "topology/hwloc.h"
#include "topology/nvml.h"

using namespace ulysses;

namespace {

constexpr int kNotSupported = 3, kNotFound = 6, kGpuIsLost = 15;

// The machine that the functions below play. Tests change it; every test case starts from this state.
struct Machine {
  int gpus = 2;
  std::vector<int> visible = {0, 1};  // CUDA's numbering
  int cuInitResult = 0, nvmlInitResult = 0, p2pResult = 0, fabricResult = 0;
  bool mig = false;
  bool switched = true;  // links end at a switch, else at the other GPU
  int nvmlUsers = 0;
};
Machine machine;

std::string uuidOf(int gpu) {
  CudaDriver::Uuid uuid{};
  uuid.bytes[15] = static_cast<unsigned char>(gpu + 1);
  return gpuUuidText(uuid.bytes);
}

Nvml::Device deviceOf(int gpu) {
  return reinterpret_cast<Nvml::Device>(static_cast<intptr_t>(gpu + 1));
}
int gpuOf(Nvml::Device device) {
  return static_cast<int>(reinterpret_cast<intptr_t>(device)) - 1;
}

void fillPci(int gpu, Nvml::PciInfo* info) {
  info->domain = 0;
  info->bus = static_cast<unsigned>(0x1b + gpu);
  info->device = 0;
}

CudaDriver playedCuda() {
  CudaDriver cuda;
  cuda.cuInit = [](unsigned) { return machine.cuInitResult; };
  cuda.cuDeviceGetCount = [](int* count) {
    *count = static_cast<int>(machine.visible.size());
    return 0;
  };
  cuda.cuDeviceGet = [](int* device, int ordinal) {
    *device = ordinal;
    return 0;
  };
  cuda.cuDeviceGetName = [](char* name, int length, int) {
    std::strncpy(name, "Played GPU", static_cast<size_t>(length));
    return 0;
  };
  cuda.cuDeviceGetUuid = [](CudaDriver::Uuid* uuid, int device) {
    std::memset(uuid->bytes, 0, sizeof uuid->bytes);
    uuid->bytes[15] = static_cast<unsigned char>(machine.visible[static_cast<size_t>(device)] + 1);
    return 0;
  };
  cuda.cuDeviceGetAttribute = [](int* value, int attribute, int) {
    *value = attribute == 75 ? 9 : 0;
    return 0;
  };
  cuda.cuDeviceGetPCIBusId = [](char* id, int length, int) {
    std::strncpy(id, "0000:1B:00.0", static_cast<size_t>(length));
    return 0;
  };
  cuda.cuDeviceCanAccessPeer = [](int* can, int, int) {
    *can = 1;
    return 0;
  };
  cuda.cuGetErrorString = [](int, const char** text) {
    *text = "played error";
    return 0;
  };
  return cuda;
}

Nvml playedNvml() {
  Nvml nvml;
  nvml.nvmlInit = [] {
    if (machine.nvmlInitResult == 0) ++machine.nvmlUsers;
    return machine.nvmlInitResult;
  };
  nvml.nvmlShutdown = [] {
    --machine.nvmlUsers;
    return 0;
  };
  nvml.nvmlErrorString = [](int) { return "played error"; };
  nvml.nvmlSystemGetDriverVersion = [](char* version, unsigned length) {
    std::strncpy(version, "1.2.3", length);
    return 0;
  };
  nvml.nvmlDeviceGetCount = [](unsigned* count) {
    *count = static_cast<unsigned>(machine.gpus);
    return 0;
  };
  nvml.nvmlDeviceGetHandleByIndex = [](unsigned index, Nvml::Device* device) {
    *device = deviceOf(static_cast<int>(index));
    return 0;
  };
  nvml.nvmlDeviceGetHandleByUUID = [](const char* uuid, Nvml::Device* device) {
    for (int gpu = 0; gpu < machine.gpus; ++gpu) {
      const std::string known = machine.mig ? "MIG-" + uuidOf(gpu).substr(4) : uuidOf(gpu);
      if (known != uuid) continue;
      *device = deviceOf(gpu);
      return 0;
    }
    return kNotFound;
  };
  nvml.nvmlDeviceGetUUID = [](Nvml::Device device, char* uuid, unsigned length) {
    std::strncpy(uuid, uuidOf(gpuOf(device)).c_str(), length);
    return 0;
  };
  nvml.nvmlDeviceGetPciInfo = [](Nvml::Device device, Nvml::PciInfo* info) {
    fillPci(gpuOf(device), info);
    return 0;
  };
  nvml.nvmlDeviceGetP2PStatus = [](Nvml::Device, Nvml::Device, int index, int* status) {
    *status = index;  // read: ok, write: chipset not supported, NVLink: GPU not supported
    return machine.p2pResult;
  };
  nvml.nvmlDeviceGetNvLinkState = [](Nvml::Device, unsigned link, int* active) {
    *active = link != 2;
    return link < 4 ? 0 : 2;
  };
  nvml.nvmlDeviceGetNvLinkRemoteDeviceType = [](Nvml::Device, unsigned, int* type) {
    *type = machine.switched ? 2 : 0;
    return 0;
  };
  nvml.nvmlDeviceGetNvLinkRemotePciInfo = [](Nvml::Device device, unsigned, Nvml::PciInfo* info) {
    fillPci(1 - gpuOf(device), info);
    return 0;
  };
  nvml.nvmlDeviceGetGpuFabricInfoV = [](Nvml::Device, Nvml::FabricInfoV2* info) {
    if (info->version != 0x02000024) return 25;
    info->clusterUuid[0] = 0xab;
    info->cliqueId = 5;
    info->state = 3;
    info->status = machine.fabricResult;
    return 0;
  };
  return nvml;
}

RankFacts probePlayed(int ordinal, const Nvml& nvml = playedNvml()) {
  RankFacts facts;
  queryCuda(playedCuda(), ordinal, facts);
  queryNvml(nvml, facts);
  CHECK(machine.nvmlUsers == 0);
  return facts;
}

// Sets an environment variable for the life of a test.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedEnvironment() { unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("the probe writes down what libcuda and NVML say") {
  machine = {};
  const RankFacts facts = probePlayed(0);
  CHECK(facts.failedQueries.empty());
  CHECK(facts.gpuCount == 2);
  CHECK(facts.driverVersion == "1.2.3");
  REQUIRE(facts.gpu);
  CHECK(facts.gpu->uuid == "GPU-00000000-0000-0000-0000-000000000001");
  CHECK(facts.gpu->pciId == "0000:1b:00.0");
  CHECK(facts.gpu->name == "Played GPU");
  CHECK(facts.gpu->computeMajor == 9);
  CHECK_FALSE(facts.gpu->mig);
  CHECK(facts.gpu->activeLinks == 3);
  CHECK(facts.gpu->switchLinks == 3);
  CHECK(facts.gpu->fabric == FabricFacts{FabricState::Completed, "ab000000000000000000000000000000", 5});
  REQUIRE(facts.gpu->peers.size() == 1);
  CHECK(facts.gpu->peers[0] ==
        PeerFacts{uuidOf(1), true, P2pStatus::Ok, P2pStatus::ChipsetNotSupported, P2pStatus::GpuNotSupported, 0});
}

TEST_CASE("identity is the UUID, whatever the process numbers its GPUs") {
  machine = {};
  machine.visible = {1, 0};
  const RankFacts swapped = probePlayed(0);
  machine.visible = {1};
  const RankFacts alone = probePlayed(0);
  REQUIRE(swapped.gpu);
  REQUIRE(alone.gpu);
  CHECK(swapped.gpu->uuid == uuidOf(1));
  CHECK(alone.gpu->uuid == uuidOf(1));
  // The peer is known through NVML though CUDA hides it, but nobody can say whether CUDA would grant access.
  REQUIRE(alone.gpu->peers.size() == 1);
  CHECK(alone.gpu->peers[0].uuid == uuidOf(0));
  CHECK(alone.gpu->peers[0].read == P2pStatus::Ok);
  CHECK_FALSE(alone.gpu->peers[0].peerAccess.has_value());
}

TEST_CASE("links without a switch are counted per peer") {
  machine = {};
  machine.switched = false;
  const RankFacts facts = probePlayed(0);
  REQUIRE(facts.gpu);
  CHECK(facts.gpu->activeLinks == 3);
  CHECK(facts.gpu->switchLinks == 0);
  REQUIRE(facts.gpu->peers.size() == 1);
  CHECK(facts.gpu->peers[0].directLinks == 3);
}

TEST_CASE("a MIG instance is known as one and has no links") {
  machine = {};
  machine.mig = true;
  machine.visible = {0};
  const RankFacts facts = probePlayed(0);
  REQUIRE(facts.gpu);
  CHECK(facts.gpu->mig);
  CHECK(facts.gpu->uuid == "MIG-00000000-0000-0000-0000-000000000001");
  CHECK(facts.gpu->activeLinks == 0);
  CHECK(facts.failedQueries.empty());
}

TEST_CASE("an unsupported query is not a failed one") {
  machine = {};
  machine.p2pResult = kNotSupported;
  Nvml nvml = playedNvml();
  SECTION("the function says so") {
    nvml.nvmlDeviceGetGpuFabricInfoV = [](Nvml::Device, Nvml::FabricInfoV2*) { return kNotSupported; };
  }
  SECTION("the library is older") {
    nvml.nvmlDeviceGetGpuFabricInfoV = nullptr;
    nvml.nvmlDeviceGetNvLinkState = nullptr;
    nvml.nvmlDeviceGetP2PStatus = nullptr;
  }
  const RankFacts facts = probePlayed(0, nvml);
  CHECK(facts.failedQueries.empty());
  REQUIRE(facts.gpu);
  CHECK(facts.gpu->fabric.state == FabricState::NotReported);
  REQUIRE(facts.gpu->peers.size() == 1);
  CHECK(facts.gpu->peers[0].nvlink == P2pStatus::NotReported);
}

TEST_CASE("the first form of the fabric query is used where it is the only one") {
  machine = {};
  Nvml nvml = playedNvml();
  nvml.nvmlDeviceGetGpuFabricInfoV = nullptr;
  nvml.nvmlDeviceGetGpuFabricInfo = [](Nvml::Device, Nvml::FabricInfoV1* info) {
    info->state = 3;
    info->cliqueId = 9;
    return 0;
  };
  const RankFacts facts = probePlayed(0, nvml);
  REQUIRE(facts.gpu);
  CHECK(facts.gpu->fabric == FabricFacts{FabricState::Completed, "", 9});
}

TEST_CASE("a query that fails is noted once, with its text") {
  machine = {};
  SECTION("a lost GPU") {
    machine.p2pResult = kGpuIsLost;
    const RankFacts facts = probePlayed(0);
    REQUIRE(facts.failedQueries.size() == 1);
    CHECK(facts.failedQueries[0] == FailedQuery{"nvmlDeviceGetP2PStatus", "played error (NVML error 15)"});
  }
  SECTION("NVML does not start") {
    machine.nvmlInitResult = 9;
    const RankFacts facts = probePlayed(0);
    REQUIRE(facts.failedQueries.size() == 1);
    CHECK(facts.failedQueries[0] == FailedQuery{"nvmlInit", "played error (NVML error 9)"});
    CHECK(facts.gpu.has_value());
  }
  SECTION("a domain that the GPU could not join") {
    machine.fabricResult = 999;
    const RankFacts facts = probePlayed(0);
    CHECK(facts.failedQueries.empty());  // links within the host are known all the same
    REQUIRE(facts.warnings.size() == 1);
    CHECK(facts.warnings[0].find("played error (NVML error 999)") != std::string::npos);
    CHECK(facts.gpu->fabric.state == FabricState::NotReported);
  }
  SECTION("CUDA does not start") {
    machine.cuInitResult = 803;
    RankFacts facts;
    queryCuda(playedCuda(), 0, facts);
    REQUIRE(facts.failedQueries.size() == 1);
    CHECK(facts.failedQueries[0] == FailedQuery{"cuInit", "played error (CUDA error 803)"});
    CHECK(facts.gpuCount == 0);
  }
  SECTION("a device that this process does not see") {
    const RankFacts facts = probePlayed(2);
    REQUIRE(facts.failedQueries.size() == 1);
    CHECK(facts.failedQueries[0].text == "device 2 was asked for, and this process sees 2: check CUDA_VISIBLE_DEVICES");
    CHECK_FALSE(facts.gpu);
  }
}

TEST_CASE("a driver without a GPU is no failure") {
  machine = {};
  machine.cuInitResult = 100;
  std::vector<FailedQuery> failed;
  CHECK(countGpus(playedCuda(), failed) == 0);
  CHECK(failed.empty());
}

TEST_CASE("the probe for host memory knows its process and asks no GPU library") {
  const RankFacts facts = probe(-1);
  CHECK(facts.hostId == hostIdentity());
  CHECK(facts.hostName == hostName());
  CHECK(facts.namespaces.mnt != 0);
  CHECK(facts.namespaces.pid != 0);
  CHECK(facts.namespaces.net != 0);
  CHECK(facts.namespaces.ipc != 0);
  CHECK_FALSE(facts.gpu);
  CHECK(facts.gpuCount == 0);
  CHECK(facts.failedQueries.empty());
  CHECK((!facts.cpuset.empty() || !facts.warnings.empty()));
}

TEST_CASE("whatever hwloc is told, the facts are complete or warn") {
  SECTION("a machine made up by words") {
    const ScopedEnvironment synthetic("HWLOC_SYNTHETIC", "numa:2 core:2 pu:1");
    const RankFacts facts = probe(-1);
    CHECK(facts.cpuset.empty());
    REQUIRE(facts.warnings.size() == 1);
    CHECK(facts.warnings[0].find("HWLOC_SYNTHETIC") != std::string::npos);
  }
  SECTION("a file that is not there") {
    const ScopedEnvironment file("HWLOC_XMLFILE", "/nonexistent/topology.xml");
    const RankFacts facts = probe(-1);
    CHECK((facts.numaNodes > 0 || !facts.warnings.empty()));
  }
  SECTION("no component that could read the machine") {
    const ScopedEnvironment components("HWLOC_COMPONENTS", "stop");
    const RankFacts facts = probe(-1);
    CHECK(facts.numaNodes == 0);
    REQUIRE(facts.warnings.size() == 1);
    CHECK(facts.warnings[0].find("could not read") != std::string::npos);
  }
  SECTION("a GPU that no I/O object stands for") {
    RankFacts facts;
    facts.gpu.emplace();
    facts.gpu->pciId = "ffff:1f:1f.0";
    queryHwloc(facts);
    CHECK(facts.gpu->numaNode == -1);
    REQUIRE_FALSE(facts.warnings.empty());
    CHECK(facts.warnings.back().find("ffff:1f:1f.0") != std::string::npos);
  }
}
