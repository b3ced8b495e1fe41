// Strangers at the doors of a job: at rank 0's own sockets while the ranks connect, with what they may have overheard.
#include <netinet/in.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "bootstrap/invitation.h"
#include "bootstrap/socket.h"
#include "bootstrap/star.h"
#include "hostile/job.h"
#include "support/catch.h"

namespace ulysses::testing {
namespace {

// The TCP ports that anybody listens at on this host, and the library's abstract Unix sockets.
struct Doors {
  std::vector<uint16_t> ports;
  std::vector<std::string> names;
};

Doors look() {
  Doors doors;
  std::string line;
  for (std::ifstream file("/proc/net/tcp"); std::getline(file, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    if (state == "0A") doors.ports.push_back(static_cast<uint16_t>(std::stoul(local.substr(9), nullptr, 16)));
  }
  for (std::ifstream file("/proc/net/unix"); std::getline(file, line);)
    if (const size_t at = line.find("@ulysses-"); at != std::string::npos) doors.names.push_back(line.substr(at + 1));
  return doors;
}

UniqueFd knock(uint16_t port) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  v4.sin_port = htons(port);
  address.length = sizeof v4;
  Result<UniqueFd> fd = connectTcp(address, Deadline::afterMs(200));
  return fd.ok() ? fd.take() : UniqueFd();
}

// At every door: silence, half a hello, a whole one that lacks the secret, garbage, far too much of it. Some stay.
[[noreturn]] void molest(const std::vector<uint16_t>& notTheirs) {
  std::mt19937 random(7);
  std::vector<UniqueFd> kept;
  const std::vector<char> garbage(1 << 16, '\xff');
  Hello hello;
  hello.rank = 1, hello.nranks = 3;
  const auto visit = [&](UniqueFd fd) {
    if (!fd) return;
    switch (random() % 5) {
      case 0:
        break;
      case 1:
        (void)sendSome(fd.get(), &hello, 1 + random() % (sizeof hello - 1));
        break;
      case 2:
        (void)sendSome(fd.get(), &hello, sizeof hello);
        break;
      case 3:
        (void)sendSome(fd.get(), garbage.data(), 64);
        break;
      default:
        (void)sendSome(fd.get(), garbage.data(), garbage.size());
        break;
    }
    if (random() % 2 == 0) kept.push_back(std::move(fd));
    if (kept.size() > 100) kept.erase(kept.begin());
  };
  for (;;) {
    const Doors doors = look();
    for (const uint16_t port : doors.ports)
      if (std::find(notTheirs.begin(), notTheirs.end(), port) == notTheirs.end()) visit(knock(port));
    for (const std::string& name : doors.names) {
      Result<UniqueFd> fd = connectUnix(name);
      if (fd.ok()) visit(fd.take());
    }
  }
}

}  // namespace

TEST_CASE("strangers at every door of a job neither enter nor break it", "[hostile]") {
  const std::vector<uint16_t> others = look().ports;
  const pid_t stranger = fork();
  REQUIRE(stranger >= 0);
  if (stranger == 0) molest(others);
  for (int i = 0; i < 10; ++i)
    CHECK(failures(runJob(
              3, [](int) -> std::string { return ""; },
              [](int rank, ulyssesResult_t init, ulyssesComm_t comm) -> std::string {
                EXPECT_OK(init);
                return exchangeExact(kStaged, 3, rank, comm);
              })) == "");
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
}

TEST_CASE("an error frame without a code, or without a text, is an error with both all the same", "[hostile]") {
  for (const FrameKind kind : {FrameKind::Refusal, FrameKind::Failure})
    for (const Status& told : {Status(), Status(ulyssesRemoteError, "")}) {
      int ends[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
      const UniqueFd hub(ends[0]);
      StarSpoke spoke(UniqueFd(ends[1]), 1, 3, "the hub");
      FrameHeader header;
      header.kind = kind;
      header.operation = 1;
      const Bytes frame = makeTextFrame(header, told);
      REQUIRE(sendAll(hub.get(), frame.data(), frame.size(), Deadline::afterMs(1000)).ok());
      std::vector<Bytes> all;
      const Status heard = spoke.allgather({}, 64, all, Deadline::afterMs(5000));
      CHECK(heard.code() == (told.ok() ? ulyssesInternalError : ulyssesRemoteError));
      CHECK(!heard.message().empty());
    }
}

TEST_CASE("a hello of another job opens nothing, and one of this job only once", "[hostile]") {
  const auto invitationOf = [](const ulyssesUniqueId& id) {
    Invitation invitation;
    std::memcpy(&invitation, id.internal, sizeof invitation);
    return invitation;
  };
  ulyssesUniqueId first, second;
  REQUIRE(ulyssesGetUniqueId(&first) == ulyssesSuccess);
  REQUIRE(ulyssesGetUniqueId(&second) == ulyssesSuccess);
  // What was overheard of the first job, said to the second.
  Invitation replayed = invitationOf(second);
  replayed.secret = invitationOf(first).secret;
  Hello hello;
  hello.rank = 1, hello.nranks = 2;
  std::vector<UniqueFd> kept;
  for (int i = 0; i < 20; ++i) {
    Result<UniqueFd> fd = connectToInvitation(replayed, hello, Deadline::afterMs(1000));
    REQUIRE(fd.ok());
    kept.push_back(fd.take());
  }
  const ulyssesConfig_t config = hostConfig(20000);
  CHECK(failures(runRanks(As::Threads, 2, [&](int rank) -> std::string {
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitRankConfig(&comm, 2, second, rank, &config));
          std::string text = exchangeExact(kStaged, 2, rank, comm);
          EXPECT_OK(ulyssesCommDestroy(comm));
          return text;
        })) == "");
  // The second job is complete: nobody is let in any more, secret or not.
  ulyssesComm_t comm = nullptr;
  CHECK(ulyssesCommInitRankConfig(&comm, 2, second, 1, &config) == ulyssesRemoteError);
}

}  // namespace ulysses::testing
