#include <condition_variable>
#include <mutex>

#include "base/format.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/frame.h"
#include "bootstrap/star.h"

namespace ulysses {

namespace {

// Where the threads meet. A round is over when all have put their block down; its blocks stay until the next is over,
// which needs every thread to have taken them.
class MeetingPoint {
 public:
  MeetingPoint(int nranks, Deadline deadline)
      : deadline_(deadline),
        arriving_(static_cast<size_t>(nranks)),
        blocks_(static_cast<size_t>(nranks)),
        arrived_(static_cast<size_t>(nranks), false),
        left_(static_cast<size_t>(nranks), false) {}

  Status allgather(int rank, const void* send, void* recv, size_t bytes) {
    std::unique_lock lock(mutex_);
    ULYSSES_TRY(broken_);
    const auto* block = static_cast<const std::byte*>(send);
    arriving_[static_cast<size_t>(rank)].assign(block, block + bytes);
    arrived_[static_cast<size_t>(rank)] = true;
    const uint64_t round = rounds_;
    if (absent().empty()) {
      blocks_.swap(arriving_);
      arrived_.assign(arrived_.size(), false);
      ++rounds_;
      changed_.notify_all();
    }
    while (rounds_ == round && broken_.ok()) {
      for (const int r : absent()) {
        if (left_[static_cast<size_t>(r)]) {
          broken_ = {ulyssesRemoteError,
                     formatText("rank {} of {} has left before all ranks were set up", r, nranks())};
        }
      }
      if (broken_.ok() && deadline_.passed()) {
        broken_ = {ulyssesTimeout, formatText("timed out waiting for {} of {} in this process; check that a thread "
                                              "runs for it, or raise timeoutMs or ULYSSES_TIMEOUT",
                                              nameRanks(absent()), nranks())};
      }
      if (!broken_.ok()) {
        changed_.notify_all();
        break;
      }
      wait(lock);
    }
    if (rounds_ == round) return broken_;
    return copyEqualBlocks(blocks_, recv, bytes);
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_[static_cast<size_t>(rank)] = true;
    changed_.notify_all();
  }

 private:
  int nranks() const { return static_cast<int>(arrived_.size()); }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (int r = 0; r < nranks(); ++r) {
      if (!arrived_[static_cast<size_t>(r)]) ranks.push_back(r);
    }
    return ranks;
  }

  void wait(std::unique_lock<std::mutex>& lock) {
    const int left = deadline_.remainingMs();
    if (left < 0) return changed_.wait(lock);
    changed_.wait_for(lock, std::chrono::milliseconds(left + 1));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const Deadline deadline_;
  std::vector<Bytes> arriving_, blocks_;
  std::vector<bool> arrived_, left_;
  uint64_t rounds_ = 0;
  Status broken_;
};

// A rank's place at the meeting point: when the last copy of its allgather is gone, the others stop waiting for it.
struct Seat {
  Seat(std::shared_ptr<MeetingPoint> at, int r) : point(std::move(at)), rank(r) {}
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;
  ~Seat() { point->leave(rank); }

  std::shared_ptr<MeetingPoint> point;
  int rank;
};

}  // namespace

std::vector<Allgather> inProcessAllgather(int nranks, Deadline deadline) {
  const auto point = std::make_shared<MeetingPoint>(nranks, deadline);
  std::vector<Allgather> ends;
  for (int r = 0; r < nranks; ++r) {
    const auto seat = std::make_shared<Seat>(point, r);
    ends.push_back([seat](const void* send, void* recv, size_t bytes) {
      return seat->point->allgather(seat->rank, send, recv, bytes);
    });
  }
  return ends;
}

}  // namespace ulysses
