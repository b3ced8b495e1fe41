// One line of the table: a collective at one size and type, bound to its buffers.
#pragma once

#include <ulysses/ulysses.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "common/library.h"

namespace ulysses::perf {

class Collective {
 public:
  virtual ~Collective() = default;

  virtual const Communicator& comm() const = 0;
  virtual size_t bytes() const = 0;  // the size column
  virtual size_t count() const = 0;  // the count column
  virtual ulyssesDataType_t dtype() const = 0;
  virtual std::string variant() const { return "-"; }  // the appended column, for instance the direction
  virtual bool hasInPlace() const { return false; }
  // busbw = algbw * this: what crosses between ranks, of what the size column says.
  virtual double busFactor(int nranks) const = 0;

  virtual void fill(uint64_t salt, bool inPlace) = 0;  // fresh input, poisoned output
  virtual Status run(bool inPlace) = 0;
  // Pieces that the last run moved in, where it was staged. Collective.
  virtual Result<int> stagedChunks() const { return 0; }
  virtual size_t countWrong(uint64_t salt, bool inPlace) const = 0;
  virtual std::byte* output(bool inPlace) = 0;
  virtual size_t outputBytes() const = 0;
  // The next call's buffers are others, where there are several.
  virtual void rotate() {}
  virtual void touchBuffers() = 0;  // so that no page fault is left for what is measured next
};

}  // namespace ulysses::perf
