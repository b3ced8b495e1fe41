// How bytes move once all ranks have agreed. One interface: windows over host memory, over device memory, or a fallback.
#pragma once

#include <span>

#include "base/deadline.h"
#include "plan/contract.h"
#include "plan/schedule.h"

namespace ulysses {

// One agreed call.
struct Transfer {
  const Schedule& schedule;
  const void* const* in;    // [operand]
  void* const* out;         // [operand]
  std::span<const Contract* const> contracts;  // of all ranks
  Deadline deadline;
};

// The fallback: all ranks take it or none does.
class Fallback {
 public:
  virtual ~Fallback() = default;
  virtual const char* name() const = 0;
  virtual Status exchange(const Transfer& transfer) = 0;
};

}  // namespace ulysses
