// How a thread enters a call of a communicator.
#pragma once

#include <mutex>

#include "api/communicator.h"

namespace ulysses {

// Holds the communicator for one call. Where two threads meet, the second one's call becomes an error on all ranks.
class Communicator::Entry {
 public:
  explicit Entry(Communicator& c) : lock_(c.calls_, std::try_to_lock) {
    if (!lock_.owns_lock()) {
      contended_ = true;
      lock_.lock();
    }
    finalized_ = c.finalized_;
  }
  Status check() const {
    if (finalized_) return Status(ulyssesInvalidUsage, "the communicator has been finalized");
    if (contended_)
      return Status(ulyssesInvalidUsage, "two threads were in calls of one communicator at once; make them one at a time");
    return {};
  }

 private:
  std::unique_lock<std::mutex> lock_;
  bool contended_ = false, finalized_ = false;
};

}  // namespace ulysses
