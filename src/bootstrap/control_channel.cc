// The library's own connections: a star at rank 0, over Unix sockets where the ranks share a host, else over TCP.
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/format.h"
#include "base/process.h"
#include "bootstrap/acceptor.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/private_folder.h"
#include "bootstrap/socket.h"
#include "bootstrap/star.h"

namespace ulysses {

namespace {

constexpr size_t kMaxFdsPerRank = 8;
constexpr const char* kHub = "rank 0";

// A rank's own outcome in an exchange of fixed blocks.
struct PostedStatus {
  int32_t code = 0;
  std::array<char, 508> text{};

  void set(const Status& status) {
    code = status.code();
    const size_t n = status.message().copy(text.data(), text.size() - 1);
    text[n] = '\0';
  }
  Status get() const {
    return {static_cast<ulyssesResult_t>(code), std::string(text.data(), ::strnlen(text.data(), text.size()))};
  }
};

// What every rank tells the others about itself. Rank 0 adds where it can be reached.
struct Introduction {
  PostedStatus status;
  int32_t rank = 0, nranks = 0;
  uint64_t host = 0;
  uint64_t locality = 0;
  ProcessToken process;
  Invitation invitation;
  std::array<char, 48> unixName{};
};

// Where ranks of rank 0's host reach it from other network namespaces; empty where it has no such place.
using SocketPath = std::array<char, 108>;

template <size_t n>
std::string toString(const std::array<char, n>& text) {
  return std::string(text.data(), ::strnlen(text.data(), n));
}

// The first failing rank's outcome, which all ranks return.
template <class Posted, class StatusOf>
Status firstFailure(const std::vector<Posted>& posts, StatusOf statusOf) {
  for (const Posted& post : posts) {
    if (statusOf(post).code != 0) return statusOf(post).get();
  }
  return {};
}

// An allgather of the caller's own may have put the blocks into another order.
Status checkOrder(const std::vector<Introduction>& ranks) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].nranks != ranks[0].nranks)
      return {ulyssesInvalidArgument, formatText("the ranks differ in nranks: rank {} gives {}, rank {} gives {}",
                                                 ranks[0].rank, ranks[0].nranks, ranks[r].rank, ranks[r].nranks)};
    if (ranks[r].rank != static_cast<int32_t>(r))
      return {ulyssesInvalidArgument,
              formatText("block {} of the allgather is of rank {}: each rank comes once, in rank order", r, ranks[r].rank)};
  }
  return {};
}

Result<UniqueFd> duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return systemError(formatText("duplicating file descriptor {}", fd));
  return copy;
}

// Becomes readable when this process is dead. `keptOpen` holds the other end where that takes one.
Result<UniqueFd> openLifeline(UniqueFd& keptOpen) {
#ifdef SYS_pidfd_open
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));  // close-on-exec by itself
  if (pidfd) return pidfd;
#endif
  // Old kernels and some containers: the end of a pipe that hangs up with this process (and its forked children).
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return systemError("opening a pipe");
  keptOpen.reset(ends[1]);
  return UniqueFd(ends[0]);
}

class StarChannel final : public ControlChannel {
 public:
  StarChannel(int rank, std::vector<Introduction> ranks, std::unique_ptr<Star> star)
      : rank_(rank), ranks_(std::move(ranks)), star_(std::move(star)), lifelines_(ranks_.size()) {
    std::set<uint64_t> hosts;
    for (const Introduction& r : ranks_) hosts.insert(r.host);
    nHosts_ = static_cast<int>(hosts.size());
  }

  // Agrees on whether descriptors can be passed, and passes the lifelines.
  Status settle(bool overUnix, Deadline deadline) {
    std::vector<Bytes> all;
    ULYSSES_TRY(star_->allgather({{}, Bytes(1, std::byte(overUnix))}, kMaxBlobBytes, all, deadline));
    passesFds_ =
        std::all_of(all.begin(), all.end(), [](const Bytes& b) { return b.size() == 1 && b[0] == std::byte(1); });
    if (!passesFds_) return {};
    Result<UniqueFd> mine = UniqueFd();
    std::vector<int> fds;
    // One per process: with many ranks in one process, descriptors are scarce.
    const bool alone =
        std::all_of(ranks_.begin(), ranks_.end(), [&](const Introduction& r) { return r.process == here(); });
    if (!alone && processLeader(rank_) == rank_) {
      mine = openLifeline(keptOpen_);
      if (mine.ok()) fds.push_back(mine.value().get());
      else mine = Status(mine.status().code(), formatText("rank {}: {}", rank_, mine.status().message()));
    }
    std::vector<std::vector<UniqueFd>> lifelines;
    ULYSSES_TRY(exchangeFds(mine.status(), fds, lifelines, deadline));
    for (int r = 0; r < nranks(); ++r) {
      const auto i = static_cast<size_t>(r);
      if (lifelines[i].empty() || ranks_[i].process == here()) continue;
      lifelines_[i] = std::move(lifelines[i][0]);
    }
    for (int r = 0; r < nranks(); ++r) star_->watch(r, lifeline(r));
    return {};
  }

