#include "layout/share.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ulysses::layout {
// Nests dims (outermost first) around a contiguous run; those that continue what is inside them become one with it.
Share::Nest Share::nest(const std::array<Dim, 3>& dims, size_t runBytes) {
  Nest loops;
  loops.fill({1, 0, 0});
  loops[0] = {runBytes, 1, 1};
  size_t innermost = 0;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    if (dim->count == 1) continue;  // its stride says nothing
    Dim& inner = loops[innermost];
    if (dim->src == inner.count * inner.src && dim->dst == inner.count * inner.dst) {
      inner.count *= dim->count;
    } else {
      loops[++innermost] = *dim;
    }
  }
  return loops;
}

bool Share::better(const Nest& a, const Nest& b) {
  if (a[0].count != b[0].count) return a[0].count > b[0].count;
  return a[2].count * a[3].count < b[2].count * b[3].count;
}

Share::Nest Share::bestNest(const std::array<Dim, 3>& dims, size_t runBytes) {
  Nest best = nest(dims, runBytes);
  std::array<size_t, 3> order{0, 1, 2};
  while (std::next_permutation(order.begin(), order.end())) {
    const Nest other = nest({dims[order[0]], dims[order[1]], dims[order[2]]}, runBytes);
    if (better(other, best)) best = other;
  }
  return best;
}

Share::Share(const Operand& operand, int from, int to)
    : batch_(operand.batch),
      runBytes_(operand.headDim * operand.elementBytes),
      elementBytes_(operand.elementBytes),
      input_(localShape(operand, from, Side::In)),
      output_(localShape(operand, to, Side::Out)) {
  const bool scatter = operand.direction == ulyssesScatterHeads;
  seq_ = operand.seqOf[static_cast<size_t>(scatter ? from : to)];
  heads_ = operand.headsOf[static_cast<size_t>(scatter ? to : from)];
  // A tensor with its own part of the sequence has all heads, and the other way about.
  const Origin amongHeads{0, heads_.begin}, inSequence{seq_.begin, 0};
  inputOrigin_ = scatter ? amongHeads : inSequence;
  outputOrigin_ = scatter ? inSequence : amongHeads;
}

Placement Share::inInput(const Strides& in) const {
  return place(input_, in, inputOrigin_);
}

Placement Share::inOutput(const Strides& out) const {
  return place(output_, out, outputOrigin_);
}

Placement Share::inPayload() const {
  const size_t row = heads_.count * runBytes_;
  return {0, seq_.count * row, row, runBytes_};
}

Placement Share::place(const LocalShape& shape, const Strides& strides, const Origin& origin) const {
  const Strides s = definiteStrides(shape, strides);
  return {(origin.seq * s.seq + origin.head * s.head) * elementBytes_, s.batch * elementBytes_, s.seq * elementBytes_,
          s.head * elementBytes_};
}

Share::Nest Share::loops(const Placement& src, const Placement& dst, CopyOrder order) const {
  const std::array<Dim, 3> dims{Dim{batch_, src.batch, dst.batch}, Dim{seq_.count, src.seq, dst.seq},
                                Dim{heads_.count, src.head, dst.head}};
  return order == CopyOrder::Payload ? nest(dims, runBytes_) : bestNest(dims, runBytes_);
}

size_t Share::countCopies(const Placement& src, const Placement& dst, CopyOrder order) const {
  if (bytes() == 0) return 0;
  const auto& [row, rows, middle, outer] = loops(src, dst, order);
  return middle.count * outer.count;
}

std::vector<BlockCopy> Share::copies(const Placement& src, const Placement& dst, CopyOrder order) const {
  if (bytes() == 0) return {};
  const auto& [row, rows, middle, outer] = loops(src, dst, order);
  BlockCopy copy;
  copy.rows = rows.count;
  copy.rowBytes = row.count;
  copy.srcPitch = rows.count > 1 ? rows.src : row.count;
  copy.dstPitch = rows.count > 1 ? rows.dst : row.count;
  std::vector<BlockCopy> list;
  list.reserve(outer.count * middle.count);
  for (size_t i = 0; i < outer.count; ++i) {
    for (size_t j = 0; j < middle.count; ++j) {
      copy.srcOffset = src.offset + i * outer.src + j * middle.src;
      copy.dstOffset = dst.offset + i * outer.dst + j * middle.dst;
      list.push_back(copy);
    }
  }
  return list;
}

}  // namespace ulysses::layout
