// Ranks that find each other by a unique id: who comes, who does not, and who has no business there.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "base/process.h"
#include "bootstrap/frame.h"
#include "bootstrap/invitation.h"
#include "bootstrap/socket.h"
#include "bootstrap_ranks.h"
#include "support/catch.h"
#include "support/ranks.h"

using namespace ulysses;
using namespace ulysses::test;
using ulysses::testing::kSanitized;
using ulysses::testing::RendezvousProcess;

namespace {

Invitation invitationOf(const ulyssesUniqueId& id) {
  Invitation invitation;
  std::memcpy(&invitation, id.internal, sizeof invitation);
  return invitation;
}

// Joins and gathers blocks of several sizes; "ok", or what went wrong.
std::string joinAndGather(const ulyssesUniqueId& id, int rank, int nranks, long ms) {
  Result<Allgather> joined = joinRendezvous(id, rank, nranks, Deadline::afterMs(ms));
  if (!joined.ok()) return describe(joined.status());
  for (const size_t bytes : {size_t{1}, size_t{0}, size_t{704}, size_t{64} << 10}) {
    const Bytes mine(bytes, std::byte(rank + 1));
    Bytes all(bytes * static_cast<size_t>(nranks));
    const Status status = joined.value()(mine.data(), all.data(), bytes);
    if (!status.ok()) return describe(status);
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != std::byte(i / bytes + 1)) return "wrong data";
    }
  }
  return "ok";
}

// A connection to the rendezvous that shows no secret.
UniqueFd strangerAt(const Invitation& invitation) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (uint32_t i = 0; i < invitation.count; ++i) {
    const Invitation::Endpoint& e = invitation.endpoints[i];
    if (e.family == 4 && e.address[0] == 127) v4.sin_port = htons(e.port);
  }
  address.length = sizeof v4;
  Result<UniqueFd> fd = connectTcp(address, Deadline::afterMs(1000));
  return fd.ok() ? fd.take() : UniqueFd();
}

}  // namespace

