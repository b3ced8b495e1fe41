// Ways to do the same collective, in turns within one run: what the library is judged by.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/program.h"
#include "device/nccl.h"

namespace ulysses::perf {

struct Way {
  std::string name;
  bool ours = false;
  Collective* collective = nullptr;
};

// A way that is not the library's, over the data and the check of one that is; unchecked where it only moves as many
// bytes.
class OtherWay final : public Collective {
 public:
  OtherWay(Collective& data, std::function<Status()> call, const Buffer* scratch = nullptr, bool checked = true)
      : data_(data), call_(std::move(call)), scratch_(scratch), checked_(checked) {}

  const Communicator& comm() const override { return data_.comm(); }
  size_t bytes() const override { return data_.bytes(); }
  size_t count() const override { return data_.count(); }
  ulyssesDataType_t dtype() const override { return data_.dtype(); }
  std::string variant() const override { return data_.variant(); }
  double busFactor(int nranks) const override { return data_.busFactor(nranks); }
  void fill(uint64_t salt, bool inPlace) override { data_.fill(salt, inPlace); }
  Status run(bool) override { return call_(); }
  size_t countWrong(uint64_t salt, bool inPlace) const override {
    return checked_ ? data_.countWrong(salt, inPlace) : 0;
  }
  std::byte* output(bool inPlace) override { return data_.output(inPlace); }
  size_t outputBytes() const override { return data_.outputBytes(); }
  void touchBuffers() override {
    data_.touchBuffers();
    if (scratch_) touch(scratch_->data(), scratch_->bytes());
  }

 private:
  Collective& data_;
  const std::function<Status()> call_;
  const Buffer* const scratch_;
  const bool checked_;
};

// Collective. NCCL for a run on device memory; null where it isn't to be had, which is said once, with the reason.
Status openNccl(Run& run, std::unique_ptr<Nccl>* nccl);

// Checks every way once (unless -c 0), then times all in turns for `rounds` rounds. Prints and records medians, and of each of ours
// against each of the others the median of per-round ratios.
Status compareInTurns(Run& run, const std::vector<Way>& ways, int rounds);

}  // namespace ulysses::perf
