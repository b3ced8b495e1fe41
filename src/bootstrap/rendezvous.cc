// The rendezvous of a unique id: a thread that lets the ranks of one job in and then serves their allgathers.
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "bootstrap/acceptor.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/control_page.h"
#include "bootstrap/socket.h"
#include "bootstrap/star.h"

namespace ulysses {

namespace {

constexpr size_t kMaxBlockBytes = 64u << 10;
constexpr int kMaxRanks = ControlPage::kMaxRanks;
constexpr int kTellMs = 1000;
// A rank that starts late still hears why its job has failed.
constexpr int kLateMs = 60'000;
constexpr int kRetryMs = 20;
constexpr const char* kRoot = "the process that made the unique id";

// What a rank says that has no descriptor for a connection, and what its peers get to hear.
Status cannotCome(int rank, int error) {
  return systemError(formatText("rank {} cannot open a socket to meet the others", rank), error);
}

class Rendezvous {
 public:
  explicit Rendezvous(Listening listening)
      : acceptor_(std::make_unique<Acceptor>(std::move(listening.listeners), listening.invitation.secret)) {}

  void serve() {
    Status verdict;
    while (verdict.ok() && (spokes_.empty() || !missing().empty())) verdict = admitOne();
    if (!verdict.ok()) return dismiss(verdict);
    acceptor_.reset();
    StarHub hub(std::move(spokes_), -1, {});
    std::vector<Bytes> blobs;
    while (hub.usable()) (void)hub.allgather({}, kMaxBlockBytes, blobs, Deadline::never());
  }

 private:
  std::vector<int> watched() const {
    std::vector<int> fds;
    for (const UniqueFd& spoke : spokes_) fds.push_back(spoke.get());
    return fds;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (size_t r = 0; r < spokes_.size(); ++r) {
      if (!spokes_[r]) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
  }

  Status admitOne() {
    Acceptor::Event event = acceptor_->wait(watched(), deadline_);
    switch (event.kind) {
      case Acceptor::Event::Arrived:
        return admit(std::move(event.arrival));
      case Acceptor::Event::HungUp:
        spokes_[event.watched].reset();
        return {ulyssesRemoteError, formatText("rank {} of {} has died or left while the others were still arriving",
                                               event.watched, spokes_.size())};
      case Acceptor::Event::OutOfDescriptors:
        return systemError("the process that made the unique id cannot accept any more ranks", EMFILE);
      case Acceptor::Event::DeadlinePassed:
        break;
    }
    return {ulyssesTimeout,
            formatText(
                "timed out waiting for {} of {} at the rendezvous; check that it was started with this unique id, or "
                "raise timeoutMs or ULYSSES_TIMEOUT",
                nameRanks(missing()), spokes_.size())};
  }

  Status admit(Acceptor::Arrival arrival) {
    const Hello& hello = arrival.hello;
    const auto end = [&](Status verdict) {
      told_.push_back(std::move(arrival.connection));
      ++answered_;
      return verdict;
    };
    const auto refuse = [&](std::string text) { return end(Status(ulyssesInvalidArgument, std::move(text))); };
    if (hello.version != kWireVersion) {
      return refuse(
          formatText("rank {} runs a library whose rendezvous has version {}, the unique id was made by version {}; "
                     "use one version on all ranks",
                     hello.rank, hello.version, kWireVersion));
    }
    if (hello.nranks < 1 || hello.nranks > kMaxRanks) {
      return refuse(formatText("rank {} gives nranks {}; it must be 1 to {}", hello.rank, hello.nranks, kMaxRanks));
    }
    if (hello.failure != 0) return end(cannotCome(hello.rank, hello.failure));
    if (spokes_.empty()) spokes_.resize(static_cast<size_t>(hello.nranks));
    if (static_cast<size_t>(hello.nranks) != spokes_.size()) {
      return refuse(formatText("the ranks differ in nranks: rank {} gives {}, an earlier one gave {}", hello.rank,
                               hello.nranks, spokes_.size()));
    }
    if (hello.rank < 0 || hello.rank >= hello.nranks) {
      return refuse(formatText("rank {} is not in 0 to {} (nranks {})", hello.rank, hello.nranks - 1, hello.nranks));
    }
    UniqueFd& spoke = spokes_[static_cast<size_t>(hello.rank)];
    if (spoke) {
      return refuse(
          formatText("two callers gave rank {} of {}; each rank must be given once", hello.rank, hello.nranks));
    }
    spoke = std::move(arrival.connection);
    ++answered_;
    deadline_ = earlier(deadline_, Deadline::afterMs(hello.remainingMs));
    return {};
  }

  // Tells the verdict to the ranks that are here and, for a while, to those that still come.
  void dismiss(const Status& verdict) {
    for (UniqueFd& spoke : spokes_) {
      if (spoke) told_.push_back(std::move(spoke));
    }
    for (const UniqueFd& connection : told_) tell(connection, verdict);
    const Deadline late = Deadline::afterMs(kLateMs);
    while (spokes_.empty() || answered_ < spokes_.size() || !told_.empty()) {
      std::vector<int> fds;
      for (const UniqueFd& connection : told_) fds.push_back(connection.get());
      Acceptor::Event event = acceptor_->wait(fds, late);
      if (event.kind == Acceptor::Event::HungUp) {
        told_.erase(told_.begin() + static_cast<std::ptrdiff_t>(event.watched));
      } else if (event.kind == Acceptor::Event::Arrived) {
        told_.push_back(std::move(event.arrival.connection));
        ++answered_;
        tell(told_.back(), verdict);
      } else if (event.kind == Acceptor::Event::DeadlinePassed) {
        return;
      }
      // Out of descriptors: those who have been told hang up, and make room for the next.
    }
  }

  static void tell(const UniqueFd& connection, const Status& verdict) {
    FrameHeader header;
    header.kind = FrameKind::Failure;
    const Bytes frame = makeTextFrame(header, verdict);
    // One that does not listen any more needs no answer.
    (void)sendAll(connection.get(), frame.data(), frame.size(), Deadline::afterMs(kTellMs));
  }

  std::unique_ptr<Acceptor> acceptor_;
  std::vector<UniqueFd> spokes_;  // by rank; empty until the first rank has told how many there are
  std::vector<UniqueFd> told_;
  size_t answered_ = 0;
  Deadline deadline_ = Deadline::never();  // the earliest of those present
};

Result<Invitation> parse(const ulyssesUniqueId& id) {
  Invitation invitation;
  std::memcpy(&invitation, id.internal, sizeof invitation);
  if (invitation.magic != Invitation::kMagic) {
    return Status(
        ulyssesInvalidArgument,
        "not a unique id of this library: it must come from ulyssesGetUniqueId and reach every rank unchanged");
  }
  if (invitation.version != kWireVersion) {
    return Status(
        ulyssesInvalidArgument,
        formatText("the unique id has version {}, this library reads version {}; use one version on all ranks",
                   invitation.version, kWireVersion));
  }
  return invitation;
}

}  // namespace

Result<ulyssesUniqueId> startRendezvous() {
  ULYSSES_ASSIGN(Listening listening, listenForRanks());
  ulyssesUniqueId id{};
  std::memcpy(id.internal, &listening.invitation, sizeof listening.invitation);

  // The application's signals are for the application's threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    std::thread([rendezvous = std::make_unique<Rendezvous>(std::move(listening))] {
      try {
        rendezvous->serve();
      } catch (const std::exception& e) {
        ULYSSES_LOG(Warn, -1, "the rendezvous has failed: {}", e.what());
      }
    }).detach();
  } catch (const std::system_error& e) {
    status = systemError("starting the thread that serves the unique id", e.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status.ok()) return status;
  return id;
}

