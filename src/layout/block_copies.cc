#include "layout/operand.h"
#include "layout/share.h"

namespace ulysses::layout {

std::vector<BlockCopy> blockCopies(const Operand& operand, int from, int to, const Strides& in, const Strides& out,
                                   CopyOrder order) {
  const Share share(operand, from, to);
  return share.copies(share.inInput(in), share.inOutput(out), order);
}

BlockCopy allGatherCopy(size_t bytes, int from) {
  return {1, bytes, 0, bytes, static_cast<size_t>(from) * bytes, bytes};
}

BlockCopy allToAllCopy(size_t bytes, int from, int to) {
  return {1, bytes, static_cast<size_t>(to) * bytes, bytes, static_cast<size_t>(from) * bytes, bytes};
}

}  // namespace ulysses::layout
