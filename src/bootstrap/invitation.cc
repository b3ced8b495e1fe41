#include "bootstrap/invitation.h"

#include <netinet/in.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/format.h"
#include "base/process.h"
#include "bootstrap/socket.h"

namespace ulysses {

namespace {

// An address that drops packets silently must not use up the time of the others.
constexpr int kConnectMs = 5000;

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

Invitation::Endpoint toEndpoint(const SocketAddress& address) {
  Invitation::Endpoint endpoint;
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    endpoint.family = 4;
    endpoint.port = ntohs(v4.sin_port);
    std::memcpy(endpoint.address.data(), &v4.sin_addr, sizeof v4.sin_addr);
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    endpoint.family = 6;
    endpoint.port = ntohs(v6.sin6_port);
    std::memcpy(endpoint.address.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
  }
  return endpoint;
}

SocketAddress toAddress(const Invitation::Endpoint& endpoint) {
  SocketAddress address;
  if (endpoint.family == 4) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(endpoint.port);
    std::memcpy(&v4.sin_addr, endpoint.address.data(), sizeof v4.sin_addr);
    address.length = sizeof v4;
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(endpoint.port);
    std::memcpy(&v6.sin6_addr, endpoint.address.data(), sizeof v6.sin6_addr);
    address.length = sizeof v6;
  }
  return address;
}

// The addresses worth trying from here, the nearest first.
std::vector<SocketAddress> reachable(const Invitation& invitation) {
  const bool local = invitation.locality == localityHash();
  std::vector<SocketAddress> addresses;
  for (uint32_t i = 0; i < std::min<uint32_t>(invitation.count, invitation.endpoints.size()); ++i) {
    const SocketAddress address = toAddress(invitation.endpoints[i]);
    if (local || !address.loopback()) addresses.push_back(address);
  }
  std::stable_partition(addresses.begin(), addresses.end(), [](const SocketAddress& a) { return a.loopback(); });
  return addresses;
}

}  // namespace

uint64_t hostHash() {
  return fnv1a(hostIdentity());
}

uint64_t localityHash() {
  struct stat facts {};
  const bool known = ::stat("/proc/self/ns/net", &facts) == 0;
  return fnv1a(formatText("{}/{}", hostIdentity(), known ? static_cast<uint64_t>(facts.st_ino) : 0));
}

Result<Listening> listenForRanks() {
  Listening listening;
  Invitation& invitation = listening.invitation;
  ULYSSES_ASSIGN(std::vector<SocketAddress> addresses, listeningAddresses());
  Status last;
  for (SocketAddress& address : addresses) {
    if (invitation.count == invitation.endpoints.size()) break;
    Result<UniqueFd> listener = listenTcp(address);
    if (!listener.ok()) {
      last = listener.status();  // one family may be switched off; one address is enough
      continue;
    }
    listening.listeners.push_back(listener.take());
    invitation.endpoints[invitation.count++] = toEndpoint(address);
  }
  if (invitation.count == 0) return last;
  invitation.locality = localityHash();
  randomBytes(invitation.secret.data(), invitation.secret.size());
  return listening;
}

int socketShortage() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd || errno == EAFNOSUPPORT ? 0 : errno;
}

bool sayWithoutDescriptors(const Invitation& invitation, Hello hello, int failure, Deadline deadline) {
  hello.failure = failure;
  bool said = false;
  try {
    // A thread may take its copy of the descriptor table for its own, and make room there: the process keeps its
    // descriptors, and the one closed in the copy stays what it is.
    std::thread([&] {
      if (::unshare(CLONE_FILES) != 0) return;
      for (int fd = 0; fd < 1024 && ::syscall(SYS_close, fd) != 0; ++fd) {}
      said = connectToInvitation(invitation, hello, deadline).ok();
    }).join();
  } catch (const std::system_error&) {
  }
  return said;
}

Result<UniqueFd> connectToInvitation(const Invitation& invitation, Hello hello, Deadline deadline) {
  const std::vector<SocketAddress> addresses = reachable(invitation);
  if (addresses.empty()) {
    return Status(ulyssesRemoteError,
                  "the listener has only loopback addresses and is not on this host or not in this network namespace; "
                  "set ULYSSES_SOCKET_IFNAME there to an interface that this rank can reach");
  }
  hello.secret = invitation.secret;
  for (;;) {
    std::string reasons;
    bool retry = false;
    for (const SocketAddress& address : addresses) {
      const int left = deadline.remainingMs();
      Result<UniqueFd> connection =
          connectTcp(address, Deadline::afterMs(left < 0 ? kConnectMs : std::min(left, kConnectMs)));
      Status status = connection.status();
      if (status.ok()) {
        hello.remainingMs = deadline.remainingMs();
        status = sendAll(connection.value().get(), &hello, sizeof hello, deadline);
        if (status.ok()) return connection.take();
      }
      if (status.code() == ulyssesSystemError) return status;
      retry = retry || status.code() == ulyssesTimeout;
      reasons += (reasons.empty() ? "" : "; ") + status.message();
    }
    if (!retry) return Status(ulyssesRemoteError, reasons);
    if (deadline.passed()) return Status(ulyssesTimeout, reasons);
  }
}

}  // namespace ulysses
