// Geometry of one operand of an exchange, and the block copies it amounts to.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/status.h"
#include "layout/block_copy.h"

namespace ulysses::layout {

// What a caller asks for; the same on every rank. seq, heads are global. Empty splits mean balanced.
struct OperandRequest {
  ulyssesDirection_t direction = ulyssesScatterHeads;
  size_t batch = 0, seq = 0, heads = 0, headDim = 0, elementBytes = 0;
  std::vector<size_t> seqSplits, headSplits;
  bool replicateHeads = false;
  size_t headGroups = 0;
};

struct Range {
  size_t begin = 0, count = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

// In elements; all zero = contiguous [batch, seq, head, headDim]. headDim is always contiguous.
struct Strides {
  size_t batch = 0, seq = 0, head = 0;
  friend bool operator==(const Strides&, const Strides&) = default;
};

// A request made definite: who holds which part of the sequence, and which heads. Before scatter-heads (and after
// gather-heads) rank r holds [batch, seqOf[r].count, heads, headDim]; on the other side [batch, seq, headsOf[r].count,
// headDim]. With replication several ranks hold the same head.
struct Operand {
  ulyssesDirection_t direction = ulyssesScatterHeads;
  size_t batch = 0, seq = 0, heads = 0, headDim = 0, elementBytes = 0;
  std::vector<Range> seqOf, headsOf;  // one per rank

  int nranks() const { return static_cast<int>(seqOf.size()); }
  bool empty() const { return batch == 0 || seq == 0 || heads == 0 || headDim == 0; }
  friend bool operator==(const Operand&, const Operand&) = default;
};

// n elements over P ranks: the first n mod P get one more (torch.tensor_split).
std::vector<Range> balancedSplit(size_t n, int nranks);

// Checks a request (splits that do not add up, groups or replication that do not divide, sizes beyond 63 bits) and
// makes it definite. Heads follow explicit splits, or replication, or groups, or are balanced; groups are split
// balanced over the ranks where there are enough, else the ranks that share one split its heads. An empty tensor is
// valid. ulyssesInvalidArgument says what is wrong, with the values.
Result<Operand> resolve(const OperandRequest& request, int nranks);

// The reverse exchange. The inverse of a replicating operand gathers every replica: its heads are heads * rep, replicas
// adjacent.
Operand inverse(const Operand& operand);

enum class Side { In, Out };

// Sizes of the tensor that `rank` passes in or gets out: batch, seq, heads of its own part.
struct LocalShape {
  size_t batch = 0, seq = 0, heads = 0, headDim = 0, elementBytes = 0;
  friend bool operator==(const LocalShape&, const LocalShape&) = default;
};
LocalShape localShape(const Operand& operand, int rank, Side side);

// The strides with "all zero" replaced by the contiguous ones of that shape.
Strides definiteStrides(const LocalShape& shape, const Strides& strides);

// ulyssesInvalidArgument where strides overflow, or where output elements would overlap each other.
Status checkStrides(const LocalShape& shape, const Strides& strides, Side side);

// Bytes from the first to one past the last element touched; 0 for an empty tensor, nothing where it passes 63 bits.
std::optional<size_t> extentBytes(const LocalShape& shape, const Strides& strides);

// Bytes of data one rank's tensor holds (strides do not count).
size_t dataBytes(const LocalShape& shape);

// Payload: the operand's elements in the order [batch, seq, head, headDim], so sender and receiver cut the same payload
// at the same byte. Fewest: any order that gives the longest rows, then the fewest copies; for a consumer that makes
// all of them and needs no cut. They differ where strides transpose ([B, H, S, D]) and where planes outnumber tokens.
enum class CopyOrder { Payload, Fewest };

// The copies that move rank `from`'s share for rank `to`. In: strides of `from`'s input; out: of `to`'s output; both
// have passed checkStrides. Rows that touch are merged, so a contiguous block is one row; a single row's pitch is its
// length. Never a copy with zero bytes.
std::vector<BlockCopy> blockCopies(const Operand& operand, int from, int to, const Strides& in, const Strides& out,
                                   CopyOrder order = CopyOrder::Payload);

// The flat collectives: rank `from`'s `bytes` to rank `to`. `from`'s block of every output is number `from`; all-gather
// sends each peer the whole input, all-to-all block number `to` of it.
BlockCopy allGatherCopy(size_t bytes, int from);
BlockCopy allToAllCopy(size_t bytes, int from, int to);

}  // namespace ulysses::layout
