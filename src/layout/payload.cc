#include "layout/payload.h"

#include "layout/share.h"

namespace ulysses::layout {

size_t payloadBytes(const Operand& operand, int from, int to) {
  return Share(operand, from, to).bytes();
}

std::vector<BlockCopy> packCopies(const Operand& operand, int from, int to, const Strides& in) {
  const Share share(operand, from, to);
  return share.copies(share.inInput(in), share.inPayload(), CopyOrder::Payload);
}

std::vector<BlockCopy> unpackCopies(const Operand& operand, int from, int to, const Strides& out) {
  const Share share(operand, from, to);
  return share.copies(share.inPayload(), share.inOutput(out), CopyOrder::Payload);
}

size_t countCopies(const Operand& operand, int from, int to, const Strides& in, const Strides& out) {
  const Share share(operand, from, to);
  const Placement src = share.inInput(in), dst = share.inOutput(out), payload = share.inPayload();
  return share.countCopies(src, dst, CopyOrder::Payload) + share.countCopies(src, payload, CopyOrder::Payload) +
         share.countCopies(payload, dst, CopyOrder::Payload);
}

PayloadMap::PayloadMap(std::vector<BlockCopy> copies) : copies_(std::move(copies)) {
  begins_.reserve(copies_.size() + 1);
  for (const BlockCopy& copy : copies_) begins_.push_back(begins_.back() + copy.bytes());
}

}  // namespace ulysses::layout
