// The exchange under test: one geometry, one direction, bound to its buffers.
#pragma once

#include <string>

#include "a2a/geometry.h"
#include "common/buffer.h"
#include "common/collective.h"

namespace ulysses::perf {

class Exchange final : public Collective {
 public:
  Exchange(const Geometry& geometry, int nranks, int rank, const Communicator& comm, Turns in, Turns out)
      : geometry_(geometry),
        in_(inputBlock(geometry, nranks, rank)),
        out_(outputBlock(geometry, nranks, rank)),
        bytes_(inputBlock(geometry, nranks, 0).bytes()),
        comm_(comm),
        input_(in),
        output_(out) {}

  const Communicator& comm() const override { return comm_; }
  // Rank 0's operand: with balanced splits no rank's is larger.
  size_t bytes() const override { return bytes_; }
  size_t count() const override { return bytes_ / in_.elementBytes; }
  ulyssesDataType_t dtype() const override { return geometry_.dtype; }
  std::string variant() const override { return geometry_.direction == ulyssesScatterHeads ? "scatter" : "gather"; }
  double busFactor(int nranks) const override { return (nranks - 1.0) / nranks; }

  void fill(uint64_t salt, bool inPlace) override;
  Status run(bool inPlace) override;
  Result<int> stagedChunks() const override;
  size_t countWrong(uint64_t salt, bool inPlace) const override;
  std::byte* output(bool) override { return output_.now(); }
  void rotate() override {
    input_.next();
    output_.next();
  }
  size_t outputBytes() const override { return out_.bytes(); }
  void touchBuffers() override;

 private:
  const Geometry geometry_;
  const Block in_, out_;
  const size_t bytes_;
  const Communicator& comm_;
  Turns input_, output_;
};

}  // namespace ulysses::perf
