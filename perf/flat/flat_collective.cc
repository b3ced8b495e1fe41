#include "flat/flat_collective.h"

#include "common/buffer.h"
#include "common/pattern.h"

namespace ulysses::perf {

size_t flatCount(size_t bytes, int nranks, ulyssesDataType_t dtype) {
  return bytes / static_cast<size_t>(nranks) / 16 * 16 / elementBytes(dtype);
}

// Element i of the block from rank s to rank r has the index (s * P + r) * count + i; an all-gather's blocks go to all
// alike, as if to rank 0.
void FlatCollective::fill(uint64_t salt, bool inPlace) {
  if (bytes() == 0) return;
  const size_t blocks = kind_ == FlatKind::AllGather ? 1 : nranks_;
  poison(comm_.device(), output_.now(), bytes());
  write(comm_.device(), input(inPlace), blocks * shareBytes(), [&](std::byte* data) {
    perf::fill(data, elementBytes(dtype_), blocks * count_, rank_ * nranks_ * count_, salt);
  });
}

Status FlatCollective::run(bool inPlace) {
  if (kind_ == FlatKind::AllGather) {
    return comm_.status(comm_.library().AllGather(input(inPlace), output_.now(), count_, dtype_, comm_.get(), comm_.stream()),
                        "ulyssesAllGather");
  }
  return comm_.status(comm_.library().AlltoAll(input_.now(), output_.now(), count_, dtype_, comm_.get(), comm_.stream()),
                      "ulyssesAlltoAll");
}

// As an exchange whose messages are as long: one position and one head for every rank.
Result<int> FlatCollective::stagedChunks() const {
  ulyssesA2ADesc_t desc = ULYSSES_A2A_DESC_INITIALIZER;
  desc.batch = 1;
  desc.seq = desc.heads = nranks_;
  desc.headDim = count_;
  desc.dtype = dtype_;
  return comm_.stagedChunks(desc);
}

size_t FlatCollective::countWrong(uint64_t salt, bool) const {
  const size_t to = kind_ == FlatKind::AllGather ? 0 : rank_;
  return read(comm_.device(), output_.now(), bytes(), [&](const std::byte* data) {
    size_t wrong = 0;
    for (size_t from = 0; from < nranks_; ++from) {
      wrong += perf::countWrong(data + from * shareBytes(), elementBytes(dtype_), count_,
                                (from * nranks_ + to) * count_, salt);
    }
    return wrong;
  });
}

void FlatCollective::touchBuffers() {
  if (comm_.device()) return;
  touch(input_.now(), kind_ == FlatKind::AllGather ? shareBytes() : bytes());
  touch(output_.now(), bytes());
}

}  // namespace ulysses::perf
