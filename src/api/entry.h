// How a thread enters a call of a communicator.
#pragma once

#include <mutex>

#include "api/communicator.h"

namespace ulysses {

// Holds the communicator for one call. Where two threads meet, the second one's call becomes an error on all ranks. A look
// at the communicator from another thread (its state, its errors) is no call: it takes the lock alone.
class Communicator::Entry {
 public:
  explicit Entry(Communicator& c) : comm_(c), contended_(c.callers_.fetch_add(1) > 0), lock_(c.calls_) {
    finalized_ = c.finalized_;
  }
  ~Entry() { comm_.callers_.fetch_sub(1); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  Status check() const {
    if (finalized_) return Status(ulyssesInvalidUsage, "the communicator has been finalized");
    if (contended_)
      return Status(ulyssesInvalidUsage, "two threads were in calls of one communicator at once; make them one at a time");
    return {};
  }

 private:
  Communicator& comm_;
  const bool contended_;
  std::unique_lock<std::mutex> lock_;
  bool finalized_ = false;
};

}  // namespace ulysses
