// What one rank has to know to run an exchange: who gets which bytes of its inputs, and where those of others go. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "layout/operand.h"
#include "layout/payload.h"

namespace ulysses {

// The strides of one operand on every rank (a sender that writes into a peer's output must know that peer's).
struct OperandStrides {
  std::vector<layout::Strides> in, out;  // one per rank
};

// One operand between this rank and one peer.
struct Share {
  layout::PayloadMap direct;  // this rank's input -> the peer's output
  layout::PayloadMap pack;    // this rank's input -> the payload for the peer
  layout::PayloadMap unpack;  // the payload from the peer -> this rank's output
};

OperandStrides contiguousStrides(int nranks);

struct Schedule {
  int rank = 0, nranks = 1;
  size_t operands = 0;
  std::vector<std::vector<Share>> shares;    // [peer][operand]
  std::vector<size_t> sendBytes, recvBytes;  // [peer], all operands together
  std::vector<size_t> recvOffset;            // [peer]: where this rank's part begins in all that the peer packs, by rank
  bool broadcast = false;                    // every rank has one payload for all: it is packed once
  std::vector<size_t> inExtent, outExtent;   // [operand]: bytes from the first to past the last element, 0 when empty
  std::vector<size_t> elementBytes;          // [operand]: what its pointers must be aligned to
  bool inPlaceWhole = false;                 // the output may be the input (P = 1, equal layout)
  bool inPlaceOwn = false;                   // all-gather: this rank's input may be its own block of the output

  // The block copies of any pair of ranks, from one's input to the other's output, for kernels that need both ends.
  std::function<std::vector<layout::BlockCopy>(int from, int to, size_t operand)> copies;

  // The same on all ranks.
  size_t shortestRow = SIZE_MAX;  // of all block copies between two ranks
  size_t largestPayload = 0;  // the most bytes any rank has for any other
  size_t largestSend = 0;     // the most bytes any rank has for all others and itself
  size_t largestPacked() const { return broadcast ? largestPayload : largestSend; }

  bool empty() const { return largestSend == 0; }
};

// ulyssesInvalidArgument where the exchange is cut so small that a rank could not hold the copies that it takes, as with
// millions of planes of one element. The same on all ranks.
Status checkCopies(std::span<const layout::Operand> operands, std::span<const OperandStrides> strides);

// `strides` has one entry per operand. All operands have the same number of ranks. They have passed checkCopies().
Schedule exchangeSchedule(std::span<const layout::Operand> operands, std::span<const OperandStrides> strides, int rank);
Result<Schedule> contiguousSchedule(const layout::Operand& operand, int rank);
Schedule allGatherSchedule(size_t bytes, size_t elementBytes, int rank, int nranks);
Schedule allToAllSchedule(size_t bytes, size_t elementBytes, int rank, int nranks);

}  // namespace ulysses