  int rank() const override { return rank_; }
  int nranks() const override { return static_cast<int>(ranks_.size()); }
  int nHosts() const override { return nHosts_; }
  bool passesFds() const override { return passesFds_; }

  Status allgather(const Bytes& mine, std::vector<Bytes>& all, Deadline deadline) override {
    if (mine.size() <= kMaxBlobBytes) return star_->allgather({{}, mine}, kMaxBlobBytes, all, deadline);
    Status tooLarge(ulyssesInvalidArgument,
                    formatText("rank {}: a control message of {} bytes is too large (at most {})", rank_, mine.size(),
                               kMaxBlobBytes));
    return star_->allgather({std::move(tooLarge), {}}, kMaxBlobBytes, all, deadline);
  }

  Status allgatherFds(std::span<const int> mine, std::vector<std::vector<UniqueFd>>& all, Deadline deadline) override {
    if (!passesFds_) {
      return {ulyssesNotSupported,
              formatText("file descriptors cannot be passed among these {} ranks: they are on {} hosts, "
                         "or in network namespaces of their own",
                         nranks(), nHosts_)};
    }
    return exchangeFds({}, mine, all, deadline);
  }

  int lifeline(int r) const override {
    if (r == rank_ || ranks_[static_cast<size_t>(r)].process == here()) return -1;
    return passesFds_ ? lifelines_[static_cast<size_t>(processLeader(r))].get() : star_->connection(r);
  }

  bool dead(int r) const override {
    const int fd = lifeline(r);
    if (fd < 0) return false;
    if (!passesFds_) return hungUp(fd);
    pollfd state{fd, POLLIN, 0};
    return ::poll(&state, 1, 0) > 0;
  }

 private:
  const ProcessToken& here() const { return ranks_[static_cast<size_t>(rank_)].process; }

  // The first rank of rank r's process.
  int processLeader(int r) const {
    const auto same = [&](const Introduction& other) {
      return other.process == ranks_[static_cast<size_t>(r)].process;
    };
    return static_cast<int>(std::find_if(ranks_.begin(), ranks_.end(), same) - ranks_.begin());
  }

  // Three steps, so that no rank fails alone: the counts, the descriptors, the outcome.
  Status exchangeFds(Status status, std::span<const int> mine, std::vector<std::vector<UniqueFd>>& all,
                     Deadline deadline) {
    std::vector<UniqueFd> own;
    if (status.ok() && mine.size() > kMaxFdsPerRank) {
      status = {ulyssesInvalidArgument, formatText("rank {}: {} file descriptors are too many (at most {})", rank_,
                                                   mine.size(), kMaxFdsPerRank)};
    }
    for (size_t i = 0; i < mine.size() && status.ok(); ++i) {
      Result<UniqueFd> copy = duplicate(mine[i]);
      if (copy.ok())
        own.push_back(copy.take());
      else
        status = {copy.status().code(), formatText("rank {}: {}", rank_, copy.status().message())};
    }
    std::vector<Bytes> posted;
    ULYSSES_TRY(star_->allgather({status, Bytes(1, std::byte(own.size()))}, kMaxBlobBytes, posted, deadline));

    std::vector<size_t> counts;
    for (const Bytes& count : posted) counts.push_back(count.size() == 1 ? std::to_integer<size_t>(count[0]) : 0);
    std::vector<std::vector<UniqueFd>> passed(ranks_.size());
    std::vector<int> sent;
    for (const UniqueFd& fd : own) sent.push_back(fd.get());
    star_->passFds(counts, sent, passed, deadline);
    passed[static_cast<size_t>(rank_)] = std::move(own);

    Contribution outcome;
    for (size_t r = 0; r < ranks_.size() && outcome.status.ok(); ++r) {
      if (passed[r].size() == counts[r]) continue;
      outcome.status = {
          ulyssesSystemError,
          formatText("rank {} got {} of the {} file descriptors of rank {}; raise its limit of open files "
                     "(ulimit -n)",
                     rank_, passed[r].size(), counts[r], r)};
    }
    ULYSSES_TRY(star_->allgather(outcome, kMaxBlobBytes, posted, deadline));
    all = std::move(passed);
    return {};
  }

