#include "topology/decide.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/format.h"

namespace ulysses {
namespace {

using Ranks = std::span<const RankFacts>;

// "rank 3", "ranks 0 and 2", "ranks 0, 1 and 5"; long lists are cut.
std::string rankList(const std::vector<size_t>& ranks) {
  constexpr size_t kNamed = 8;
  if (ranks.size() == 1) return formatText("rank {}", ranks[0]);
  if (ranks.size() > kNamed)
    return formatText("ranks {} and {} more", joinText(std::span(ranks).first(kNamed), ", "), ranks.size() - kNamed);
  return formatText("ranks {} and {}", joinText(std::span(ranks).first(ranks.size() - 1), ", "), ranks.back());
}

std::string hostText(const RankFacts& rank) {
  return formatText("'{}' ({})", rank.hostName, rank.hostId);
}

const FailedQuery* failedQuery(const RankFacts& rank) {
  return rank.failedQueries.empty() ? nullptr : &rank.failedQueries.front();
}

std::string severalHosts(Ranks ranks) {
  for (size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].hostId != ranks[0].hostId)
      return formatText("rank {} on {} and rank 0 on {} are not on one host", r, hostText(ranks[r]),
                        hostText(ranks[0]));
  return {};
}

bool sameNvlinkDomain(const RankFacts& a, const RankFacts& b) {
  const FabricFacts &x = a.gpu->fabric, &y = b.gpu->fabric;
  if (x.state != FabricState::Completed || y.state != FabricState::Completed || x.cliqueId != y.cliqueId) return false;
  // Without a cluster UUID the domain ends at its host, so only the host tells two of them apart.
  return x.clusterUuid.empty() ? y.clusterUuid.empty() && a.hostId == b.hostId : x.clusterUuid == y.clusterUuid;
}

void decideHostMemory(Ranks ranks, Verdict& verdict) {
  verdict.memory = ulyssesMemoryHost;
  verdict.fusedOk = verdict.singleHost;
  verdict.cause = verdict.singleHost ? Cause::None : Cause::SeveralHosts;
  verdict.reason = verdict.singleHost
                       ? formatText("{} rank{} on one host, host memory", ranks.size(), ranks.size() == 1 ? "" : "s")
                       : formatText("host memory is shared within one host only: {}", severalHosts(ranks));
}

void decideDeviceMemory(Ranks ranks, Verdict& verdict) {
  verdict.memory = ulyssesMemoryCuda;
  std::map<std::string, int> devices;
  for (const RankFacts& rank : ranks)
    verdict.ranksPerDevice = std::max(verdict.ranksPerDevice, ++devices[rank.gpu->uuid]);

  // Ranks that all share one GPU need nothing from its links, so a question about them may stay unanswered.
  if (devices.size() > 1) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (const FailedQuery* failed = failedQuery(ranks[r])) {
        verdict.cause = Cause::QueryFailed;
        verdict.reason = formatText("{} failed on rank {}: {}", failed->query, r, failed->text);
        return;
      }
    }
  }

  std::string obstacle;
  for (size_t from = 0; from < ranks.size() && obstacle.empty(); ++from)
    for (size_t to = 0; to < ranks.size() && obstacle.empty(); ++to) obstacle = whyNotAddressable(ranks, from, to);
  verdict.lsa = obstacle.empty();
  verdict.fusedOk = verdict.lsa && verdict.singleHost;

  if (!verdict.singleHost) {
    verdict.cause = Cause::SeveralHosts;
    verdict.reason = formatText("{}{}", severalHosts(ranks), verdict.lsa ? ", though NVLink reaches across" : "");
  } else if (!verdict.lsa) {
    verdict.cause = Cause::NotAddressable;
    verdict.reason = obstacle;
  } else if (devices.size() == 1) {
    verdict.reason = ranks.size() == 1 ? "1 rank on 1 GPU" : formatText("{} ranks share one GPU", ranks.size());
  } else {
    verdict.reason =
        formatText("{} ranks on {} GPUs of one host, NVLink between all of them", ranks.size(), devices.size());
  }
}

}  // namespace

std::string whyNotAddressable(Ranks ranks, size_t from, size_t to) {
  const GpuFacts &a = *ranks[from].gpu, &b = *ranks[to].gpu;
  if (a.uuid == b.uuid) return {};
  const auto no = [&](const std::string& why) {
    return formatText("rank {} ({}) can't reach rank {} ({}) by load and store: {}", from, a.uuid, to, b.uuid, why);
  };
  if (a.mig || b.mig) return no("a MIG instance has no access to other GPUs");

  const auto peer = std::find_if(a.peers.begin(), a.peers.end(), [&](const PeerFacts& p) { return p.uuid == b.uuid; });
  if (peer == a.peers.end()) {
    // A GPU that is hidden from this process (another container, another host) is reachable where both belong to one
    // NVLink domain.
    if (sameNvlinkDomain(ranks[from], ranks[to])) return {};
    return no("it is not visible there, and no NVLink domain holds both");
  }
  if (peer->nvlink == P2pStatus::NotReported) return no("the driver reports nothing about NVLink between them");
  if (peer->nvlink != P2pStatus::Ok)
    return no(formatText("no NVLink (NVML says {}{})", p2pStatusName(peer->nvlink),
                         peer->peerAccess == true ? "; peer access is over PCIe" : ""));
  if (peer->peerAccess == false) return no("NVLink is there, but CUDA denies peer access");
  for (const auto& [what, status] : {std::pair{"read", peer->read}, std::pair{"write", peer->write}})
    if (status != P2pStatus::Ok && status != P2pStatus::NotReported)
      return no(formatText("NVLink is there, but NVML says {} for peer {}s", p2pStatusName(status), what));
  return {};
}

Verdict decide(Ranks ranks, ulyssesMemory_t requested) {
  Verdict verdict;
  if (ranks.empty()) {
    verdict.code = ulyssesInvalidUsage;
    verdict.cause = Cause::NoRanks;
    verdict.reason = "there are no ranks";
    return verdict;
  }
  std::set<std::string> hosts;
  std::vector<size_t> without;
  for (size_t r = 0; r < ranks.size(); ++r) {
    hosts.insert(ranks[r].hostId);
    if (!ranks[r].gpu) without.push_back(r);
  }
  verdict.nHosts = static_cast<int>(hosts.size());
  verdict.singleHost = verdict.nHosts == 1;

  if (requested == ulyssesMemoryHost || (requested == ulyssesMemoryAuto && without.size() == ranks.size())) {
    decideHostMemory(ranks, verdict);
  } else if (without.empty()) {
    decideDeviceMemory(ranks, verdict);
  } else {
    const FailedQuery* failed = failedQuery(ranks[without[0]]);
    verdict.code = ulyssesInvalidUsage;
    verdict.memory = requested;
    verdict.cause = Cause::MixedMemory;
    verdict.reason = formatText(
        "{} of {} ranks {} no GPU: {}{}; give every rank a GPU, or ask for host memory (ULYSSES_MEMORY=host)",
        without.size(), ranks.size(), without.size() == 1 ? "has" : "have", rankList(without),
        failed ? formatText(" ({} failed: {})", failed->query, failed->text) : "");
  }
  return verdict;
}

}  // namespace ulysses
