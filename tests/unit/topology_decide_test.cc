// The verdict for every kind of machine that a facts file describes, in any order of its ranks.
#include "topology/decide.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>

#include "support/catch.h"

using namespace ulysses;

namespace {

struct Expected {
  const char* file;
  ulyssesResult_t code;
  ulyssesMemory_t memory;
  int nHosts;
  bool lsa;
  int ranksPerDevice;
  bool fusedOk;
  Cause cause;
  const char* reason;  // in the order of the file, complete or its telling part
};

constexpr auto kOk = ulyssesSuccess;
constexpr auto kHost = ulyssesMemoryHost;
constexpr auto kCuda = ulyssesMemoryCuda;

const Expected kTable[] = {
    {"nvswitch_8_gpus", kOk, kCuda, 1, true, 1, true, Cause::None,
     "8 ranks on 8 GPUs of one host, NVLink between all of them"},
    {"h200_1_gpu", kOk, kCuda, 1, true, 1, true, Cause::None, "1 rank on 1 GPU"},
    {"gb200_one_tray", kOk, kCuda, 1, true, 1, true, Cause::None, "4 ranks on 4 GPUs of one host"},
    {"gb200_two_trays", kOk, kCuda, 2, true, 1, false, Cause::SeveralHosts,
     "rank 2 on 'tray2' (b27d9a44-31c6-4e0b-8d7f-5a9e6c3f1b22) and rank 0 on 'tray1' "
     "(6f1c2f0e-8f5b-4c1d-9a53-0d1b7c2e4a10) are not on one host, though NVLink reaches across"},
    {"partial_nvlink_cube_mesh", kOk, kCuda, 1, false, 1, false, Cause::NotAddressable,
     "rank 0 (GPU-5c0ffee0-1d2e-4f30-9a4b-102030405060) can't reach rank 5 "
     "(GPU-5c0ffee5-1d2e-4f30-9a4b-102030405065) by load and store: no NVLink (NVML says not-supported)"},
    {"partial_nvlink_bridges", kOk, kCuda, 1, false, 1, false, Cause::NotAddressable,
     "can't reach rank 2 (GPU-5c0ffee2-1d2e-4f30-9a4b-102030405062) by load and store: no NVLink "
     "(NVML says not-supported; peer access is over PCIe)"},
    {"one_direction_missing", kOk, kCuda, 1, false, 1, false, Cause::NotAddressable, "rank 2 (GPU-5c0ffee2-"},
    {"pcie_only", kOk, kCuda, 1, false, 1, false, Cause::NotAddressable, "rank 0 (GPU-5c0ffee0-"},
    {"shared_gpu_4_ranks", kOk, kCuda, 1, true, 4, true, Cause::None, "4 ranks share one GPU"},
    {"shared_gpus_2_by_2", kOk, kCuda, 1, true, 2, true, Cause::None, "4 ranks on 2 GPUs of one host"},
    {"failed_query", kOk, kCuda, 1, false, 1, false, Cause::QueryFailed,
     "nvmlDeviceGetP2PStatus failed on rank 2: GPU is lost (NVML error 15)"},
    {"same_hostname_two_hosts", kOk, kCuda, 2, false, 1, false, Cause::SeveralHosts, "are not on one host"},
    {"two_hostnames_one_host", kOk, kHost, 1, false, 0, true, Cause::None, "2 ranks on one host, host memory"},
    {"containers_host_memory", kOk, kHost, 1, false, 0, true, Cause::None, "2 ranks on one host, host memory"},
    {"containers_own_gpu_nvswitch", kOk, kCuda, 1, true, 1, true, Cause::None, "2 ranks on 2 GPUs of one host"},
    {"containers_own_gpu_pcie", kOk, kCuda, 1, false, 1, false, Cause::NotAddressable,
     "it is not visible there, and no NVLink domain holds both"},
    {"visible_devices_one_each", kOk, kCuda, 1, true, 1, true, Cause::None, "2 ranks on 2 GPUs of one host"},
    {"mixture_one_without_gpu", ulyssesInvalidUsage, ulyssesMemoryAuto, 1, false, 0, false, Cause::MixedMemory,
     "1 of 4 ranks has no GPU: rank 2; give every rank a GPU, or ask for host memory (ULYSSES_MEMORY=host)"},
    {"mig_instances", kOk, kCuda, 1, false, 1, false, Cause::NotAddressable,
     "a MIG instance has no access to other GPUs"},
    {"host_memory", kOk, kHost, 1, false, 0, true, Cause::None, "4 ranks on one host, host memory"},
};

std::filesystem::path dataFolder() {
  return std::filesystem::path(ULYSSES_DATA_DIR) / "topology";
}

std::vector<RankFacts> load(const std::string& name) {
  const auto facts = loadFactsFile((dataFolder() / (name + ".json")).string());
  INFO(facts.status().message());
  REQUIRE(facts.ok());
  return facts.value().ranks;
}

void checkSameVerdict(const Verdict& a, const Verdict& b) {
  CHECK(a.code == b.code);
  CHECK(a.memory == b.memory);
  CHECK(a.nHosts == b.nHosts);
  CHECK(a.singleHost == b.singleHost);
  CHECK(a.lsa == b.lsa);
  CHECK(a.ranksPerDevice == b.ranksPerDevice);
  CHECK(a.fusedOk == b.fusedOk);
  CHECK(a.cause == b.cause);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

}  // namespace

TEST_CASE("each machine of the facts files gets its verdict") {
  for (const Expected& expected : kTable) {
    INFO(expected.file);
    const Verdict verdict = decide(load(expected.file));
    checkSameVerdict(verdict, {expected.code, expected.memory, expected.nHosts, expected.nHosts == 1, expected.lsa,
                               expected.ranksPerDevice, expected.fusedOk, expected.cause, ""});
    INFO(verdict.reason);
    CHECK(contains(verdict.reason, expected.reason));
    CHECK(verdict.reason.size() < 256);  // what ulyssesCommInfo_t holds
  }
}

TEST_CASE("the order of the ranks does not change the verdict") {
  std::mt19937 random(7);
  for (const Expected& expected : kTable) {
    INFO(expected.file);
    const std::vector<RankFacts> ranks = load(expected.file);
    const Verdict verdict = decide(ranks);
    std::vector<size_t> order(ranks.size());
    std::iota(order.begin(), order.end(), size_t{0});
    // Every order of up to 4 ranks; of 8, a sample.
    const bool all = ranks.size() <= 4;
    for (int i = 0; all ? std::next_permutation(order.begin(), order.end()) : i < 50; ++i) {
      if (!all) std::shuffle(order.begin(), order.end(), random);
      std::vector<RankFacts> permuted;
      for (const size_t r : order) permuted.push_back(ranks[r]);
      checkSameVerdict(decide(permuted), verdict);
    }
  }
}

TEST_CASE("every facts file is in the table and names its source") {
  std::set<std::string> listed, found;
  for (const Expected& expected : kTable) listed.insert(expected.file);
  for (const auto& entry : std::filesystem::directory_iterator(dataFolder())) {
    const std::string name = entry.path().stem().string();
    INFO(name);
    found.insert(name);
    const auto facts = loadFactsFile(entry.path().string());
    REQUIRE(facts.ok());
    const std::string& source = facts.value().source;
    CHECK((source.rfind("constructed", 0) == 0 || source.rfind("recorded by ulysses_topo", 0) == 0));
  }
  CHECK(found == listed);
}

TEST_CASE("one direction that is missing is enough, and only where both ranks take part") {
  const std::vector<RankFacts> ranks = load("one_direction_missing");
  CHECK(whyNotAddressable(ranks, 1, 2).empty());
  CHECK(contains(whyNotAddressable(ranks, 2, 1), "rank 2"));
  CHECK(decide(std::vector{ranks[0], ranks[1], ranks[3]}).fusedOk);
  CHECK_FALSE(decide(std::vector{ranks[1], ranks[2]}).fusedOk);
}

TEST_CASE("ranks on a fully linked part of a partial mesh are fused") {
  const std::vector<RankFacts> ranks = load("partial_nvlink_cube_mesh");
  CHECK(decide(std::span(ranks).first(4)).fusedOk);
  CHECK_FALSE(decide(std::span(ranks).first(5)).fusedOk);
}

TEST_CASE("a failed query on any one rank is named with that rank") {
  for (size_t bad = 0; bad < 8; ++bad) {
    std::vector<RankFacts> ranks = load("nvswitch_8_gpus");
    ranks[bad].failedQueries.push_back({"libnvidia-ml.so.1", "the library can't be loaded"});
    const Verdict verdict = decide(ranks);
    CHECK_FALSE(verdict.fusedOk);
    CHECK(verdict.cause == Cause::QueryFailed);
    CHECK(verdict.reason ==
          "libnvidia-ml.so.1 failed on rank " + std::to_string(bad) + ": the library can't be loaded");
  }
}

TEST_CASE("links are of no concern to ranks that share one GPU") {
  std::vector<RankFacts> ranks = load("shared_gpu_4_ranks");
  ranks[1].failedQueries.push_back({"nvmlInit", "Driver Not Loaded (NVML error 9)"});
  CHECK(decide(ranks).fusedOk);
}

TEST_CASE("NVLink that may not be used is not addressable") {
  std::vector<RankFacts> ranks = load("nvswitch_8_gpus");
  PeerFacts& peer = ranks[3].gpu->peers[0];
  SECTION("CUDA denies peer access") {
    peer.peerAccess = false;
    CHECK(contains(decide(ranks).reason, "CUDA denies peer access"));
  }
  SECTION("reads are disabled") {
    peer.read = P2pStatus::DisabledByRegkey;
    CHECK(contains(decide(ranks).reason, "NVML says disabled-by-regkey for peer reads"));
  }
  SECTION("writes are disabled") {
    peer.write = P2pStatus::DisabledByRegkey;
    CHECK(contains(decide(ranks).reason, "NVML says disabled-by-regkey for peer writes"));
  }
  SECTION("the driver says nothing about NVLink") {
    peer.nvlink = P2pStatus::NotReported;
    CHECK(contains(decide(ranks).reason, "the driver reports nothing about NVLink"));
  }
  CHECK(decide(ranks).cause == Cause::NotAddressable);
  CHECK(contains(decide(ranks).reason, "rank 3"));
}

TEST_CASE("hidden GPUs count as linked only within one NVLink domain") {
  std::vector<RankFacts> ranks = load("gb200_two_trays");
  FabricFacts& fabric = ranks[3].gpu->fabric;
  SECTION("another cluster") {
    fabric.clusterUuid = "00000000000000000000000000000001";
  }
  SECTION("another clique") {
    ++fabric.cliqueId;
  }
  SECTION("registration not completed") {
    fabric.state = FabricState::InProgress;
  }
  CHECK_FALSE(decide(ranks).lsa);
  CHECK(decide(std::span(ranks).first(3)).lsa);
}

TEST_CASE("the memory that was asked for decides where GPUs are there") {
  const std::vector<RankFacts> mixture = load("mixture_one_without_gpu");
  CHECK(decide(mixture, ulyssesMemoryHost).code == ulyssesSuccess);
  CHECK(decide(mixture, ulyssesMemoryHost).memory == ulyssesMemoryHost);
  CHECK(decide(mixture, ulyssesMemoryCuda).code == ulyssesInvalidUsage);
  CHECK(decide(load("pcie_only"), ulyssesMemoryHost).fusedOk);

  const Verdict none = decide(load("host_memory"), ulyssesMemoryCuda);
  CHECK(none.code == ulyssesInvalidUsage);
  CHECK(contains(none.reason, "4 of 4 ranks have no GPU: ranks 0, 1, 2 and 3"));
}

TEST_CASE("why a rank has no GPU is part of the text") {
  std::vector<RankFacts> ranks = load("mixture_one_without_gpu");
  ranks[2].failedQueries.push_back({"cuInit", "no CUDA-capable device is detected (CUDA error 100)"});
  CHECK(contains(decide(ranks).reason, "rank 2 (cuInit failed: no CUDA-capable device is detected (CUDA error 100))"));
}

TEST_CASE("host memory on two hosts is not fused") {
  std::vector<RankFacts> ranks = load("host_memory");
  ranks[3].hostId = "another-kernel";
  const Verdict verdict = decide(ranks);
  CHECK(verdict.code == ulyssesSuccess);
  CHECK(verdict.nHosts == 2);
  CHECK_FALSE(verdict.fusedOk);
  CHECK(verdict.cause == Cause::SeveralHosts);
  CHECK(contains(verdict.reason, "rank 3 on 'laptop' (another-kernel)"));
}

TEST_CASE("one rank, and none") {
  std::vector<RankFacts> ranks = load("pcie_only");
  ranks.resize(1);
  const Verdict one = decide(ranks);
  CHECK(one.fusedOk);
  CHECK(one.reason == "1 rank on 1 GPU");
  CHECK(decide({}).code == ulyssesInvalidUsage);
}
