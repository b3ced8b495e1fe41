// Packing streams into contiguous staging and unpacking them, for paths that send messages (NCCL). Plain C++.
#pragma once

#include <cstdint>

#include "device/copy.h"
#include "device/work.h"

struct CUstream_st;

namespace ulysses::device {

// Bytes [begin, end) of a stream, which lie in the staging from `staging` on; both are multiples of 16, `end` may be
// the stream's.
struct StagedPart {
  Stream stream;
  uint64_t begin, end, staging;
};

enum class StagedWay : uint32_t { Pack, Unpack, Own };  // Own: input to output, no staging

// One launch. Blocks and parts lie in device memory.
struct StagedCopy {
  StagedWay way;
  const Block* blocks;
  const StagedPart* parts;
  uint32_t count;  // of parts
  uint32_t ctas;   // for each of them
  int operands;
  uint64_t staging;
  uint64_t in[kMaxOperands], out[kMaxOperands];
};

// What one of the CTAs that share a part copies of it.
ULYSSES_HD Tile tileOf(const StagedPart& part, uint32_t cta, uint32_t ctas) {
  const uint64_t each = ((part.end - part.begin + ctas - 1) / ctas + kUnit - 1) / kUnit * kUnit;
  const uint64_t begin = part.begin + cta * each, end = begin + each;
  return {begin < part.end ? begin : part.end, end < part.end ? end : part.end};
}

template <int kInFlight, class Memory>
ULYSSES_HD void copyStaged(const StagedCopy& x, const StagedPart& part, const uint64_t* in, const uint64_t* out,
                           uint32_t cta, uint32_t lane, uint32_t lanes) {
  const Tile tile = tileOf(part, cta, x.ctas);
  const Place slot = slotPlace(x.staging + part.staging, part.begin);
  copyTile<kInFlight, Memory>(x.blocks + part.stream.firstBlock, part.stream.blocks, tile,
                              x.way == StagedWay::Unpack ? slot : placeOf(in),
                              x.way == StagedWay::Pack ? slot : placeOf(out), lane, lanes);
}

// Both return a cudaError_t, 0 being success; neither synchronises with the device. The first loads the kernel on the
// current device.
int loadStagingCopy();
int launchStagingCopy(const StagedCopy& copy, CUstream_st* stream);

}  // namespace ulysses::device
