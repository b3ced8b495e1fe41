// What one rank has for another as a dense message, the payload, and how to cut it into chunks. The elements lie in it
// as [batch, seq, head, headDim], whatever the strides at either end, so the two ends need to know nothing of each
// other's. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "layout/block_copy.h"
#include "layout/operand.h"

namespace ulysses::layout {

// Bytes that rank `from` has for rank `to`.
size_t payloadBytes(const Operand& operand, int from, int to);

// From `from`'s input to the payload (dstOffset counts in the payload), and from the payload (srcOffset) to `to`'s
// output. In payload order, without gaps. Strides in elements, all zero = contiguous; they have passed checkStrides.
std::vector<BlockCopy> packCopies(const Operand& operand, int from, int to, const Strides& in);
std::vector<BlockCopy> unpackCopies(const Operand& operand, int from, int to, const Strides& out);

// How many copies blockCopies(), packCopies() and unpackCopies() make of it together.
size_t countCopies(const Operand& operand, int from, int to, const Strides& in, const Strides& out);

// Finds the copies that cover a byte range of the payload. Takes any list in payload order (CopyOrder::Payload).
class PayloadMap {
 public:
  PayloadMap() = default;
  explicit PayloadMap(std::vector<BlockCopy> copies);

  size_t bytes() const { return begins_.back(); }
  const std::vector<BlockCopy>& copies() const { return copies_; }

  // Calls visit(const BlockCopy&) in payload order for pieces that cover exactly bytes [begin, end), begin <= end <=
  // bytes(): of each copy the rest of a row, whole rows as one piece, the beginning of a row. Offsets stay those of the
  // whole payload, not of the range.
  template <class Visit>
  void forEachPiece(size_t begin, size_t end, Visit&& visit) const;

 private:
  std::vector<BlockCopy> copies_;
  std::vector<size_t> begins_{0};  // where each copy begins in the payload, then the payload's end
};

template <class Visit>
void PayloadMap::forEachPiece(size_t begin, size_t end, Visit&& visit) const {
  if (begin >= end) return;
  auto index = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin()) - 1;
  for (; begin < end; ++index) {
    const BlockCopy& copy = copies_[index];
    const size_t stop = std::min(end, begins_[index + 1]);
    while (begin < stop) {
      const size_t at = begin - begins_[index];
      const size_t row = at / copy.rowBytes, column = at % copy.rowBytes;
      BlockCopy piece = copy;
      piece.srcOffset += row * copy.srcPitch + column;
      piece.dstOffset += row * copy.dstPitch + column;
      if (column == 0 && stop - begin >= copy.rowBytes) {
        piece.rows = (stop - begin) / copy.rowBytes;
      } else {
        piece.rows = 1;
        piece.rowBytes = std::min(copy.rowBytes - column, stop - begin);
      }
      if (piece.rows == 1) piece.srcPitch = piece.dstPitch = piece.rowBytes;
      begin += piece.bytes();
      visit(std::as_const(piece));
    }
  }
}

}  // namespace ulysses::layout
