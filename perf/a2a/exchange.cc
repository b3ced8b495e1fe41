#include "a2a/exchange.h"

#include <cstring>

#include "common/buffer.h"
#include "common/pattern.h"

namespace ulysses::perf {

void Exchange::fill(uint64_t salt, bool) {
  in_.forEachRun([&](size_t local, size_t global, size_t n) {
    perf::fill(input_ + local * in_.elementBytes, in_.elementBytes, n, global, salt);
  });
  if (out_.bytes() > 0) std::memset(output_, kPoison, out_.bytes());
}

Status Exchange::run(bool) {
  const Geometry& g = geometry_;
  return comm_.status(comm_.library().A2A(input_, output_, g.batch, g.seq, g.heads, g.headDim, g.dtype, g.direction,
                                          comm_.get(), nullptr),
                      "ulyssesA2A");
}

Result<int> Exchange::stagedChunks() const {
  ulyssesA2ADesc_t desc = ULYSSES_A2A_DESC_INITIALIZER;
  desc.batch = geometry_.batch;
  desc.seq = geometry_.seq;
  desc.heads = geometry_.heads;
  desc.headDim = geometry_.headDim;
  desc.dtype = geometry_.dtype;
  desc.direction = geometry_.direction;
  return comm_.stagedChunks(desc);
}

void Exchange::touchBuffers() {
  touch(input_, in_.bytes());
  touch(output_, out_.bytes());
}

size_t Exchange::countWrong(uint64_t salt, bool) const {
  size_t wrong = 0;
  out_.forEachRun([&](size_t local, size_t global, size_t n) {
    wrong += perf::countWrong(output_ + local * out_.elementBytes, out_.elementBytes, n, global, salt);
  });
  return wrong;
}

}  // namespace ulysses::perf
