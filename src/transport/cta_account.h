// Where the ranks on one GPU count their CTAs together: in memory that reaches them through the peers they meet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace ulysses {

// What one communicator sees of the ledgers of its rank's GPU: one, but where processes that never met before each came
// with their own; then it counts in all of them.
class CtaAccount {
 public:
  // Collective. `gpu` is the physical identity of this rank's; ranks that name the same one count together, with all
  // communicators that their processes have there. The outcome is agreed.
  static Result<std::unique_ptr<CtaAccount>> open(const std::string& gpu, ControlChannel& channel, Deadline deadline);

  // Of `capacity`, what nobody has reserved.
  uint32_t available(uint32_t capacity) const;
  // All of them or none.
  bool reserve(uint32_t ctas, uint32_t capacity);
  void giveBack(uint32_t ctas);

  size_t ledgers() const { return ledgers_.size(); }

 private:
  struct Ledger;
  struct Book;
  std::vector<std::shared_ptr<Ledger>> ledgers_;
};

}  // namespace ulysses