TEST_CASE("ranks meet by a unique id", "[bootstrap]") {
  for (const int nranks : {1, 2, 3, 8}) {
    const RendezvousProcess rendezvous;
    CHECK(allAre(runProcesses(nranks, [&](int r) { return joinAndGather(rendezvous.id(), r, nranks, 10'000); }), "ok"));
  }
  for (const int nranks : {1, 2, 3, 8}) {
    const Result<ulyssesUniqueId> id = startRendezvous();
    REQUIRE(id.ok());
    CHECK(allAre(runThreads(nranks, [&](int r) { return joinAndGather(id.value(), r, nranks, 10'000); }), "ok"));
  }
}

TEST_CASE("unique ids are unique, and an id of something else is refused", "[bootstrap]") {
  std::set<std::string> secrets;
  for (int i = 0; i < 20; ++i) {
    const Result<ulyssesUniqueId> id = startRendezvous();
    REQUIRE(id.ok());
    const Invitation invitation = invitationOf(id.value());
    secrets.insert(std::string(invitation.secret.begin(), invitation.secret.end()));
  }
  CHECK(secrets.size() == 20);
  ulyssesUniqueId zero{};
  CHECK(joinRendezvous(zero, 0, 1, Deadline::afterMs(1000)).status().code() == ulyssesInvalidArgument);
}

TEST_CASE("a rank that does not come is named on all others", "[bootstrap]") {
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  const Stopwatch watch;
  const auto said =
      runThreads(3, [&](int r) { return joinAndGather(id.value(), r < 2 ? r : 3, 5, r == 1 ? 300 : 5000); });
  CHECK(watch.ms() >= 300);
  CHECK(watch.ms() < 2000);
  CHECK(said[0].find("8: timed out waiting for ranks 2 and 4 of 5") == 0);
  CHECK(allAre(said, said[0]));
  SECTION("and hears why when it comes too late") {
    CHECK(joinAndGather(id.value(), 2, 5, 1000) == said[0]);
  }
}

TEST_CASE("callers that cannot be ranks of one job are told so, all of them", "[bootstrap]") {
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  const auto run = [&](std::vector<std::pair<int, int>> callers) {
    const auto said = runThreads(static_cast<int>(callers.size()), [&](int i) {
      const auto [rank, nranks] = callers[static_cast<size_t>(i)];
      return joinAndGather(id.value(), rank, nranks, 5000);
    });
    CHECK(allAre(said, said[0]));
    return said[0];
  };
  const Stopwatch watch;
  SECTION("a rank twice") {
    CHECK(run({{0, 3}, {1, 3}, {1, 3}}).find("4: two callers gave rank 1 of 3") == 0);
  }
  SECTION("differing nranks") {
    CHECK(run({{0, 3}, {1, 3}, {2, 4}}).find("4: the ranks differ in nranks") == 0);
  }
  SECTION("a rank out of range") {
    CHECK(run({{0, 2}, {2, 2}}).find("4: rank 2 is not in 0 to 1") == 0);
  }
  SECTION("a negative rank") {
    CHECK(run({{0, 2}, {-1, 2}}).find("4: rank -1 is not in 0 to 1") == 0);
  }
  SECTION("no ranks at all") {
    CHECK(run({{0, 0}}).find("4: rank 0 gives nranks 0") == 0);
  }
  SECTION("a negative nranks") {
    CHECK(run({{0, -1}}).find("4: rank 0 gives nranks -1") == 0);
  }
  CHECK(watch.ms() < 3000);
}

TEST_CASE("unequal blocks and blocks beyond the limit fail on all ranks", "[bootstrap]") {
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  const auto run = [&](size_t bytesOfRank1) {
    return runThreads(2, [&](int r) {
      Result<Allgather> joined = joinRendezvous(id.value(), r, 2, Deadline::afterMs(5000));
      if (!joined.ok()) return describe(joined.status());
      const Bytes mine(r == 1 ? bytesOfRank1 : 8);
      Bytes all(2 * mine.size());
      std::string said = describe(joined.value()(mine.data(), all.data(), mine.size()));
      const char byte = 'x';
      char both[2] = {};
      return said + " / " + describe(joined.value()(&byte, both, 1));  // the next exchange works
    });
  };
  SECTION("unequal") {
    CHECK(allAre(run(9), "4: allgather of unequal blocks: rank 0 gives 8 bytes, rank 1 gives 9 / ok"));
  }
  SECTION("too large") {
    CHECK(allAre(run(65537), "4: rank 1: a block of 65537 bytes is too large for the rendezvous (at most 65536) / ok"));
  }
}

TEST_CASE("a rank that dies at the rendezvous is named at once", "[bootstrap]") {
  const RendezvousProcess rendezvous;
  const bool early = GENERATE(true, false);
  SharedMoment death;
  // Rank 2 leaves while rank 3 is still to come (early), or where the others gather.
  const auto said = runProcesses(early ? 3 : 4, [&](int r) {
    if (early && r == 2) {
      Hello hello;
      hello.rank = 2;
      hello.nranks = 4;
      const Result<UniqueFd> fd = connectToInvitation(invitationOf(rendezvous.id()), hello, Deadline::afterMs(5000));
      ::usleep(200'000);
      death.mark();
      ::raise(SIGKILL);
    }
    Result<Allgather> joined = joinRendezvous(rendezvous.id(), r, 4, Deadline::afterMs(20'000));
    Status status = joined.status();
    if (joined.ok()) {
      if (r == 2) {
        death.mark();
        ::raise(SIGKILL);
      }
      int all[4] = {};
      status = joined.value()(&r, all, sizeof r);
    }
    return death.msSince() < 1000 ? describe(status) : "slow: " + describe(status);
  });
  CHECK(said[0].find("6: rank 2 of 4 has died or left") == 0);
  CHECK(said[1] == said[0]);
  CHECK(said[2] == "killed");
  if (!early) CHECK(said[3] == said[0]);
}

TEST_CASE("a rendezvous that is gone refuses at once", "[bootstrap]") {
  const auto said = runProcesses(1, [](int) {
    // The process that makes the id dies before anybody joins.
    int ends[2] = {-1, -1};
    if (::pipe(ends) != 0) return std::string("pipe");
    const pid_t maker = ::fork();
    if (maker == 0) {
      const Result<ulyssesUniqueId> id = startRendezvous();
      const bool written = ::write(ends[1], id.value().internal, sizeof id.value().internal) > 0;
      ::_exit(written ? 0 : 1);
    }
    ::close(ends[1]);
    ulyssesUniqueId id{};
    const ssize_t n = ::read(ends[0], id.internal, sizeof id.internal);
    ::waitpid(maker, nullptr, 0);
    const Stopwatch watch;
    const std::string text = joinAndGather(id, 0, 2, 20'000);
    return n == sizeof id.internal && watch.ms() < 1000 ? text : "slow: " + text;
  });
  CHECK(said[0].find("6: rank 0 cannot reach the process that made the unique id") == 0);
}

TEST_CASE("the process that made the id may fork", "[bootstrap]") {
  if (kSanitized) ULYSSES_SKIP("a sanitizer's allocator does not survive a fork beside a running thread");
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  // The bystander inherits the listener and outlives the job: the job must not notice.
  const auto said = runProcesses(
      3,
      [&](int r) {
        if (r < 2) return joinAndGather(id.value(), r, 2, 5000);
        ::usleep(500'000);
        const Stopwatch watch;
        const std::string late = joinAndGather(id.value(), 1, 2, 5000);
        return late.substr(0, 1) + (watch.ms() < 1000 ? " at once" : " late");
      },
      ForkBeside::Threads);
  CHECK(said[0] == "ok");
  CHECK(said[1] == "ok");
  CHECK(said[2] == "6 at once");
}

TEST_CASE("strangers neither harm nor delay a job", "[bootstrap]") {
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  const Invitation invitation = invitationOf(id.value());
  std::vector<UniqueFd> strangers;
  const auto knock = [&](const void* data, size_t bytes) {
    strangers.push_back(strangerAt(invitation));
    REQUIRE(strangers.back());
    if (bytes > 0) CHECK(sendSome(strangers.back().get(), data, bytes) > 0);
  };
  Hello impostor;
  impostor.nranks = 2;
  impostor.rank = 0;
  const Bytes garbage(64 << 10, std::byte(0xff));
  for (int i = 0; i < 40; ++i) {
    knock(nullptr, 0);                      // says nothing
    knock(&impostor, 10);                   // stops half-way
    knock(&impostor, sizeof impostor);      // a wrong secret
    knock(garbage.data(), garbage.size());  // another protocol, and much of it
    strangers.push_back(strangerAt(invitation));
    strangers.back().reset();  // gone before it is let in
  }
  std::atomic<bool> over{false};
  std::thread flood([&] {
    while (!over) {
      const UniqueFd fd = strangerAt(invitation);
      if (fd) (void)sendSome(fd.get(), garbage.data(), 100);
    }
  });
  std::thread trickle([&] {
    const UniqueFd fd = strangerAt(invitation);
    for (size_t i = 0; i < 30 && !over; ++i) {
      (void)sendSome(fd.get(), reinterpret_cast<const char*>(&impostor) + i, 1);
      ::usleep(20'000);
    }
  });
  const Stopwatch watch;
  const auto said = runThreads(4, [&](int r) {
    ::usleep(static_cast<useconds_t>(r) * 100'000);
    return joinAndGather(id.value(), r, 4, 10'000);
  });
  over = true;
  flood.join();
  trickle.join();
  CHECK(allAre(said, "ok"));
  CHECK(watch.ms() < 2000);
}

TEST_CASE("a rank whose frames make no sense ends the job with one error", "[bootstrap]") {
  const Result<ulyssesUniqueId> id = startRendezvous();
  REQUIRE(id.ok());
  const auto said = runThreads(2, [&](int r) {
    if (r == 0) return joinAndGather(id.value(), 0, 2, 10'000);
    Hello hello;
    hello.rank = 1;
    hello.nranks = 2;
    Result<UniqueFd> fd = connectToInvitation(invitationOf(id.value()), hello, Deadline::afterMs(5000));
    FrameHeader header;
    header.operation = 1;
    header.length = uint64_t{1} << 60;
    (void)sendAll(fd.value().get(), &header, sizeof header, Deadline::afterMs(1000));
    FrameReader answer(0);
    for (pollfd waiting{fd.value().get(), POLLIN, 0}; answer.advance(waiting.fd) == FrameReader::Partial;) {
      pollUntil({&waiting, 1}, Deadline::afterMs(1000));
    }
    return describe(answer.status());
  });
  CHECK(said[0].find("3: rank 1 sent a malformed frame") == 0);
  CHECK(said[1] == said[0]);
}

TEST_CASE("without descriptors there is an error, not a hang", "[bootstrap]") {
  SECTION("where the id is made") {
    const auto said = runProcesses(1, [&](int) {
      leaveDescriptors(0);
      return describe(startRendezvous().status());
    });
    CHECK(said[0].find("2: ") == 0);
    CHECK(said[0].find("ulimit -n") != std::string::npos);
  }
  SECTION("where the ranks are let in") {
    if (kSanitized) ULYSSES_SKIP("a sanitizer's allocator does not survive a fork beside a running thread");
    int ends[2] = {-1, -1};
    REQUIRE(::pipe(ends) == 0);
    const auto said = runProcesses(1, [&](int) {
      const Result<ulyssesUniqueId> id = startRendezvous();
      const Processes ranks(
          2,
          [&](int r) {
            ::usleep(200'000);
            const std::string text = joinAndGather(id.value(), r, 2, 20'000) + "\n";
            return ::write(ends[1], text.data(), text.size()) < 0 ? std::string("write") : text;
          },
          ForkBeside::Threads);
      leaveDescriptors(1);  // one rank can be let in, the other cannot
      for (int r = 0; r < 2; ++r) ::wait(nullptr);
      char buffer[4096] = {};
      return std::string(buffer, static_cast<size_t>(std::max<ssize_t>(0, ::read(ends[0], buffer, sizeof buffer))));
    });
    ::close(ends[0]);
    ::close(ends[1]);
    CHECK(said[0].find("2: the process that made the unique id cannot accept any more ranks") == 0);
    const size_t line = said[0].find('\n') + 1;
    CHECK(said[0].substr(0, line) == said[0].substr(line));
  }
}

TEST_CASE("processes and hosts have identities", "[bootstrap]") {
  const ProcessToken mine = processToken();
  CHECK(mine == processToken());
  const auto said = runProcesses(1, [&](int) { return std::string(processToken() == mine ? "same" : "differs"); });
  CHECK(said[0] == "differs");
  CHECK(!hostIdentity().empty());
  CHECK(hostIdentity() == hostIdentity());
  CHECK(!hostName().empty());
  uint64_t a = 0, b = 0;
  randomBytes(&a, sizeof a);
  randomBytes(&b, sizeof b);
  CHECK(a != b);
}
