#include "plan/tuning.h"

#include <iterator>

namespace ulysses::plan {
namespace {

constexpr TuningRow kRows[] = {
    {"GB200", 4, ulyssesBfloat16, 56, 128, 144, ChunkRule::OnePlane, 0,
     "the published launch for this geometry: 4 GPUs of one GB200 host, S = 32000 to 250000"},
    {"", 0, ulyssesBfloat16, 0, 0, kOriginalCtas, ChunkRule::Bytes, size_t{16} << 20,
     "one H200 shared by 4 ranks, H=56 D=128 S=128000: chunks of 4 to 16 MB lie within 3 % of each other"},
};

bool matches(const TuningRow& row, const TuningKey& key) {
  return row.architecture == key.architecture && row.ranks == key.ranks && row.dtype == key.dtype &&
         row.heads == key.heads && row.headDim == key.headDim &&
         (row.chunkRule != ChunkRule::OnePlane || key.contiguous);
}

}  // namespace

const TuningRow& tuningFor(const TuningKey& key) {
  for (const TuningRow& row : kRows)
    if (!row.architecture.empty() && matches(row, key)) return row;
  return *std::rbegin(kRows);
}

}  // namespace ulysses::plan
