// How an exchange on device memory is staged: fused or NCCL, launch shape, chunks. Pure: the same facts on every rank
// give the same choice on every rank.
#pragma once

#include <cstddef>
#include <string>

#include "base/parameters.h"
#include "base/status.h"

namespace ulysses::plan {

// A grad-tracked operand whose planes are larger keeps the original launch: with gradients saved for the backward,
// memory is short just when windows would grow.
inline constexpr size_t kLongTrainingPlaneBytes = size_t{512} << 20;

// Facts that every rank holds identically, or that have just been agreed.
struct PolicyFacts {
  std::string gpu;  // architecture, the whole name: "GB200", "H200", "B200"
  int ranks = 0;
  ulyssesDataType_t dtype = ulyssesBfloat16;
  bool contiguous = true;
  size_t planes = 0, seq = 0, heads = 0, headDim = 0;
  ulyssesDirection_t direction = ulyssesScatterHeads;
  bool gradTracked = false;
  LongTraining longTraining = LongTraining::Auto;
  size_t capBytes = 0;            // the smallest of all ranks
  size_t planeBytes = 0;          // the largest share any rank has of one plane
  size_t packBytes = 0;           // and of all planes of all operands
  int kernelRevision = 2;         // the smallest of all ranks
  bool outputsInWindows = false;  // every rank's output can be written directly: nothing is staged
};

struct PolicyChoice {
  bool fused = false;         // false: NCCL
  bool tuned = false;         // a row for this GPU and geometry applies
  bool original = false;      // the whole pack in one window
  int ctas = 0;               // 0 for NCCL
  size_t chunkBytes = 0;      // moved at a time; 0 where nothing is staged
  int slots = 0;              // chunks in flight: the staging window holds slots * chunkBytes
  size_t maxWindowBytes = 0;  // bounds what may be registered for staging; slots * chunkBytes never exceeds it
  std::string reason;

  size_t stagingBytes() const { return chunkBytes * static_cast<size_t>(slots); }
};

PolicyChoice choosePolicy(const PolicyFacts& facts);

}  // namespace ulysses::plan
