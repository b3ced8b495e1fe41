#include "window/choice.h"

#include <algorithm>
#include <vector>

#include "base/format.h"

namespace ulysses {
namespace {

constexpr int kTellsAddresses = 22900;  // 2.29: the first that tells the host where peers' windows lie

std::string whyNotNccl(std::span<const WindowFacts> ranks, int ranksPerDevice) {
  const auto asking = [&](WindowsFrom from) {
    return std::find_if(ranks.begin(), ranks.end(), [&](const WindowFacts& f) { return f.from == from; });
  };
  if (const auto ipc = asking(WindowsFrom::Ipc); ipc != ranks.end())
    return formatText("rank {} asks for ipc (ULYSSES_WINDOWS)", ipc - ranks.begin());
  if (ranksPerDevice > 1 && asking(WindowsFrom::Nccl) == ranks.end()) return "ranks share a GPU";

  std::vector<NcclFacts> facts;
  for (const WindowFacts& f : ranks) facts.push_back(f.nccl);
  if (const std::string refusal = ncclRefusal(facts, ranksPerDevice); !refusal.empty()) return refusal;
  if (facts[0].version < kTellsAddresses)
    return formatText("NCCL has windows for others' kernels from {} on, and this is {}",
                      ncclVersionText(kTellsAddresses), ncclVersionText(facts[0].version));
  for (size_t r = 0; r < facts.size(); ++r) {
    if (facts[r].offersWindows == 0) return formatText("the NCCL of rank {} lacks functions for windows", r);
    if (facts[r].cuMemOff != 0)
      return formatText("NCCL registers no memory with NCCL_CUMEM_ENABLE=0, as on rank {}", r);
    if (facts[r].blocksAlways != 0)
      return formatText("NCCL would wait for ever for a rank that fails, with NCCL_COMM_BLOCKING=1, as on rank {}", r);
  }
  return "";
}

}  // namespace

WindowChoice chooseWindows(std::span<const WindowFacts> ranks, int ranksPerDevice) {
  const std::string reason = ranks.size() < 2 ? "one rank" : whyNotNccl(ranks, ranksPerDevice);
  return {reason.empty(), reason};
}

std::string whyNotOneTeam(std::span<const NcclLibrary::Team> teams) {
  for (size_t r = 0; r < teams.size(); ++r) {
    const NcclLibrary::Team& t = teams[r];
    if (t.nRanks != static_cast<int>(teams.size()))
      return formatText("NCCL's LSA team of rank {} has {} of {} ranks", r, t.nRanks, teams.size());
    if (t.rank != static_cast<int>(r) || t.stride != 1)
      return formatText("in NCCL's LSA team rank {} is number {}, in steps of {}", r, t.rank, t.stride);
  }
  return "";
}

}  // namespace ulysses