Result<Allgather> joinRendezvous(const ulyssesUniqueId& id, int rank, int nranks, Deadline deadline) {
  ULYSSES_ASSIGN(const Invitation invitation, parse(id));
  // A rank or nranks that cannot be right goes to the root like any other, so that all ranks hear of it.
  Hello hello;
  hello.rank = rank;
  hello.nranks = nranks;
  for (;;) {
    Result<UniqueFd> connection = connectToInvitation(invitation, hello, deadline);
    if (connection.status().code() == ulyssesSystemError) {
      const int error = socketShortage();
      if (error == 0) continue;  // it has passed
      sayWithoutDescriptors(invitation, hello, error, deadline);
      return cannotCome(rank, error);
    }
    if (!connection.ok()) {
      return Status(
          connection.status().code(),
          formatText("rank {} cannot reach {}: {}. An id serves one communicator, whose ranks all give the same "
                     "nranks, and only while that process lives",
                     rank, kRoot, connection.status().message()));
    }
    const auto spoke = std::make_shared<StarSpoke>(connection.take(), rank, std::clamp(nranks, 1, kMaxRanks), kRoot);
    std::vector<Bytes> welcome;
    const Status joined = spoke->allgather({}, kMaxBlockBytes, welcome, deadline);
    if (joined.ok()) {
      return Allgather([spoke, rank, deadline](const void* send, void* recv, size_t bytes) -> Status {
        Contribution mine;
        const auto* block = static_cast<const std::byte*>(send);
        if (bytes > kMaxBlockBytes) {
          mine.status = {ulyssesInvalidArgument,
                         formatText("rank {}: a block of {} bytes is too large for the rendezvous "
                                    "(at most {})",
                                    rank, bytes, kMaxBlockBytes)};
        } else {
          mine.blob.assign(block, block + bytes);
        }
        std::vector<Bytes> all;
        ULYSSES_TRY(spoke->allgather(mine, kMaxBlockBytes, all, deadline));
        return copyEqualBlocks(all, recv, bytes);
      });
    }
    // A flood of strangers can have pushed this rank out before it was let in: then it knocks again.
    if (!spoke->closedSilently()) return joined;
    if (deadline.passed()) {
      return Status(ulyssesTimeout,
                    formatText("rank {} timed out at the rendezvous: {} drops its connections", rank, kRoot));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kRetryMs));
  }
}

}  // namespace ulysses
