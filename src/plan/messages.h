// An exchange as rounds of messages between pairs of ranks, for a fallback that sends contiguous bytes. Where a pair's
// bytes lie in few runs they are sent from, or received to, where they are; else they are packed or unpacked through
// bounded staging. Of contiguous operands one end of every pair is of the first kind, so there is one permute at most.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "device/work.h"
#include "plan/schedule.h"

namespace ulysses {

struct Messages {
  // One end of a message: in this rank's staging, or in an operand's buffer.
  struct End {
    bool staged = false;
    uint32_t operand = 0;
    uint64_t offset = 0;
  };
  struct Message {
    int peer = 0;
    End end;
    uint64_t bytes = 0;
  };
  // Bytes [begin, end) of the stream to or from a peer, which lie in the staging from `staging` on.
  struct Part {
    int peer = 0;
    uint64_t begin = 0, end = 0, staging = 0;
  };
  // One after the other: the staging is used anew in each.
  struct Round {
    std::vector<Part> pack;
    std::vector<Message> sends, recvs;  // those of a pair in the same order and sizes at both ends
    std::vector<Part> unpack;
  };

  std::vector<Round> rounds;  // as many on every rank
  uint64_t stagingBytes = 0;
  std::vector<device::Block> blocks;         // of all streams
  std::vector<device::Stream> sends, recvs;  // [peer]; sends[own rank] is the rank's own share, input to output
};

// `stagingLimit`, the same on all ranks, bounds the staging of each, down to kLeastPart for every pair.
Messages makeMessages(const Schedule& schedule, size_t stagingLimit);

inline constexpr uint64_t kLeastPart = 4096;

}  // namespace ulysses
