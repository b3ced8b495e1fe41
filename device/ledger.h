// Kernels that spin for each other must run together: a ledger per device counts the CTAs that the live communicators
// of all ranks on it may have in flight, so that they always fit.
#pragma once

#include <atomic>
#include <cstdint>

namespace ulysses::device {

// Counts in a word that all parties share: in shared memory for the ranks of several processes. Zero at first.
class CtaLedger {
 public:
  explicit CtaLedger(std::atomic<uint32_t>& used) : used_(&used) {}

  // All of `ctas`, or none where they do not fit beside what is reserved.
  bool reserve(uint32_t ctas, uint32_t capacity) {
    uint32_t used = this->used();
    do {
      if (ctas > capacity || used > capacity - ctas) return false;
    } while (!used_->compare_exchange_weak(used, used + ctas, std::memory_order_relaxed));
    return true;
  }
  void giveBack(uint32_t ctas) { used_->fetch_sub(ctas, std::memory_order_relaxed); }

  uint32_t used() const { return used_->load(std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t>* used_;
};

}  // namespace ulysses::device
