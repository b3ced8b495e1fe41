#include "bootstrap/star.h"

#include <poll.h>
#include <sys/socket.h>

#include "base/format.h"
#include "bootstrap/socket.h"

namespace ulysses {

namespace {

// The hub speaks for all, also about the deadline: it may take a little longer to say so than the deadline allows, and
// the ranks wait a little longer than that to hear it.
constexpr int kHubGraceMs = 300;
constexpr int kSpokeGraceMs = 1000;

size_t answerLimit(int nranks, size_t limit) {
  return static_cast<size_t>(nranks) * (limit + sizeof(uint64_t));
}

Bytes contributionFrame(const Contribution& mine, uint64_t operation, Deadline deadline) {
  FrameHeader header;
  header.operation = operation;
  header.remainingMs = deadline.remainingMs();
  if (mine.status.ok()) return makeFrame(header, mine.blob);
  header.kind = FrameKind::Refusal;
  return makeTextFrame(header, mine.status);
}

std::vector<FrameReader> makeReaders(int count, size_t limit) {
  std::vector<FrameReader> readers;
  for (int r = 0; r < count; ++r) readers.emplace_back(limit);
  return readers;
}

}  // namespace

std::string nameRanks(const std::vector<int>& ranks) {
  constexpr size_t kMaxNamed = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == kMaxNamed) return text + formatText(" and {} more", ranks.size() - i);
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

void Star::hangUp(int connection) const {
  if (connection >= 0 && ::getpid() == owner_) ::shutdown(connection, SHUT_RDWR);
}

StarHub::StarHub(std::vector<UniqueFd> spokes, int self, const Status& missing)
    : Star(static_cast<int>(spokes.size())), spokes_(std::move(spokes)), lost_(spokes_.size()), self_(self) {
  for (int r = 0; r < nranks_; ++r) {
    if (r != self_ && connection(r) < 0) lost_[static_cast<size_t>(r)] = missing;
  }
}

StarHub::~StarHub() {
  for (const UniqueFd& spoke : spokes_) hangUp(spoke.get());
}

// The descriptor stays open until the star ends, since others may be polling it as a lifeline.
void StarHub::lose(int r, Status why) {
  hangUp(connection(r));
  lost_[static_cast<size_t>(r)] = std::move(why);
}

// Ends the star with one error for all.
Status StarHub::fail(Status why) {
  broken_ = std::move(why);
  FrameHeader header;
  header.kind = FrameKind::Failure;
  header.operation = operation_;
  broadcast(makeTextFrame(header, broken_), Deadline::afterMs(kHubGraceMs));
  return broken_;
}

// Reads what has come of rank r. An error here ends the star; a closed connection is judged by the caller.
Status StarHub::advance(int r, FrameReader& reader) {
  switch (reader.advance(connection(r))) {
    case FrameReader::Partial:
      return {};
    case FrameReader::Closed:
      lose(r, {ulyssesRemoteError, formatText("rank {} of {} has died or left: its connection is closed", r, nranks_)});
      return {};
    case FrameReader::Malformed:
      return {ulyssesInternalError, formatText("rank {} sent a malformed frame (magic {:#x}, length {})", r,
                                               reader.header.magic, reader.header.length)};
    case FrameReader::Complete:
      break;
  }
  const bool expected = reader.header.kind == FrameKind::Contribution || reader.header.kind == FrameKind::Refusal ||
                        reader.header.kind == FrameKind::Descriptors;
  if (!expected || reader.header.operation != operation_) {
    return {
        ulyssesInternalError,
        formatText("rank {} is at control exchange {} (frame kind {}) while the others are at {}; all ranks must make "
                   "the same calls in the same order",
                   r, reader.header.operation, static_cast<uint32_t>(reader.header.kind), operation_)};
  }
  return {};
}

// Waits until a rank that is still awaited sends something, or any rank dies.
void StarHub::pollSpokes(const std::vector<FrameReader>& readers, Deadline deadline) {
  std::vector<pollfd> fds;
  for (int r = 0; r < nranks_; ++r) {
    const auto i = static_cast<size_t>(r);
    const bool awaited = !readers[i].complete();
    fds.push_back({waitsFor(r) ? connection(r) : -1, static_cast<short>(awaited ? POLLIN : POLLRDHUP), 0});
  }
  for (int r = 0; r < nranks_; ++r) fds.push_back({waitsFor(r) ? lifelines_[static_cast<size_t>(r)] : -1, POLLIN, 0});
  pollUntil(fds, deadline);
  for (int r = 0; r < nranks_; ++r) {
    const auto i = static_cast<size_t>(r);
    const bool left = readers[i].complete() && fds[i].revents != 0;
    const bool died = fds[static_cast<size_t>(nranks_) + i].revents != 0;
    if (died) lose(r, {ulyssesRemoteError, formatText("rank {} of {} has died", r, nranks_)});
    if (left && !died) lose(r, {ulyssesRemoteError, formatText("rank {} of {} has left, or given up", r, nranks_)});
  }
}

// On success `deadline` is the earliest of all ranks.
Status StarHub::gather(std::vector<FrameReader>& readers, Deadline& deadline) {
  bool begun = self_ >= 0;
  for (bool settled = false;;) {
    std::vector<int> missing;
    for (int r = 0; r < nranks_; ++r) {
      FrameReader& reader = readers[static_cast<size_t>(r)];
      if (!waitsFor(r) || reader.complete()) continue;
      ULYSSES_TRY(advance(r, reader));
      begun = begun || reader.begun();
      if (reader.complete()) {
        deadline = earlier(deadline, Deadline::afterMs(reader.header.remainingMs));
      } else {
        missing.push_back(r);
      }
    }
    // While nobody asks for an exchange, ranks may leave one after the other.
    size_t present = self_ >= 0 ? 1 : 0;
    const Status* firstLost = nullptr;
    for (int r = 0; r < nranks_; ++r) {
      if (waitsFor(r)) ++present;
      const Status& lost = lost_[static_cast<size_t>(r)];
      if (!lost.ok() && firstLost == nullptr) firstLost = &lost;
    }
    if (firstLost != nullptr && (begun || present == 0)) return *firstLost;
    if (missing.empty() && settled) return {};
    if (begun && deadline.passed() && !missing.empty()) {
      return {ulyssesTimeout,
              formatText(
                  "timed out waiting for {} of {} (control exchange {}); check that it is running and makes the same "
                  "calls as the others, or raise timeoutMs or ULYSSES_TIMEOUT",
                  nameRanks(missing), nranks_, operation_)};
    }
    // When all have come, one last look for a rank that has given up meanwhile.
    settled = missing.empty();
    pollSpokes(readers, settled ? Deadline::afterMs(0) : begun ? deadline : Deadline::never());
  }
}

Status StarHub::allgather(const Contribution& mine, size_t limit, std::vector<Bytes>& all, Deadline deadline) {
  if (!broken_.ok()) return broken_;
  ++operation_;
  FrameHeader header;
  header.operation = operation_;

  std::vector<FrameReader> readers = makeReaders(nranks_, limit);
  const Status gathered = gather(readers, deadline);
  if (!gathered.ok()) return fail(gathered);
  all.assign(static_cast<size_t>(nranks_), {});
  for (int r = 0; r < nranks_; ++r) {
    FrameReader& reader = readers[static_cast<size_t>(r)];
    Status refusal = r == self_ ? mine.status : (reader.header.kind == FrameKind::Refusal ? reader.status() : Status());
    if (!refusal.ok()) {
      header.kind = FrameKind::Refusal;
      broadcast(makeTextFrame(header, refusal), deadline.extendedMs(kHubGraceMs));
      return refusal;
    }
    all[static_cast<size_t>(r)] = r == self_ ? mine.blob : std::move(reader.payload);
  }
  header.kind = FrameKind::Result;
  broadcast(makeFrame(header, packBlobs(all)), deadline.extendedMs(kHubGraceMs));
  return {};
}

// Sends to all at once. A rank that dies or stalls meanwhile is reported by the next exchange: the others have their
// answer, so this one is settled.
void StarHub::broadcast(const Bytes& frame, Deadline deadline) {
  std::vector<size_t> sent(static_cast<size_t>(nranks_), 0);
  for (;;) {
    std::vector<pollfd> fds;
    std::vector<int> pending;
    for (int r = 0; r < nranks_; ++r) {
      size_t& done = sent[static_cast<size_t>(r)];
      if (!waitsFor(r) || done == frame.size()) continue;
      const ssize_t n = sendSome(connection(r), frame.data() + done, frame.size() - done);
      if (n < 0) {
        lose(r,
             {ulyssesRemoteError, formatText("rank {} of {} has died or left: its connection is closed", r, nranks_)});
        continue;
      }
      done += static_cast<size_t>(n);
      if (done == frame.size()) continue;
      fds.push_back({connection(r), POLLOUT, 0});
      pending.push_back(r);
    }
    if (pending.empty()) return;
    if (deadline.passed()) {
      for (const int r : pending) {
        lose(r, {ulyssesTimeout,
                 formatText("rank {} of {} has stopped taking part: it does not read its answers", r, nranks_)});
      }
      return;
    }
    pollUntil(fds, deadline);
  }
}

void StarHub::passFds(const std::vector<size_t>& counts, std::span<const int> mine,
                      std::vector<std::vector<UniqueFd>>& all, Deadline deadline) {
  if (!broken_.ok()) return;
  std::vector<FrameReader> readers = makeReaders(nranks_, 0);
  for (int r = 0; r < nranks_; ++r) {
    FrameReader& reader = readers[static_cast<size_t>(r)];
    if (counts[static_cast<size_t>(r)] == 0) continue;
    while (waitsFor(r) && !reader.complete()) {
      const Status status = advance(r, reader);
      if (!status.ok()) {
        (void)fail(status);
        return;
      }
      if (!waitsFor(r) || reader.complete()) break;
      if (deadline.passed()) {
        lose(r,
             {ulyssesTimeout, formatText("timed out waiting for the file descriptors of rank {} of {}", r, nranks_)});
        break;
      }
      pollfd fd{connection(r), POLLIN, 0};
      pollUntil({&fd, 1}, deadline);
    }
    all[static_cast<size_t>(r)] = std::move(reader.fds);
  }

  for (int source = 0; source < nranks_; ++source) {
    const auto s = static_cast<size_t>(source);
    if (counts[s] == 0) continue;
    std::vector<int> fds(mine.begin(), mine.end());
    if (source != self_) {
      fds.clear();
      for (const UniqueFd& fd : all[s]) fds.push_back(fd.get());
    }
    FrameHeader header;
    header.kind = FrameKind::Descriptors;
    header.operation = operation_;
    header.code = source;
    const Bytes frame = makeFrame(header, {});
    for (int target = 0; target < nranks_; ++target) {
      if (target == source || !waitsFor(target)) continue;
      const Status sent = sendAll(connection(target), frame.data(), frame.size(), deadline, fds);
      if (!sent.ok()) lose(target, {sent.code(), formatText("rank {} of {}: {}", target, nranks_, sent.message())});
    }
  }
}

StarSpoke::~StarSpoke() {
  hangUp(connection_.get());
}

Status StarSpoke::giveUp(Status why) {
  hangUp(connection_.get());  // so that the hub, should it come later, does not count on this rank
  broken_ = std::move(why);
  return broken_;
}

// Sends `frame` (which may be empty) and receives the hub's next frame, both at once: the hub may have an answer before
// it has taken the whole question.
Status StarSpoke::exchange(const Bytes& frame, FrameReader& answer, Deadline deadline) {
  const Deadline patience = deadline.extendedMs(kSpokeGraceMs);
  size_t sent = 0;
  for (bool hubDied = false;;) {
    if (sent < frame.size()) {
      const ssize_t n = sendSome(connection_.get(), frame.data() + sent, frame.size() - sent);
      // Where sending fails, the hub's last word may still be there to be read.
      sent = n < 0 ? frame.size() : sent + static_cast<size_t>(n);
    }
    const FrameReader::Progress progress = answer.advance(connection_.get());
    if (progress == FrameReader::Complete) break;
    if (progress == FrameReader::Malformed) {
      return giveUp({ulyssesInternalError, formatText("rank {}: {} sent a malformed frame (magic {:#x}, length {})",
                                                      rank_, hub_, answer.header.magic, answer.header.length)});
    }
    if (progress == FrameReader::Closed || hubDied) {
      closedSilently_ = true;
      return giveUp({ulyssesRemoteError, formatText("{} has died or left: its connection is closed", hub_)});
    }
    if (patience.passed()) {
      return giveUp(
          {ulyssesTimeout, formatText("rank {} timed out waiting for {} (control exchange {}); check that it is "
                                      "running and makes the same calls, or raise timeoutMs or ULYSSES_TIMEOUT",
                                      rank_, hub_, operation_)});
    }
    pollfd waiting[2] = {{connection_.get(), static_cast<short>(POLLIN | (sent < frame.size() ? POLLOUT : 0)), 0},
                         {lifelines_[0], POLLIN, 0}};
    pollUntil(waiting, patience);
    hubDied = waiting[1].revents != 0;
  }
  if (answer.header.kind == FrameKind::Failure) return giveUp(answer.status());
  if (answer.header.operation != operation_) {
    return giveUp(
        {ulyssesInternalError,
         formatText("rank {} is at control exchange {} while {} is at {}; all ranks must make the same calls in "
                    "the same order",
                    rank_, operation_, hub_, answer.header.operation)});
  }
  return {};
}

Status StarSpoke::allgather(const Contribution& mine, size_t limit, std::vector<Bytes>& all, Deadline deadline) {
  if (!broken_.ok()) return broken_;
  ++operation_;
  FrameReader answer(answerLimit(nranks_, limit));
  ULYSSES_TRY(exchange(contributionFrame(mine, operation_, deadline), answer, deadline));
  if (answer.header.kind == FrameKind::Refusal) return answer.status();
  if (answer.header.kind != FrameKind::Result || !unpackBlobs(answer.payload, nranks_, all)) {
    return giveUp({ulyssesInternalError,
                   formatText("rank {}: {} sent an answer that is no result of {} ranks", rank_, hub_, nranks_)});
  }
  return {};
}

void StarSpoke::passFds(const std::vector<size_t>& counts, std::span<const int> mine,
                        std::vector<std::vector<UniqueFd>>& all, Deadline deadline) {
  if (!broken_.ok()) return;
  if (!mine.empty()) {
    FrameHeader header;
    header.kind = FrameKind::Descriptors;
    header.operation = operation_;
    header.code = rank_;
    const Bytes frame = makeFrame(header, {});
    // Where it fails, the hub says why, here or in the next exchange.
    (void)sendAll(connection_.get(), frame.data(), frame.size(), deadline, mine);
  }
  for (int source = 0; source < nranks_; ++source) {
    if (source == rank_ || counts[static_cast<size_t>(source)] == 0) continue;
    FrameReader answer(0);
    if (!exchange({}, answer, deadline).ok()) return;
    if (answer.header.kind != FrameKind::Descriptors || answer.header.code != source) {
      (void)giveUp(
          {ulyssesInternalError, formatText("rank {}: {} sent frame kind {} where the file descriptors of rank {} "
                                            "were due",
                                            rank_, hub_, static_cast<uint32_t>(answer.header.kind), source)});
      return;
    }
    all[static_cast<size_t>(source)] = std::move(answer.fds);
  }
}

}  // namespace ulysses
