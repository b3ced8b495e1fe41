#include "a2a/exchange.h"

#include "common/buffer.h"
#include "common/pattern.h"

namespace ulysses::perf {

void Exchange::fill(uint64_t salt, bool) {
  write(comm_.device(), input_.now(), in_.bytes(), [&](std::byte* data) {
    in_.forEachRun([&](size_t local, size_t global, size_t n) {
      perf::fill(data + local * in_.elementBytes, in_.elementBytes, n, global, salt);
    });
  });
  poison(comm_.device(), output_.now(), out_.bytes());
}

Status Exchange::run(bool) {
  const Geometry& g = geometry_;
  return comm_.status(comm_.library().A2A(input_.now(), output_.now(), g.batch, g.seq, g.heads, g.headDim, g.dtype, g.direction,
                                          comm_.get(), comm_.stream()),
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
  if (comm_.device()) return;
  touch(input_.now(), in_.bytes());
  touch(output_.now(), out_.bytes());
}

size_t Exchange::countWrong(uint64_t salt, bool) const {
  return read(comm_.device(), output_.now(), out_.bytes(), [&](const std::byte* data) {
    size_t wrong = 0;
    out_.forEachRun([&](size_t local, size_t global, size_t n) {
      wrong += perf::countWrong(data + local * out_.elementBytes, out_.elementBytes, n, global, salt);
    });
    return wrong;
  });
}

}  // namespace ulysses::perf
