// Agreement over the shared control page. The steps are those of tests/model/agreement.pml.
#include "base/format.h"
#include <sched.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/futex.h"
#include "base/ticks.h"
#include "bootstrap/agreement.h"
#include "bootstrap/control_page.h"

namespace ulysses {
namespace {

constexpr long kSleepSliceMs = 5;  // how late a death is noticed at most
// Who destroys in the middle has mostly seen a death, by a connection that was closed before the lifeline tells others.
constexpr int64_t kDeathBeforeDepartureNs = 100000000;
constexpr int64_t kYieldNs = 200000;  // by the clock: on a busy machine one yield may take milliseconds

class PageAgreement final : public Agreement {
 public:
  PageAgreement(int rank, int nranks, std::byte* page, std::shared_ptr<void> keep, ControlChannel& channel,
                uint64_t firstRound)
      : rank_(rank),
        nranks_(nranks),
        keep_(std::move(keep)),
        page_(page, nranks),
        channel_(channel),
        next_(firstRound),
        // More ranks than cores: whoever spins keeps the one it waits for from running.
        spins_(nranks <= static_cast<int>(std::thread::hardware_concurrency()) ? 2000 : 20) {
    page_.rank(rank_).lane.store(Lane(firstRound - 1, 0).word());
    // What is counted for ever begins there too, so that a test of the one's wrap is one of the other's.
    const auto counted = static_cast<uint32_t>(firstRound - 1);
    for (int r = 0; r < nranks_; ++r) {
      page_.chunks(rank_, r).ready.store(counted);
      page_.chunks(r, rank_).consumed.store(counted);
    }
  }

  Status round(std::span<const std::byte> record, Deadline deadline) override {
    ULYSSES_TRY(before());
    const uint64_t k = next_;
    if (!record.empty()) std::memcpy(page_.record(k, rank_), record.data(), record.size());
    post(k);
    wait(k, deadline);
    return observe(k);
  }

  const std::byte* record(int rank) const override { return page_.record(next_ - 1, rank); }
  std::byte* payloadArea() override { return page_.payload(next_, rank_); }
  size_t payloadCapacity() const override { return ControlPage::kPayloadBytes; }
  const std::byte* payload(int rank) const override { return page_.payload(next_ - 1, rank); }

  Status post() override {
    ULYSSES_TRY(before());
    ++hits_;
    page_.rank(rank_).lane.store(Lane(next_ - 1, hits_).word());
    ringAll();
    return {};
  }

  Status asyncError() override {
    if (!sticky_.ok()) return sticky_;
    if (failed(next_)) return failure(decision(next_).kind(), decision(next_).rank());
    if (const int by = static_cast<int>(page_.aborted().load()); by != 0) return failure(Decision::Aborted, by - 1);
    for (int r = 0; r < nranks_; ++r)
      if (r != rank_ && channel_.dead(r) && page_.rank(r).departed.load() == 0) return failure(Decision::Died, r);
    return {};
  }

  void abort() override {
    if (!mine()) return;
    uint32_t nobody = 0;
    page_.aborted().compare_exchange_strong(nobody, static_cast<uint32_t>(rank_) + 1);
    ringAll();
  }

  void depart() override {
    if (!mine()) return;
    page_.rank(rank_).departed.store(1);
    ringAll();
  }

  Status idle(int missing, Deadline deadline) override {
    const uint64_t k = next_;
    if (failed(k)) return observe(k);
    const uint32_t bell = page_.rank(rank_).doorbell.load(std::memory_order_acquire);
    if (idleBell_ != bell) {  // rung since the last look: something may have become possible
      idleBell_ = bell;
      idleTurns_ = 0;
      return {};
    }
    if (++idleTurns_ <= spins_) {
      if (idleTurns_ == spins_) idleSince_ = steadyNs();
      cpuRelax();
      return {};
    }
    if (!idleArmed_ && steadyNs() - idleSince_ < kYieldNs) {
      sched_yield();
      return {};
    }
    // The caller looks once more before the sleep: ring() and this flag are ordered against each other.
    if (!idleArmed_) {
      page_.rank(rank_).sleeping.store(1);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      idleArmed_ = true;
      return {};
    }
    idleTurns_ = 0;
    futexWait(page_.rank(rank_).doorbell, bell, kSleepSliceMs);
    page_.rank(rank_).sleeping.store(0, std::memory_order_relaxed);
    idleArmed_ = false;
    if (const Trouble t = trouble(k, missing, deadline); t.kind != Decision::None) {
      fail(k, t);
      return observe(k);
    }
    return {};
  }

