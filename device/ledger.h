// Kernels that spin for each other must run together: a ledger per device counts the CTAs that the live communicators
// of all ranks on it may have in flight, so that they always fit.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace ulysses::device {

// Counts in a word that all parties share: in shared memory for the ranks of several processes. Zero at first.
class CtaLedger {
 public:
  // Gives the CTAs back when it ends.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept
        : used_(std::exchange(other.used_, nullptr)), ctas_(std::exchange(other.ctas_, 0)) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(used_, other.used_);
      std::swap(ctas_, other.ctas_);
      return *this;
    }
    ~Reservation() { release(); }

    uint32_t ctas() const { return ctas_; }
    explicit operator bool() const { return ctas_ != 0; }
    void release() {
      if (used_ != nullptr) used_->fetch_sub(ctas_, std::memory_order_relaxed);
      used_ = nullptr;
      ctas_ = 0;
    }

   private:
    friend class CtaLedger;
    Reservation(std::atomic<uint32_t>* used, uint32_t ctas) : used_(used), ctas_(ctas) {}
    std::atomic<uint32_t>* used_ = nullptr;
    uint32_t ctas_ = 0;
  };

  CtaLedger(std::atomic<uint32_t>& used, uint32_t capacity) : used_(&used), capacity_(capacity) {}

  // All of `ctas`, or none where they do not fit beside what is reserved.
  Reservation reserve(uint32_t ctas) {
    uint32_t used = this->used();
    do {
      if (ctas > capacity_ || used > capacity_ - ctas) return {};
    } while (!used_->compare_exchange_weak(used, used + ctas, std::memory_order_relaxed));
    return {used_, ctas};
  }

  uint32_t used() const { return used_->load(std::memory_order_relaxed); }
  uint32_t capacity() const { return capacity_; }

 private:
  std::atomic<uint32_t>* used_;
  uint32_t capacity_;
};

}  // namespace ulysses::device
