// Sockets as the bootstrap needs them: never inherited over exec, never SIGPIPE, never blocking without a deadline.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"

namespace ulysses {

// ulyssesSystemError: `what` failed, the kernel's reason, and what to do where that is known.
Status systemError(const std::string& what, int error = errno);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool loopback() const;
  std::string text() const;
};

// The addresses a TCP listener should have: of ULYSSES_SOCKET_IFNAME where set (a name or the beginning of one), else
// of the first interface that is up and not loopback (at most one IPv4 and one IPv6 address), and loopback. Ports are
// 0.
Result<std::vector<SocketAddress>> listeningAddresses();

// Listens at `address` on a free port, and fills the port in.
Result<UniqueFd> listenTcp(SocketAddress& address);
// A Unix socket's name that begins with '/' is a path; any other is of the abstract namespace: no file, nothing left
// behind, and not seen from other network namespaces.
Result<UniqueFd> listenUnix(const std::string& name);

// ulyssesRemoteError when nobody listens there, ulyssesTimeout when the deadline passes.
Result<UniqueFd> connectTcp(const SocketAddress& address, Deadline deadline);
Result<UniqueFd> connectUnix(const std::string& name);

// A new connection of `listener`, or an invalid one with errno set.
UniqueFd acceptConnection(int listener);

// Moves what can be moved at once: the number of bytes, 0 when the call would block, -1 when the connection is over.
// Descriptors travel with the first byte (Unix sockets only); what arrives is appended to `fds`.
ssize_t sendSome(int fd, const void* data, size_t bytes, std::span<const int> fds = {});
ssize_t receiveSome(int fd, void* data, size_t bytes, std::vector<UniqueFd>& fds);

// ulyssesRemoteError when the connection is over, ulyssesTimeout when the deadline passes.
Status sendAll(int fd, const void* data, size_t bytes, Deadline deadline, std::span<const int> fds = {});

// poll() that is not ended by a signal.
int pollUntil(std::span<pollfd> fds, Deadline deadline);

// True when the peer has closed the connection; consumes nothing.
bool hungUp(int connection);

}  // namespace ulysses