  void ring(int peer) override {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wake(page_.rank(peer));
  }

  ControlPage* page() override { return &page_; }

 private:
  // Not in a forked child, whose copy of the communicator shares the page with its parent.
  bool mine() const { return ::getpid() == owner_; }

  // After a sequentially consistent store or exchange of what the peer waits for.
  static void wake(ControlPage::Rank& r) {
    if (r.sleeping.load() == 0) return;
    r.doorbell.fetch_add(1, std::memory_order_acq_rel);
    futexWakeAll(r.doorbell);
  }

  struct Trouble {
    Decision::Kind kind = Decision::None;
    int rank = -1;
  };

  Decision decision(uint64_t k) const { return Decision(page_.round(k).decision.load(std::memory_order_acquire)); }
  bool final(uint64_t k) const {
    const Decision d = decision(k);
    return d.speaksOf(k);
  }
  // What ends a call before it begins. An abort does so by the word: a peer in the round may have ended it otherwise.
  Status before() {
    if (!sticky_.ok()) return sticky_;
    const uint64_t k = next_;
    if (const int by = static_cast<int>(page_.aborted().load(std::memory_order_relaxed)); by != 0)
      fail(k, {Decision::Aborted, by - 1});
    return failed(k) ? observe(k) : Status();
  }
  bool failed(uint64_t k) const {
    const Decision d = decision(k);
    return d.speaksOf(k) && d.state() == Decision::Failed;
  }

  // Shows that this rank has arrived. Whoever sees that all have, completes the round: the sequentially consistent
  // stores and loads make sure that of two last ranks at least one sees the other.
  void post(uint64_t k) {
    page_.round(k).posted[rank_].store(k);
    complete(k);
  }

  void complete(uint64_t k) {
    for (int r = 0; r < nranks_; ++r)
      if (page_.round(k).posted[r].load() != k) return;
    decide(k, Decision::complete(k));
  }

  // The word is open for round k while it still speaks of round k - 2, which everybody has observed. Whoever changes it
  // first has decided.
  void decide(uint64_t k, Decision outcome) {
    std::atomic<uint64_t>& word = page_.round(k).decision;
    uint64_t open = word.load(std::memory_order_acquire);
    if (!Decision(open).speaksOf(k) && word.compare_exchange_strong(open, outcome.word())) ringAll();
  }

  void fail(uint64_t k, Trouble t) {
    complete(k);
    decide(k, Decision::failed(k, t.rank, t.kind));
  }

  // Until the word of round k is final. Trouble ends the round for all, so the wait always ends by the word.
  void wait(uint64_t k, Deadline deadline) {
    for (int i = 0; i < spins_; ++i) {
      if (final(k)) return;
      cpuRelax();
    }
    for (const int64_t start = steadyNs(); steadyNs() - start < kYieldNs;) {
      if (final(k)) return;
      sched_yield();
    }
    ControlPage::Rank& me = page_.rank(rank_);
    for (;;) {
      complete(k);  // for a rank that has posted last, and died before it could
      if (const Trouble t = trouble(k, -1, deadline); t.kind != Decision::None) fail(k, t);
      if (final(k)) return;
      const uint32_t bell = me.doorbell.load(std::memory_order_acquire);
      me.sleeping.store(1);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!final(k)) futexWait(me.doorbell, bell, kSleepSliceMs);
      me.sleeping.store(0, std::memory_order_relaxed);
      if (final(k)) return;
    }
  }

