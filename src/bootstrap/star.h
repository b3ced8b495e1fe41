// Allgather over a star of connections. The hub gathers one contribution of every rank and answers all of them, with
// the blobs or with one error: so all ranks get the same code and text, and a death is noticed at once.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/frame.h"

namespace ulysses {

std::string nameRanks(const std::vector<int>& ranks);  // "rank 2", "ranks 1, 3 and 5"

// A rank's blob, or the error of its own that all ranks are to return instead.
struct Contribution {
  Status status;
  Bytes blob;
};

class Star {
 public:
  explicit Star(int nranks) : nranks_(nranks), owner_(::getpid()), lifelines_(static_cast<size_t>(nranks), -1) {}
  virtual ~Star() = default;
  Star(const Star&) = delete;
  Star& operator=(const Star&) = delete;

  // Collective. A refused contribution leaves the star usable, any other failure ends it.
  virtual Status allgather(const Contribution& mine, size_t limit, std::vector<Bytes>& all, Deadline deadline) = 0;

  // Collective, right after an allgather in which all ranks have learnt `counts`: every rank gets the descriptors of
  // the others into all[r]. Shortfalls (all[r] shorter than counts[r]) and failures are for the next allgather to agree
  // on.
  virtual void passFds(const std::vector<size_t>& counts, std::span<const int> mine,
                       std::vector<std::vector<UniqueFd>>& all, Deadline deadline) = 0;

  // This end of the connection to rank r; -1 where there is none.
  virtual int connection(int r) const = 0;

  // A descriptor that becomes readable when rank r's process is dead: it tells also when a forked child of that process
  // keeps the connection open.
  void watch(int r, int lifeline) { lifelines_[static_cast<size_t>(r)] = lifeline; }

  bool usable() const { return broken_.ok(); }

 protected:
  // Ends the connection for both sides at once, but not from a forked child, which shares it with its parent.
  void hangUp(int connection) const;

  int nranks_;
  pid_t owner_;
  std::vector<int> lifelines_;
  uint64_t operation_ = 0;
  Status broken_;
};

// The middle of the star. `self` is its own rank, -1 when it only serves.
class StarHub final : public Star {
 public:
  // spokes[r] is the connection to rank r; a missing one is reported by the first exchange, as `missing`.
  StarHub(std::vector<UniqueFd> spokes, int self, const Status& missing);
  ~StarHub() override;

  Status allgather(const Contribution& mine, size_t limit, std::vector<Bytes>& all, Deadline deadline) override;
  void passFds(const std::vector<size_t>& counts, std::span<const int> mine, std::vector<std::vector<UniqueFd>>& all,
               Deadline deadline) override;
  int connection(int r) const override { return spokes_[static_cast<size_t>(r)].get(); }

 private:
  Status gather(std::vector<FrameReader>& readers, Deadline& deadline);
  Status advance(int r, FrameReader& reader);
  void pollSpokes(const std::vector<FrameReader>& readers, Deadline deadline);
  void broadcast(const Bytes& frame, Deadline deadline);
  void lose(int r, Status why);
  Status fail(Status why);
  bool waitsFor(int r) const { return r != self_ && lost_[static_cast<size_t>(r)].ok(); }

  std::vector<UniqueFd> spokes_;
  std::vector<Status> lost_;  // why nothing more is heard of rank r
  int self_;
};

// A rank's end. `hub` names the other side in messages.
class StarSpoke final : public Star {
 public:
  StarSpoke(UniqueFd connection, int rank, int nranks, std::string hub)
      : Star(nranks), connection_(std::move(connection)), rank_(rank), hub_(std::move(hub)) {}
  ~StarSpoke() override;

  Status allgather(const Contribution& mine, size_t limit, std::vector<Bytes>& all, Deadline deadline) override;
  void passFds(const std::vector<size_t>& counts, std::span<const int> mine, std::vector<std::vector<UniqueFd>>& all,
               Deadline deadline) override;
  int connection(int r) const override { return r == 0 ? connection_.get() : -1; }

  // The hub has closed the connection without a word.
  bool closedSilently() const { return closedSilently_; }

 private:
  Status exchange(const Bytes& frame, FrameReader& answer, Deadline deadline);
  Status giveUp(Status why);

  UniqueFd connection_;
  int rank_;
  std::string hub_;
  bool closedSilently_ = false;
};

}  // namespace ulysses
