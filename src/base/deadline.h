// A point in monotonic time after which a wait gives up. Wall-clock jumps do not move it. Nor does a suspended machine:
// CLOCK_MONOTONIC stands still meanwhile (CLOCK_BOOTTIME would not), as do all ranks of that machine, so the time that
// is left is the same when they wake. Ranks on other machines count on: to them the sleepers are late, or gone once TCP
// has had no answer for half a minute.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>

namespace ulysses {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // -1 waits for ever.
  static Deadline afterMs(long ms) {
    Deadline d;
    d.never_ = ms < 0;
    if (!d.never_) d.at_ = Clock::now() + std::chrono::milliseconds(ms);
    return d;
  }
  // The same from a clock that costs next to nothing and may be some milliseconds behind: never too early.
  static Deadline roughlyAfterMs(long ms) {
    Deadline d;
    d.never_ = ms < 0;
    if (d.never_) return d;
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    constexpr long kCoarseMs = 10;
    d.at_ = Clock::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec)) +
            std::chrono::milliseconds(ms + kCoarseMs);
    return d;
  }
  static Deadline never() { return afterMs(-1); }

  bool passed() const { return !never_ && Clock::now() >= at_; }

  // Milliseconds left, for poll(): -1 when there is no limit, never negative otherwise. Rounded up: who waits so long, or
  // is told so by a peer, is not early.
  int remainingMs() const {
    if (never_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
  }

  friend Deadline earlier(const Deadline& a, const Deadline& b) {
    if (a.never_) return b;
    if (b.never_) return a;
    return a.at_ <= b.at_ ? a : b;
  }

  // `ms` later, and at least `ms` from now: for the one who only waits for another's word about this deadline.
  Deadline extendedMs(long ms) const {
    Deadline d = *this;
    if (!never_) d.at_ = std::max(at_, Clock::now()) + std::chrono::milliseconds(ms);
    return d;
  }

 private:
  bool never_ = true;
  Clock::time_point at_{};
};

}  // namespace ulysses
