// The flat collectives under test, with nccl-tests' meaning of size and count.
#pragma once

#include "base/datatype.h"
#include "common/buffer.h"
#include "common/collective.h"

namespace ulysses::perf {

enum class FlatKind { AllGather, AlltoAll };

// What one rank sends to each (all-to-all) or to all (all-gather), for a size column of about `bytes`: the share of one
// rank, in whole elements, down to a multiple of 16 bytes.
size_t flatCount(size_t bytes, int nranks, ulyssesDataType_t dtype);

class FlatCollective final : public Collective {
 public:
  // `out` holds the whole of the size column; `in` the same for an all-to-all, one rank's share for an all-gather.
  FlatCollective(FlatKind kind, size_t count, ulyssesDataType_t dtype, int nranks, int rank, const Communicator& comm,
                 Turns in, Turns out)
      : kind_(kind),
        count_(count),
        dtype_(dtype),
        nranks_(static_cast<size_t>(nranks)),
        rank_(static_cast<size_t>(rank)),
        comm_(comm),
        input_(in),
        output_(out) {}

  const Communicator& comm() const override { return comm_; }
  size_t bytes() const override { return nranks_ * shareBytes(); }
  size_t count() const override { return count_; }
  ulyssesDataType_t dtype() const override { return dtype_; }
  double busFactor(int nranks) const override { return (nranks - 1.0) / nranks; }
  // An all-to-all can't be in place.
  bool hasInPlace() const override { return kind_ == FlatKind::AllGather; }

  void fill(uint64_t salt, bool inPlace) override;
  Status run(bool inPlace) override;
  Result<int> stagedChunks() const override;
  size_t countWrong(uint64_t salt, bool inPlace) const override;
  std::byte* output(bool) override { return output_.now(); }
  void rotate() override {
    input_.next();
    output_.next();
  }
  size_t outputBytes() const override { return bytes(); }
  void touchBuffers() override;

  size_t shareBytes() const { return count_ * elementBytes(dtype_); }

 private:
  std::byte* input(bool inPlace) const { return inPlace ? output_.now() + rank_ * shareBytes() : input_.now(); }

  const FlatKind kind_;
  const size_t count_;
  const ulyssesDataType_t dtype_;
  const size_t nranks_, rank_;
  const Communicator& comm_;
  Turns input_, output_;
};

}  // namespace ulysses::perf
