// ulysses_topo: what the library sees of this machine, or of the one in a facts file, and what it makes of it.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/parameters.h"
#include "topology/decide.h"
#include "topology/probe.h"
#include "ulysses/version.h"

using namespace ulysses;

namespace {

std::string versionText() {
  return fmt::format("{}.{}.{}", ULYSSES_MAJOR, ULYSSES_MINOR, ULYSSES_PATCH);
}

std::string orUnknown(const std::string& text) {
  return text.empty() ? "unknown" : text;
}

std::string ncclText(int code) {
  return code == 0 ? "none" : fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

// One rank per GPU that this process sees; one on host memory where it sees none.
FactsFile probeMachine() {
  FactsFile facts;
  const int gpus = visibleGpuCount();
  for (int device = 0; device < gpus; ++device) facts.ranks.push_back(probe(device));
  if (gpus == 0) facts.ranks.push_back(probe(-1));
  const RankFacts& first = facts.ranks[0];
  facts.source = fmt::format(
      "recorded by ulysses_topo {}{}", versionText(),
      first.gpu ? fmt::format(" on {} x {}, driver {}", gpus, first.gpu->name, orUnknown(first.driverVersion))
                : " on a machine without GPU");
  return facts;
}

void printHosts(const std::vector<RankFacts>& ranks) {
  std::map<std::string, std::vector<size_t>> byHost;
  for (size_t r = 0; r < ranks.size(); ++r) byHost[ranks[r].hostId].push_back(r);
  fmt::print("Hosts (a host is a running kernel)\n");
  for (const auto& [hostId, members] : byHost) {
    const RankFacts& first = ranks[members[0]];
    fmt::print("  {}  '{}'  ranks {}  NUMA nodes {}  driver {}  NCCL {}\n", hostId, first.hostName,
               fmt::join(members, ","), first.numaNodes ? std::to_string(first.numaNodes) : "unknown",
               first.driverVersion.empty() ? "none" : first.driverVersion, ncclText(first.ncclVersion));
  }
}

std::string linksText(const GpuFacts& gpu) {
  if (gpu.activeLinks == 0) return "none";
  return fmt::format("{} ({} to switches)", gpu.activeLinks, gpu.switchLinks);
}

std::string fabricText(const FabricFacts& fabric) {
  if (fabric.state != FabricState::Completed) return fabricStateName(fabric.state);
  return fmt::format("domain {} clique {}", fabric.clusterUuid.empty() ? "of its host" : fabric.clusterUuid,
                     fabric.cliqueId);
}

void printRanks(const std::vector<RankFacts>& ranks) {
  fmt::print("\nRanks\n");
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankFacts& rank = ranks[r];
    fmt::print("  {:>3}  may run on processors {}; namespaces mnt {} pid {} net {} ipc {}\n", r, orUnknown(rank.cpuset),
               rank.namespaces.mnt, rank.namespaces.pid, rank.namespaces.net, rank.namespaces.ipc);
    if (rank.gpu) {
      const GpuFacts& gpu = *rank.gpu;
      fmt::print("       {} (compute {}.{}) at {}, {}\n", gpu.name, gpu.computeMajor, gpu.computeMinor, gpu.pciId,
                 gpu.uuid);
      fmt::print("       NUMA node {}, near processors {}; NVLinks {}; NVLink domain: {}\n",
                 gpu.numaNode < 0 ? "unknown" : std::to_string(gpu.numaNode), orUnknown(gpu.cpuset), linksText(gpu),
                 fabricText(gpu.fabric));
    } else {
      fmt::print("       no GPU: host memory\n");
    }
    for (const FailedQuery& failed : rank.failedQueries)
      fmt::print("       failed query: {}: {}\n", failed.query, failed.text);
    for (const std::string& warning : rank.warnings) fmt::print("       warning: {}\n", warning);
  }
}

// How the rank of the row reaches memory of the rank of the column.
std::string cell(const std::vector<RankFacts>& ranks, size_t from, size_t to) {
  if (from == to) return "-";
  const RankFacts &a = ranks[from], &b = ranks[to];
  if (!a.gpu || !b.gpu) return a.hostId == b.hostId ? "SHM" : "NET";
  if (a.gpu->uuid == b.gpu->uuid) return "GPU";
  const auto& peers = a.gpu->peers;
  const auto peer = std::find_if(peers.begin(), peers.end(), [&](const PeerFacts& p) { return p.uuid == b.gpu->uuid; });
  if (!whyNotAddressable(ranks, from, to).empty())
    return peer == peers.end() ? "?" : peer->peerAccess == true ? "PCI" : "x";
  if (peer == peers.end()) return "DOM";
  return peer->directLinks > 0 ? fmt::format("NV{}", peer->directLinks) : "NVS";
}

void printMatrix(const std::vector<RankFacts>& ranks) {
  fmt::print("\nHow the rank of a row reaches the rank of a column\n      ");
  for (size_t to = 0; to < ranks.size(); ++to) fmt::print("{:>5}", to);
  fmt::print("\n");
  for (size_t from = 0; from < ranks.size(); ++from) {
    fmt::print("  {:>4}", from);
    for (size_t to = 0; to < ranks.size(); ++to) fmt::print("{:>5}", cell(ranks, from, to));
    fmt::print("\n");
  }
  fmt::print(
      "  GPU: the same GPU   NV#: # NVLinks   NVS: NVLink through switches   DOM: hidden, but in one NVLink domain\n"
      "  PCI: peer access without NVLink   SHM: host memory of one host   NET: another host   x: no access   "
      "?: nothing known\n");
}

const char* memoryText(ulyssesMemory_t memory) {
  return memory == ulyssesMemoryCuda ? "device" : memory == ulyssesMemoryHost ? "host" : "undecided";
}

void printVerdict(const std::vector<RankFacts>& ranks, const Verdict& verdict) {
  const char* fused = verdict.code != ulyssesSuccess ? "no communicator" : verdict.fusedOk ? "fused" : "fallback";
  fmt::print("\nVerdict: {}\n", fused);
  fmt::print("  ranks {}  hosts {}  memory {}", ranks.size(), verdict.nHosts, memoryText(verdict.memory));
  if (verdict.memory == ulyssesMemoryCuda)
    fmt::print("  load/store access between all ranks {}  most ranks on a GPU {}", verdict.lsa ? "yes" : "no",
               verdict.ranksPerDevice);
  fmt::print("\n");
  fmt::print("Reason: {}\n", verdict.reason);
}

void printEnvironment() {
  for (const ParameterRow& row : parameterTable())
    fmt::print("{} = {}\n    {}\n    Values: {}. Default: {}.\n", row.name, row.currentValue, row.text, row.type,
               row.defaultValue);
}

ulyssesMemory_t requestedMemory(MemoryChoice choice) {
  switch (choice) {
    case MemoryChoice::Host:
      return ulyssesMemoryHost;
    case MemoryChoice::Cuda:
      return ulyssesMemoryCuda;
    case MemoryChoice::Auto:
      break;
  }
  return ulyssesMemoryAuto;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Shows the machine as the Ulysses library sees it, how its GPUs reach each other, and whether the fused "
      "paths can be used.");
  std::string path;
  bool json = false, environment = false;
  app.add_option("--facts", path, "Read the facts from FILE instead of this machine (ULYSSES_TOPO_FILE does the same)")
      ->type_name("FILE");
  app.add_flag("--json", json, "Print the facts as a facts file, one rank per visible GPU");
  app.add_flag("--env", environment, "Print the environment variables of the library and leave");
  app.set_version_flag("--version", versionText());
  CLI11_PARSE(app, argc, argv);

  if (environment) {
    printEnvironment();
    return 0;
  }
  const Parameters parameters = Parameters::fromEnvironment();
  if (path.empty()) path = parameters.topoFile;

  FactsFile facts;
  if (path.empty()) {
    facts = probeMachine();
  } else if (auto loaded = loadFactsFile(path); loaded.ok()) {
    facts = loaded.take();
  } else {
    fmt::print(stderr, "ulysses_topo: {}\n", loaded.status().message());
    return 1;
  }
  if (json) {
    fmt::print("{}\n", factsToJson(facts));
    return 0;
  }
  fmt::print("ulysses_topo {}: {}\n\n", versionText(), path.empty() ? "this machine" : path + ", " + facts.source);
  printHosts(facts.ranks);
  printRanks(facts.ranks);
  printMatrix(facts.ranks);
  printVerdict(facts.ranks, decide(facts.ranks, requestedMemory(parameters.memory)));
  return 0;
}
