#include "bootstrap/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "base/format.h"
#include "base/parameters.h"

namespace ulysses {

namespace {

constexpr size_t kMaxFdsPerMessage = 64;

const sockaddr_in& asIpv4(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in&>(a.storage);
}
const sockaddr_in6& asIpv6(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in6&>(a.storage);
}

SocketAddress copyAddress(const sockaddr* from) {
  SocketAddress address;
  address.length = from->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address.storage, from, address.length);
  return address;
}

SocketAddress loopbackAddress() {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.length = sizeof v4;
  return address;
}

// An address that another host can use as it stands: a link-local one means nothing without this host's interface.
bool usable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0 || (entry.ifa_flags & IFF_RUNNING) == 0)
    return false;
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  return entry.ifa_addr->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
}

struct UnixAddress {
  sockaddr_un storage{};
  socklen_t length = 0;
};

Result<UnixAddress> unixAddress(const std::string& name) {
  UnixAddress address;
  // A path ends with a 0 byte, an abstract name begins with one.
  if (name.size() >= sizeof address.storage.sun_path) {
    return Status(ulyssesInvalidArgument, formatText("{} is too long for a Unix socket's name (at most {} bytes)", name,
                                                     sizeof address.storage.sun_path - 1));
  }
  const bool isPath = name.rfind('/', 0) == 0;
  address.storage.sun_family = AF_UNIX;
  std::memcpy(address.storage.sun_path + (isPath ? 0 : 1), name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Small frames leave at once, and a host that vanishes without a word is noticed within half a minute. Best effort.
void tuneTcp(int fd) {
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

// Moves every descriptor of a received message into `fds`.
void takeFds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

Status systemError(const std::string& what, int error) {
  std::string text = formatText("{}: {} (errno {})", what, std::generic_category().message(error), error);
  if (error == EMFILE) text += "; raise this process's limit of open files (ulimit -n)";
  if (error == ENFILE) text += "; raise this machine's limit of open files (fs.file-max)";
  return {ulyssesSystemError, std::move(text)};
}

bool SocketAddress::loopback() const {
  if (storage.ss_family == AF_INET) return (ntohl(asIpv4(*this).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&asIpv6(*this).sin6_addr);
}

std::string SocketAddress::text() const {
  char buffer[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &asIpv4(*this).sin_addr, buffer, sizeof buffer);
    return formatText("{}:{}", buffer, ntohs(asIpv4(*this).sin_port));
  }
  ::inet_ntop(AF_INET6, &asIpv6(*this).sin6_addr, buffer, sizeof buffer);
  return formatText("[{}]:{}", buffer, ntohs(asIpv6(*this).sin6_port));
}

Result<std::vector<SocketAddress>> listeningAddresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return systemError("listing the network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);

  const std::string wanted = Parameters::fromEnvironment().socketIfname;
  const auto pick = [&](auto matches) -> std::string {
    for (const ifaddrs* e = list; e != nullptr; e = e->ifa_next) {
      if (usable(*e) && matches(*e)) return e->ifa_name;
    }
    return {};
  };
  std::string name;
  if (wanted.empty()) {
    name = pick([](const ifaddrs& e) { return (e.ifa_flags & IFF_LOOPBACK) == 0; });
  } else {
    name = pick([&](const ifaddrs& e) { return wanted == e.ifa_name; });
    if (name.empty()) name = pick([&](const ifaddrs& e) { return std::string(e.ifa_name).rfind(wanted, 0) == 0; });
    if (name.empty()) {
      return Status(ulyssesInvalidArgument,
                    formatText("ULYSSES_SOCKET_IFNAME={}: no interface of that name is up with an IP address; unset it "
                               "or name one that `ip addr` shows",
                               wanted));
    }
  }

  std::vector<SocketAddress> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* e = list; e != nullptr; e = e->ifa_next) {
      if (!usable(*e) || name != e->ifa_name || e->ifa_addr->sa_family != family) continue;
      addresses.push_back(copyAddress(e->ifa_addr));
      break;
    }
  }
  const auto isLoopback = [](const SocketAddress& a) { return a.loopback(); };
  if (std::none_of(addresses.begin(), addresses.end(), isLoopback)) addresses.push_back(loopbackAddress());
  return addresses;
}

Result<UniqueFd> listenTcp(SocketAddress& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    const int error = errno;
    return systemError(formatText("listening at {}", address.text()), error);
  }
  return fd;
}

Result<UniqueFd> listenUnix(const std::string& name) {
  ULYSSES_ASSIGN(const UnixAddress address, unixAddress(name));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    return systemError("listening at a Unix socket");
  }
  return fd;
}

Result<UniqueFd> connectTcp(const SocketAddress& address, Deadline deadline) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return systemError("opening a TCP socket");
  tuneTcp(fd.get());
  if (::connect(fd.get(), address.get(), address.length) == 0) return fd;
  // A connect that a signal interrupts goes on in the background, like one that is in progress.
  int error = errno;
  if (error == EINPROGRESS || error == EINTR) {
    pollfd waiting{fd.get(), POLLOUT, 0};
    if (pollUntil({&waiting, 1}, deadline) == 0) {
      return Status(ulyssesTimeout, formatText("connecting to {} timed out", address.text()));
    }
    socklen_t length = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  }
  if (error == 0) return fd;
  return Status(ulyssesRemoteError,
                formatText("connecting to {}: {}", address.text(), std::generic_category().message(error)));
}

Result<UniqueFd> connectUnix(const std::string& name) {
  ULYSSES_ASSIGN(const UnixAddress address, unixAddress(name));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return systemError("opening a Unix socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0) {
    return Status(ulyssesRemoteError,
                  formatText("connecting to a Unix socket: {}", std::generic_category().message(errno)));
  }
  return fd;
}

UniqueFd acceptConnection(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const int error = errno;
  if (fd) tuneTcp(fd.get());  // no effect on a Unix socket
  errno = error;
  return fd;
}

ssize_t sendSome(int fd, const void* data, size_t bytes, std::span<const int> fds) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != ETOOMANYREFS) return -1;
    // Too many descriptors of this user are under way; the socket itself is writable, so poll() would not wait.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  }
}

ssize_t receiveSome(int fd, void* data, size_t bytes, std::vector<UniqueFd>& fds) {
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  for (;;) {
    const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n > 0) {
      takeFds(message, fds);
      return n;
    }
    if (n == 0) return -1;
    if (errno != EINTR) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
}

Status sendAll(int fd, const void* data, size_t bytes, Deadline deadline, std::span<const int> fds) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = sendSome(fd, next, bytes, fds);
    if (n < 0) return {ulyssesRemoteError, "its connection is closed"};
    next += n;
    bytes -= static_cast<size_t>(n);
    if (n > 0) {
      fds = {};  // they went with the first byte
      continue;
    }
    pollfd waiting{fd, POLLOUT, 0};
    pollUntil({&waiting, 1}, deadline);
    if (deadline.passed()) return {ulyssesTimeout, "it does not read what is sent to it"};
  }
  return {};
}

int pollUntil(std::span<pollfd> fds, Deadline deadline) {
  for (;;) {
    // One millisecond more than is left: the rest is rounded down, and a wait must not end before its deadline.
    const int left = deadline.remainingMs();
    const int ready = ::poll(fds.data(), fds.size(), left < 0 || left == INT_MAX ? left : left + !deadline.passed());
    if (ready >= 0 || errno != EINTR) return ready;
  }
}

bool hungUp(int connection) {
  pollfd state{connection, POLLRDHUP, 0};
  return ::poll(&state, 1, 0) > 0;
}

}  // namespace ulysses
