#include "plan/policy.h"

#include "base/format.h"

#include <algorithm>

#include "base/datatype.h"
#include "plan/tuning.h"

namespace ulysses::plan {
namespace {

// Slots start on this boundary, so that 16-byte accesses and whole cache lines stay possible in each.
constexpr size_t kChunkAlignment = 256;

PolicyChoice nccl(std::string reason) {
  PolicyChoice choice;
  choice.reason = std::move(reason);
  return choice;
}

// Why the whole pack goes through one window, or nothing where it need not.
std::string whyOriginal(const PolicyFacts& facts) {
  if (facts.kernelRevision == 1) return "kernel revision 1 stages the whole pack";
  if (facts.outputsInWindows || !facts.gradTracked || facts.longTraining == LongTraining::Chunked ||
      facts.planeBytes <= kLongTrainingPlaneBytes)
    return {};
  return formatText(
      "gradients are tracked and a plane of {} bytes exceeds {} (chunks: ULYSSES_A2A_LONG_TRAINING=chunked)",
      facts.planeBytes, kLongTrainingPlaneBytes);
}

PolicyChoice originalChoice(const PolicyFacts& facts, const std::string& why) {
  const bool staged = !facts.outputsInWindows;
  if (staged && facts.packBytes > facts.capBytes)
    return nccl(formatText("{}; the pack of {} bytes exceeds the cap of {}", why, facts.packBytes, facts.capBytes));
  PolicyChoice choice;
  choice.fused = choice.original = true;
  choice.ctas = kOriginalCtas;
  choice.chunkBytes = choice.maxWindowBytes = staged ? facts.packBytes : 0;
  choice.slots = staged ? 1 : 0;
  choice.reason = formatText("{}: one window of {} bytes, {} CTAs", why, choice.maxWindowBytes, choice.ctas);
  return choice;
}

void stage(const PolicyFacts& facts, const TuningRow& row, PolicyChoice& choice) {
  const bool onePlane = row.chunkRule == ChunkRule::OnePlane;
  choice.slots = onePlane ? 1 : kStagingSlots;
  choice.maxWindowBytes = onePlane ? std::min(facts.planeBytes, facts.capBytes) : facts.capBytes;
  const size_t most = facts.capBytes / static_cast<size_t>(choice.slots);
  choice.chunkBytes = std::min(onePlane ? facts.planeBytes : row.chunkBytes, most - most % kChunkAlignment);
}

}  // namespace

PolicyChoice choosePolicy(const PolicyFacts& facts) {
  if (const std::string why = whyOriginal(facts); !why.empty()) return originalChoice(facts, why);

  const TuningRow row = tuningFor({facts.gpu, facts.ranks, facts.dtype, facts.heads, facts.headDim, facts.contiguous});
  PolicyChoice choice;
  choice.fused = true;
  choice.tuned = row.chunkRule == ChunkRule::OnePlane;
  choice.ctas = row.ctas;
  const std::string launch =
      choice.tuned ? formatText("tuned for {}, {} ranks, {}, {} heads of {}: {} CTAs", facts.gpu, facts.ranks,
                                 dataTypeFacts(facts.dtype).name, facts.heads, facts.headDim, row.ctas)
                   : formatText("{} CTAs", row.ctas);
  if (facts.outputsInWindows) {
    choice.reason = launch + ", outputs in windows: nothing is staged";
    return choice;
  }
  stage(facts, row, choice);
  if (choice.chunkBytes == 0)
    return nccl(formatText("the cap of {} bytes is too small for staging of {} x {} bytes", facts.capBytes,
                            choice.slots, kChunkAlignment));
  choice.reason = formatText("{}, staging of {} x {} bytes", launch, choice.slots, choice.chunkBytes);
  return choice;
}

}  // namespace ulysses::plan
