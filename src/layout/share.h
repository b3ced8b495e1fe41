// Internal to the layout: one share of an exchange, and how it lies in a buffer.
#pragma once

#include <array>
#include <vector>

#include "layout/operand.h"

namespace ulysses::layout {

// How a share lies in some buffer, in bytes: where it begins and how far apart its planes, tokens and heads are.
struct Placement {
  size_t offset = 0, batch = 0, seq = 0, head = 0;
};

// What rank `from` holds and rank `to` is to get: [batch, seq, heads] runs of runBytes (one head of one token).
class Share {
 public:
  Share(const Operand& operand, int from, int to);

  size_t bytes() const { return batch_ * seq_.count * heads_.count * runBytes_; }

  Placement inInput(const Strides& in) const;    // of rank `from`
  Placement inOutput(const Strides& out) const;  // of rank `to`
  Placement inPayload() const;                   // dense, alone, [batch, seq, head, headDim]

  // The copies that take it from one placement to another; none for an empty share.
  std::vector<BlockCopy> copies(const Placement& src, const Placement& dst, CopyOrder order) const;
  size_t countCopies(const Placement& src, const Placement& dst, CopyOrder order) const;

 private:
  struct Dim {
    size_t count, src, dst;  // strides in bytes
  };
  // The loops that make up the copies, innermost first: the bytes of a row, the rows of a copy, and two over copies.
  using Nest = std::array<Dim, 4>;
  static Nest nest(const std::array<Dim, 3>& dims, size_t runBytes);
  static Nest bestNest(const std::array<Dim, 3>& dims, size_t runBytes);
  static bool better(const Nest& a, const Nest& b);
  Nest loops(const Placement& src, const Placement& dst, CopyOrder order) const;

  // The share's first token and head, counted in a rank's own tensor.
  struct Origin {
    size_t seq, head;
  };
  Placement place(const LocalShape& shape, const Strides& strides, const Origin& origin) const;

  size_t batch_, runBytes_, elementBytes_;
  Range seq_, heads_;  // global
  LocalShape input_, output_;
  Origin inputOrigin_, outputOrigin_;
};

}  // namespace ulysses::layout