  // Why round k cannot complete, if so. `awaited` is the rank a transfer waits for, or -1: all that have not posted.
  Trouble trouble(uint64_t k, int awaited, Deadline deadline) {
    if (const int by = static_cast<int>(page_.aborted().load()); by != 0) return {Decision::Aborted, by - 1};
    int missing = awaited, posted = -1, departed = -1, died = -1;
    bool settled = true;  // every rank has observed the round before: only then may this one fail and the next begin
    for (int r = 0; r < nranks_; ++r) {
      if (r == rank_) continue;
      const Lane lane(page_.rank(r).lane.load(std::memory_order_acquire));
      settled = settled && lane.observed(k - 1);
      if (died < 0 && page_.rank(r).departed.load() == 0 && channel_.dead(r)) died = r;
      if (page_.round(k).posted[r].load(std::memory_order_acquire) == k) continue;
      if (missing < 0) missing = r;
      if (r == died) return {Decision::Died, r};
      if (departed < 0 && page_.rank(r).departed.load() != 0) departed = r;
      if (posted < 0 && lane.observed(k - 1) && lane.hits() > hits_) posted = r;
    }
    if (departed >= 0) {
      if (died >= 0) return {Decision::Died, died};
      if (departureSeen_ == 0) departureSeen_ = steadyNs();
      if (steadyNs() - departureSeen_ > kDeathBeforeDepartureNs || deadline.passed()) return {Decision::Departed, departed};
      return {};
    }
    if (awaited < 0 && settled && posted >= 0) return {Decision::PostedInstead, posted};
    if (missing >= 0 && deadline.passed()) return {Decision::TimedOut, missing};
    return {};
  }

  // Takes the outcome of round k and moves on.
  Status observe(uint64_t k) {
    const Decision d = decision(k);
    if (idleArmed_) page_.rank(rank_).sleeping.store(0);
    idleArmed_ = false;
    idleTurns_ = 0;
    hits_ = 0;
    next_ = k + 1;
    const bool failed = d.state() == Decision::Failed;
    page_.rank(rank_).lane.store(Lane(k, 0).word(), failed ? std::memory_order_seq_cst : std::memory_order_release);
    if (!failed) return {};
    ringAll();  // a peer may wait for this observation
    Status status = failure(d.kind(), d.rank());
    if (d.kind() != Decision::PostedInstead) sticky_ = status;
    return status;
  }

  static Status failure(Decision::Kind kind, int rank) {
    switch (kind) {
      case Decision::TimedOut:
        return Status(ulyssesTimeout, formatText("rank {} did not make the call before the deadline", rank));
      case Decision::Died:
        return Status(ulyssesRemoteError, formatText("the process of rank {} has died", rank));
      case Decision::Aborted:
        return Status(ulyssesRemoteError, formatText("rank {} aborted the communicator", rank));
      case Decision::Departed:
        return Status(ulyssesRemoteError, formatText("rank {} has destroyed its communicator", rank));
      case Decision::PostedInstead:
        return Status(ulyssesMismatch,
                      formatText("rank {} used a resident parameter group where another rank makes a call that needs "
                                  "all ranks; calls must come in one order on all ranks",
                                  rank));
      case Decision::None: break;
    }
    return Status(ulyssesInternalError, formatText("a round failed without a reason, rank {}", rank));
  }

  void ringAll() {
    for (int r = 0; r < nranks_; ++r)
      if (r != rank_) wake(page_.rank(r));
  }

  const int rank_, nranks_;
  const pid_t owner_ = ::getpid();
  const std::shared_ptr<void> keep_;
  ControlPage page_;
  ControlChannel& channel_;
  uint64_t next_;         // the round this rank enters next
  uint32_t hits_ = 0;     // posted since round next_ - 1
  Status sticky_;
  const int spins_;
  int64_t departureSeen_ = 0;
  // State of idle(), kept between its calls.
  uint32_t idleBell_ = 0;
  int idleTurns_ = 0;
  int64_t idleSince_ = 0;
  bool idleArmed_ = false;
};

}  // namespace

std::unique_ptr<Agreement> makePageAgreement(int rank, int nranks, std::byte* page, std::shared_ptr<void> keep,
                                             ControlChannel& channel, uint64_t firstRound) {
  return std::make_unique<PageAgreement>(rank, nranks, page, std::move(keep), channel, firstRound);
}

}  // namespace ulysses