  int rank_;
  std::vector<Introduction> ranks_;
  std::unique_ptr<Star> star_;
  std::vector<UniqueFd> lifelines_;  // by the first rank of each other process
  UniqueFd keptOpen_;
  int nHosts_ = 1;
  bool passesFds_ = false;
};

struct Listeners {
  std::vector<UniqueFd> fds;
  Invitation invitation;
  std::array<char, 48> unixName{};
};

Result<Listeners> openListeners() {
  ULYSSES_ASSIGN(Listening listening, listenForRanks());
  std::array<uint64_t, 2> name{};
  randomBytes(name.data(), sizeof name);
  const std::string unixName = formatText("ulysses-{:016x}{:016x}", name[0], name[1]);
  ULYSSES_ASSIGN(UniqueFd unixListener, listenUnix(unixName));

  Listeners listeners;
  listeners.fds = std::move(listening.listeners);
  listeners.fds.push_back(std::move(unixListener));
  listeners.invitation = listening.invitation;
  unixName.copy(listeners.unixName.data(), listeners.unixName.size() - 1);
  return listeners;
}

// Rank 0's listener at a path, and the folder that holds it while the others connect.
struct PathListener {
  std::unique_ptr<PrivateFolder> folder;
  UniqueFd fd;
};

Result<PathListener> openPathListener() {
  PathListener listener;
  ULYSSES_ASSIGN(listener.folder, PrivateFolder::create());
  ULYSSES_ASSIGN(listener.fd, listenUnix(listener.folder->socketPath()));
  return listener;
}

struct Connected {
  UniqueFd fd;
  bool overUnix = false;
};

Result<Connected> connectToHub(const Introduction& hub, const SocketPath& path, int rank, int nranks,
                               Deadline deadline) {
  Hello hello;
  hello.secret = hub.invitation.secret;
  hello.rank = rank;
  hello.nranks = nranks;
  hello.remainingMs = deadline.remainingMs();
  const bool sameHost = hub.host == hostHash(), sameNetwork = hub.locality == localityHash();
  const std::string name = sameNetwork ? toString(hub.unixName) : toString(path);
  if (sameHost && !name.empty()) {
    Result<UniqueFd> fd = connectUnix(name);
    if (fd.ok() && sendAll(fd.value().get(), &hello, sizeof hello, deadline).ok()) return Connected{fd.take(), true};
  }
  Result<UniqueFd> fd = connectToInvitation(hub.invitation, hello, deadline);
  if (!fd.ok()) {
    return Status(fd.status().code(),
                  formatText("rank {} cannot connect to rank 0: {}{}", rank, fd.status().message(),
                             sameHost && !sameNetwork ? "; ranks of one host in several network namespaces connect "
                                                        "through a folder that all of them see (TMPDIR, else /tmp)"
                                                      : ""));
  }
  return Connected{fd.take(), false};
}

// Rank 0: lets the others in. They have connected already.
Result<std::unique_ptr<Star>> admitRanks(Listeners listeners, int nranks, Deadline deadline) {
  Acceptor acceptor(std::move(listeners.fds), listeners.invitation.secret);
  std::vector<UniqueFd> spokes(static_cast<size_t>(nranks));
  for (int present = 1; present < nranks;) {
    std::vector<int> watched;
    for (const UniqueFd& spoke : spokes) watched.push_back(spoke.get());
    Acceptor::Event event = acceptor.wait(watched, deadline);
    if (event.kind == Acceptor::Event::Arrived) {
      const Hello& hello = event.arrival.hello;
      const bool known =
          hello.version == kWireVersion && hello.nranks == nranks && hello.rank > 0 && hello.rank < nranks;
      if (!known || spokes[static_cast<size_t>(hello.rank)]) continue;
      spokes[static_cast<size_t>(hello.rank)] = std::move(event.arrival.connection);
      ++present;
      continue;
    }
    if (event.kind == Acceptor::Event::HungUp)
      return Status(ulyssesRemoteError, formatText("rank {} of {} has died or left while connecting", event.watched, nranks));
    if (event.kind == Acceptor::Event::OutOfDescriptors)
      return systemError("rank 0 cannot accept the connections of the other ranks", EMFILE);
    return Status(ulyssesTimeout, "timed out waiting for the connections of other ranks to rank 0");
  }
  return std::unique_ptr<Star>(std::make_unique<StarHub>(std::move(spokes), 0, Status()));
}

}  // namespace

