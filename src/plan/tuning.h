// Launch shapes by GPU and geometry: what the policy starts from. One table; add a row with what was measured.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"

namespace ulysses::plan {

// The whole pack through one window: what kernel revision 1 does, and revision 2 where the policy keeps to it.
inline constexpr int kOriginalCtas = 36;

// Chunk k+1 is pushed while chunk k is copied out; a third slot keeps a late receiver from stalling its senders.
inline constexpr int kStagingSlots = 3;

enum class ChunkRule {
  OnePlane,  // one batch plane at a time, in a window of a plane's size
  Bytes      // chunks of TuningRow::chunkBytes through kStagingSlots slots
};

struct TuningKey {
  std::string_view architecture;  // "GB200", "H200", ...: the whole name
  int ranks = 0;
  ulyssesDataType_t dtype = ulyssesBfloat16;
  size_t heads = 0, headDim = 0;
  bool contiguous = true;
};

struct TuningRow {
  std::string_view architecture;  // "" = any GPU and geometry: the last row
  int ranks;
  ulyssesDataType_t dtype;
  size_t heads, headDim;
  int ctas;
  ChunkRule chunkRule;
  size_t chunkBytes;        // with ChunkRule::Bytes
  std::string_view origin;  // what was measured, where
};

// The row for this key: one that names its architecture and geometry, else the row for any. A row with OnePlane is for
// contiguous operands only.
const TuningRow& tuningFor(const TuningKey& key);

}  // namespace ulysses::plan
