// The library's own connections: blobs, file descriptors, lifelines, and what happens when a rank goes.
#include <dirent.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>

#include "bootstrap/socket.h"
#include "bootstrap_ranks.h"
#include "support/catch.h"
#include "support/ranks.h"

using namespace ulysses;
using namespace ulysses::test;
using ulysses::testing::RendezvousProcess;

namespace {

// The largest blobs once; they take time.
size_t largestFor(int nranks) {
  return nranks == 3 ? ControlChannel::kMaxBlobBytes : 5000;
}

size_t openDescriptors() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

// The rendezvous thread may still be closing its end.
bool settlesAt(size_t descriptors) {
  for (int i = 0; i < 200; ++i) {
    if (openDescriptors() == descriptors) return true;
    ::usleep(10'000);
  }
  return false;
}

UniqueFd memfdWith(const std::string& text) {
  UniqueFd fd(::memfd_create("bootstrap-test", MFD_CLOEXEC));
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) fd.reset();
  return fd;
}

std::string contentOf(const UniqueFd& fd) {
  char buffer[256] = {};
  const ssize_t n = ::pread(fd.get(), buffer, sizeof buffer, 0);
  return std::string(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0)));
}

// Blobs of lengths that differ by rank and round.
std::string exchangeBlobs(ControlChannel& channel, size_t largest) {
  for (const size_t unit : {size_t{0}, size_t{1}, size_t{1000}, largest}) {
    const auto blobOf = [&](int r) {
      return Bytes(unit == 0 ? 0 : unit - static_cast<size_t>(r) % unit, std::byte(r + 1));
    };
    std::vector<Bytes> all;
    const Status status = channel.allgather(blobOf(channel.rank()), all, Deadline::afterMs(20'000));
    if (!status.ok()) return describe(status);
    for (int r = 0; r < channel.nranks(); ++r) {
      if (all[static_cast<size_t>(r)] != blobOf(r)) return "wrong blob";
    }
  }
  return "ok";
}

// Rank r passes r mod 3 descriptors, and every rank reads what is in all of them.
std::string exchangeDescriptors(ControlChannel& channel) {
  const auto textOf = [](int r, int i) { return "rank " + std::to_string(r) + " file " + std::to_string(i); };
  std::vector<UniqueFd> files;
  std::vector<int> mine;
  for (int i = 0; i < channel.rank() % 3; ++i) {
    files.push_back(memfdWith(textOf(channel.rank(), i)));
    mine.push_back(files.back().get());
  }
  std::vector<std::vector<UniqueFd>> all;
  const Status status = channel.allgatherFds(mine, all, Deadline::afterMs(20'000));
  if (!status.ok()) return describe(status);
  for (int r = 0; r < channel.nranks(); ++r) {
    const std::vector<UniqueFd>& theirs = all[static_cast<size_t>(r)];
    if (theirs.size() != static_cast<size_t>(r % 3)) return "wrong number of descriptors";
    for (size_t i = 0; i < theirs.size(); ++i) {
      if (contentOf(theirs[i]) != textOf(r, static_cast<int>(i))) return "wrong content";
    }
  }
  return "ok";
}

std::string useChannel(const ulyssesUniqueId& id, int rank, int nranks, size_t largest) {
  Result<std::unique_ptr<ControlChannel>> opened = openChannel(id, rank, nranks, 20'000);
  if (!opened.ok()) return describe(opened.status());
  ControlChannel& channel = *opened.value();
  if (channel.rank() != rank || channel.nranks() != nranks || channel.nHosts() != 1 || !channel.passesFds())
    return "facts";
  std::string said = exchangeBlobs(channel, largest);
  if (said == "ok") said = exchangeDescriptors(channel);
  if (said == "ok") said = exchangeBlobs(channel, 100);
  return said;
}

}  // namespace

TEST_CASE("threads exchange blobs and descriptors, and nothing leaks", "[bootstrap]") {
  const size_t before = openDescriptors();
  for (const int nranks : {1, 2, 3, 8}) {
    const Result<ulyssesUniqueId> id = startRendezvous();
    REQUIRE(id.ok());
    CHECK(
        allAre(runThreads(nranks, [&](int r) { return useChannel(id.value(), r, nranks, largestFor(nranks)); }), "ok"));
  }
  CHECK(settlesAt(before));
}

TEST_CASE("processes exchange blobs and descriptors, and nothing leaks", "[bootstrap]") {
  for (const int nranks : {1, 2, 3, 8}) {
    const RendezvousProcess rendezvous;
    const auto said = runProcesses(nranks, [&](int r) {
      const size_t before = openDescriptors();
      const std::string text = useChannel(rendezvous.id(), r, nranks, largestFor(nranks));
      return openDescriptors() == before ? text : "leaked descriptors: " + text;
    });
    CHECK(allAre(said, "ok"));
  }
}

TEST_CASE("64 ranks", "[bootstrap]") {
  const RendezvousProcess rendezvous;
  CHECK(allAre(runProcesses(64, [&](int r) { return useChannel(rendezvous.id(), r, 64, 2000); }), "ok"));
}

TEST_CASE("a control message that is too large is refused on all ranks, once", "[bootstrap]") {
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  const auto said = runThreads(3, [&](int r) {
    Result<std::unique_ptr<ControlChannel>> channel = openChannel(id.value(), r, 3, 10'000);
    if (!channel.ok()) return describe(channel.status());
    std::vector<Bytes> all;
    const Bytes mine(r == 1 ? ControlChannel::kMaxBlobBytes + 1 : 10);
    std::string text = describe(channel.value()->allgather(mine, all, Deadline::afterMs(10'000)));
    std::vector<std::vector<UniqueFd>> fds;
    const int many[] = {0, 0, 0, 0, 0, 0, 0, 0, 0};
    const int bad[] = {-1};
    text += " / " +
            describe(channel.value()->allgatherFds(std::span(many, r == 2 ? 9 : 1), fds, Deadline::afterMs(10'000)));
    text += " / " +
            describe(channel.value()->allgatherFds(std::span(r == 0 ? bad : many, 1), fds, Deadline::afterMs(10'000)));
    return text + " / " + exchangeBlobs(*channel.value(), 10);
  });
  CHECK(said[0] ==
        "4: rank 1: a control message of 1048577 bytes is too large (at most 1048576) / "
        "4: rank 2: 9 file descriptors are too many (at most 8) / "
        "2: rank 0: duplicating file descriptor -1: Bad file descriptor (errno 9) / ok");
  CHECK(allAre(said, said[0]));
}

TEST_CASE("a rank that does not call is named on all, and again at the next call", "[bootstrap]") {
  const int absent = GENERATE(0, 2);
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  const auto said = runThreads(4, [&](int r) {
    Result<std::unique_ptr<ControlChannel>> channel = openChannel(id.value(), r, 4, 10'000);
    if (!channel.ok()) return describe(channel.status());
    if (r == absent) {
      ::usleep(absent == 0 ? 2'000'000 : 1'000'000);
      return std::string();
    }
    std::vector<Bytes> all;
    const Stopwatch watch;
    const std::string first = describe(channel.value()->allgather({}, all, Deadline::afterMs(r == 1 ? 300 : 600)));
    if (watch.ms() > 2200) return "slow: " + first;
    const std::string second = describe(channel.value()->allgather({}, all, Deadline::afterMs(5000)));
    return first == second ? first : first + " then " + second;
  });
  for (int r = 0; r < 4; ++r) {
    if (r == absent) continue;
    CHECK(said[static_cast<size_t>(r)].find("8: ") == 0);
    CHECK(said[static_cast<size_t>(r)].find("timed out waiting for rank " + std::to_string(absent)) !=
          std::string::npos);
    if (absent == 2) CHECK(said[static_cast<size_t>(r)] == said[0]);
  }
}

TEST_CASE("rank 0 does not count on a rank that has given up", "[bootstrap]") {
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  const auto said = runThreads(2, [&](int r) {
    Result<std::unique_ptr<ControlChannel>> channel = openChannel(id.value(), r, 2, 10'000);
    if (!channel.ok()) return describe(channel.status());
    if (r == 0) ::usleep(1'700'000);
    std::vector<Bytes> all;
    const std::string text = describe(channel.value()->allgather({}, all, Deadline::afterMs(r == 0 ? 5000 : 200)));
    if (r == 1) ::usleep(1'500'000);  // its end of the connection stays
    return text;
  });
  CHECK(said[0].find("6: rank 1 of 2 has left, or given up") == 0);
  CHECK(said[1].find("8: rank 1 timed out waiting for rank 0") == 0);
}

TEST_CASE("a killed rank is noticed at once, with one code and text", "[bootstrap]") {
  const int victim = GENERATE(0, 2);
  const bool forks = GENERATE(false, true);  // a child of the victim keeps its connection open
  const RendezvousProcess rendezvous;
  SharedMoment death;
  const auto said = runProcesses(4, [&](int r) {
    Result<std::unique_ptr<ControlChannel>> channel = openChannel(rendezvous.id(), r, 4, 20'000);
    if (!channel.ok()) return describe(channel.status());
    if (channel.value()->dead(victim)) return std::string("dead before its time");
    std::vector<Bytes> all;
    if (!channel.value()->allgather({}, all, Deadline::afterMs(20'000)).ok())
      return std::string("failed before its time");
    if (r == victim) {
      if (forks && ::fork() == 0) {
        for (int i = 0; i < 3; ++i) ::close(i);
        ::usleep(1'500'000);
        ::_exit(0);
      }
      ::usleep(300'000);
      death.mark();
      ::raise(SIGKILL);
    }
    const std::string first = describe(channel.value()->allgather({}, all, Deadline::afterMs(20'000)));
    const std::string second = describe(channel.value()->allgather({}, all, Deadline::afterMs(20'000)));
    if (death.msSince() > 1000) return "slow: " + first;
    // A dying process closes its connections a moment before it is dead.
    pollfd line{channel.value()->lifeline(victim), POLLIN, 0};
    if (line.fd < 0 || ::poll(&line, 1, 1000) != 1) return std::string("lifeline");
    if (!channel.value()->dead(victim)) return "not dead: " + first;
    return first == second ? first : first + " then " + second;
  });
  for (int r = 0; r < 4; ++r) {
    const std::string& text = said[static_cast<size_t>(r)];
    if (r == victim) {
      CHECK(text == "killed");
      continue;
    }
    CHECK(text.find("6: rank " + std::to_string(victim)) == 0);
    CHECK(text.find("has died") != std::string::npos);
    if (victim != 0) CHECK(text == said[0]);
  }
}

TEST_CASE("ranks on several hosts use TCP and pass no descriptors", "[bootstrap]") {
  const RendezvousProcess rendezvous;
  const auto said = runProcesses(3, [&](int r) {
    ::setenv("ULYSSES_HOSTID", r == 2 ? "host-b" : "host-a", 1);
    Result<std::unique_ptr<ControlChannel>> opened = openChannel(rendezvous.id(), r, 3, 20'000);
    if (!opened.ok()) return describe(opened.status());
    ControlChannel& channel = *opened.value();
    if (channel.nHosts() != 2 || channel.passesFds()) return std::string("facts");
    std::vector<std::vector<UniqueFd>> fds;
    if (channel.allgatherFds({}, fds, Deadline::afterMs(1000)).code() != ulyssesNotSupported)
      return std::string("passes");
    for (int other = 0; other < 3; ++other) {
      const bool known = other != r && (r == 0 || other == 0);
      if ((channel.lifeline(other) >= 0) != known || channel.dead(other)) return std::string("lifelines");
    }
    const std::string exchanged = exchangeBlobs(channel, ControlChannel::kMaxBlobBytes);
    if (exchanged != "ok") return exchanged;
    if (r == 2) {
      ::usleep(200'000);
      ::raise(SIGKILL);
    }
    std::vector<Bytes> all;
    const std::string text = describe(channel.allgather({}, all, Deadline::afterMs(20'000)));
    return channel.dead(2) == (r == 0) ? text : "dead: " + text;
  });
  CHECK(said[0].find("6: rank 2 of 3 has died or left") == 0);
  CHECK(said[1] == said[0]);
}

TEST_CASE("data on the way does not look like a death", "[bootstrap]") {
  const RendezvousProcess rendezvous;
  const auto said = runProcesses(2, [&](int r) {
    ::setenv("ULYSSES_HOSTID", r == 0 ? "host-a" : "host-b", 1);
    Result<std::unique_ptr<ControlChannel>> channel = openChannel(rendezvous.id(), r, 2, 20'000);
    if (!channel.ok()) return describe(channel.status());
    if (r == 0) ::usleep(300'000);
    if (r == 0 && channel.value()->dead(1)) return std::string("dead");  // rank 1's message lies there, unread
    return exchangeBlobs(*channel.value(), 100);
  });
  CHECK(allAre(said, "ok"));
}

TEST_CASE("a rank in a network namespace of its own connects at a path, or fails on all", "[bootstrap]") {
  if (runProcesses(1, [](int) { return std::string(::unshare(CLONE_NEWNET) == 0 ? "ok" : "no"); })[0] != "ok") {
    ULYSSES_SKIP("unshare(CLONE_NEWNET) is not allowed here");
  }
  const bool withFolder = GENERATE(true, false);
  // The ranks meet over what both share, inherited sockets; after that only a path leads from rank 1 to rank 0.
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const auto said = runProcesses(2, [&](int r) {
    if (r == 1 && ::unshare(CLONE_NEWNET) != 0) return std::string("unshare");
    if (!withFolder) ::setenv("TMPDIR", "/nonexistent", 1);
    const int fd = ends[r];
    const Allgather addresses = [&](const void* send, void* recv, size_t bytes) -> Status {
      auto* blocks = static_cast<char*>(recv);
      const size_t mine = r == 0 ? 0 : bytes;
      std::memcpy(blocks + mine, send, bytes);
      ULYSSES_TRY(sendAll(fd, send, bytes, Deadline::afterMs(5000)));
      const ssize_t n = ::recv(fd, blocks + (bytes - mine), bytes, MSG_WAITALL);
      return n == static_cast<ssize_t>(bytes) ? Status() : Status(ulyssesSystemError, "recv");
    };
    const Stopwatch watch;
    const auto channel = ControlChannel::open(r, 2, addresses, Deadline::afterMs(30'000));
    if (channel.ok() && !channel.value()->passesFds()) return std::string("passes no descriptors");
    return watch.ms() < 3000 ? describe(channel.status()) : "slow: " + describe(channel.status());
  });
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK(said[0].find(withFolder ? "ok" : "6: rank 1 cannot connect to rank 0") == 0);
  CHECK(allAre(said, said[0]));
}

TEST_CASE("where one rank has no room for descriptors all return the same error, and go on", "[bootstrap]") {
  const RendezvousProcess rendezvous;
  const int poor = GENERATE(0, 1, 2);
  const auto said = runProcesses(3, [&](int r) {
    Result<std::unique_ptr<ControlChannel>> channel = openChannel(rendezvous.id(), r, 3, 20'000);
    if (!channel.ok()) return describe(channel.status());
    const UniqueFd file = memfdWith("content");
    const std::vector<int> mine(4, file.get());
    const size_t descriptors = openDescriptors();
    const rlim_t limit = r == poor ? leaveDescriptors(6) : 0;  // for its own four, and two more
    std::vector<std::vector<UniqueFd>> all;
    const std::string first = describe(channel.value()->allgatherFds(mine, all, Deadline::afterMs(10'000)));
    if (r == poor) setDescriptorLimit(limit);
    if (openDescriptors() != descriptors) return "leaked: " + first;
    const std::string second = describe(channel.value()->allgatherFds(mine, all, Deadline::afterMs(10'000)));
    return first + " / " + second;
  });
  CAPTURE(said[0]);
  CHECK(said[0].find("2: rank " + std::to_string(poor) + " got 2 of the 4 file descriptors") == 0);
  CHECK(said[0].find(" / ok") != std::string::npos);
  CHECK(allAre(said, said[0]));
}

TEST_CASE("ranks that make different calls are told so", "[bootstrap]") {
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  const auto said = runThreads(2, [&](int r) {
    Result<std::unique_ptr<ControlChannel>> channel = openChannel(id.value(), r, 2, 10'000);
    if (!channel.ok()) return describe(channel.status());
    std::vector<Bytes> blobs;
    if (r == 1) {
      const Status first = channel.value()->allgather(Bytes(1, std::byte(1)), blobs, Deadline::afterMs(5000));
      return describe(first) + " / " + describe(channel.value()->allgather({}, blobs, Deadline::afterMs(5000)));
    }
    std::vector<std::vector<UniqueFd>> fds;
    return "ok / " + describe(channel.value()->allgatherFds({}, fds, Deadline::afterMs(5000)));
  });
  CHECK(said[0].find("ok / 3: rank 1 is at control exchange") == 0);
  CHECK(said[1] == said[0]);
}