Result<std::unique_ptr<ControlChannel>> ControlChannel::open(int rank, int nranks, const Allgather& addresses,
                                                             Deadline deadline, const Status& local) {
  Introduction mine;
  mine.rank = rank;
  mine.nranks = nranks;
  mine.host = hostHash();
  mine.locality = localityHash();
  mine.process = processToken();
  std::vector<Introduction> ranks(static_cast<size_t>(nranks), mine);
  std::unique_ptr<Star> star;
  bool overUnix = true;
  if (!local.ok()) mine.status.set({local.code(), formatText("rank {}: {}", rank, local.message())});
  if (nranks == 1) {
    ULYSSES_TRY(mine.status.get());
    star = std::make_unique<StarHub>(std::vector<UniqueFd>(1), 0, Status());
  } else {
    Listeners listeners;
    if (rank == 0 && local.ok()) {
      Result<Listeners> opened = openListeners();
      if (opened.ok()) {
        listeners = opened.take();
        mine.invitation = listeners.invitation;
        mine.unixName = listeners.unixName;
      } else {
        mine.status.set({opened.status().code(), formatText("rank 0: {}", opened.status().message())});
      }
    }
    ULYSSES_TRY(addresses(&mine, ranks.data(), sizeof mine));
    ULYSSES_TRY(firstFailure(ranks, [](const Introduction& r) -> const PostedStatus& { return r.status; }));
    ULYSSES_TRY(checkOrder(ranks));

    // Ranks of rank 0's host in other network namespaces see neither its loopback nor its abstract name. Whether there
    // are such is known to all alike, so only then is there another exchange, and a file.
    const bool apart = std::any_of(ranks.begin(), ranks.end(), [&](const Introduction& r) {
      return r.host == ranks[0].host && r.locality != ranks[0].locality;
    });
    std::unique_ptr<PrivateFolder> folder;
    std::vector<SocketPath> paths(static_cast<size_t>(nranks));
    if (apart) {
      SocketPath path{};
      if (rank == 0) {
        // Where it cannot be had TCP may still do.
        if (Result<PathListener> opened = openPathListener(); opened.ok()) {
          PathListener listener = opened.take();
          listener.folder->socketPath().copy(path.data(), path.size() - 1);
          listeners.fds.push_back(std::move(listener.fd));
          folder = std::move(listener.folder);
        }
      }
      ULYSSES_TRY(addresses(&path, paths.data(), sizeof path));
    }

    // The kernel completes connections without rank 0's help. So all ranks know who has reached it before rank 0
    // begins to let them in, and none waits for one that cannot.
    Connected connected;
    PostedStatus outcome;
    if (rank > 0) {
      Result<Connected> result = connectToHub(ranks[0], paths[0], rank, nranks, deadline);
      if (result.ok())
        connected = result.take();
      else
        outcome.set(result.status());
    }
    std::vector<PostedStatus> outcomes(static_cast<size_t>(nranks));
    const auto agree = [&]() -> Status {
      ULYSSES_TRY(addresses(&outcome, outcomes.data(), sizeof outcome));
      return firstFailure(outcomes, [](const PostedStatus& r) -> const PostedStatus& { return r; });
    };
    const Status connectedAll = agree();
    folder.reset();
    ULYSSES_TRY(connectedAll);

    // One that rank 0 did not let in has no other way to hear why.
    if (rank == 0) {
      Result<std::unique_ptr<Star>> admitted = admitRanks(std::move(listeners), nranks, deadline);
      if (admitted.ok()) star = admitted.take();
      else outcome.set(admitted.status());
    }
    ULYSSES_TRY(agree());
    if (rank > 0) {
      overUnix = connected.overUnix;
      star = std::make_unique<StarSpoke>(std::move(connected.fd), rank, nranks, kHub);
    }
  }
  auto channel = std::make_unique<StarChannel>(rank, std::move(ranks), std::move(star));
  ULYSSES_TRY(channel->settle(overUnix, deadline));
  return std::unique_ptr<ControlChannel>(std::move(channel));
}

}  // namespace ulysses
