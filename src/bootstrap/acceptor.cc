#include "bootstrap/acceptor.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "bootstrap/socket.h"

namespace ulysses {

namespace {

constexpr int kHelloMs = 2000;
constexpr size_t kMaxStrangers = 64;
constexpr int kAcceptsPerTurn = 32;  // a flood must not keep the strangers' hellos from being read
constexpr int kPauseMs = 20;
constexpr int kShortageMs = 2000;

// Takes the same time wherever the difference is.
bool sameSecret(const Secret& a, const Secret& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

Acceptor::~Acceptor() {
  for (const UniqueFd& listener : listeners_) ::shutdown(listener.get(), SHUT_RDWR);
}

bool Acceptor::listen(Stranger& stranger, std::optional<Arrival>& arrival) const {
  std::vector<UniqueFd> unwanted;
  auto* bytes = reinterpret_cast<unsigned char*>(&stranger.hello);
  while (stranger.received < sizeof(Hello)) {
    const ssize_t n =
        receiveSome(stranger.connection.get(), bytes + stranger.received, sizeof(Hello) - stranger.received, unwanted);
    if (n == 0) return false;
    if (n < 0) return true;
    stranger.received += static_cast<size_t>(n);
  }
  // A wrong version with the right secret is a rank of another library version: that is for the caller to say.
  if (stranger.hello.magic == Hello::kMagic && sameSecret(stranger.hello.secret, secret_)) {
    arrival = Arrival{std::move(stranger.connection), stranger.hello};
  }
  return true;
}

std::optional<Acceptor::Arrival> Acceptor::acceptFrom(int listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd connection = acceptConnection(listener);
    if (!connection) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return std::nullopt;
      pause_ = Deadline::afterMs(kPauseMs);
      if (!strangers_.empty()) {
        strangers_.erase(strangers_.begin());
      } else if (!patience_) {
        patience_ = Deadline::afterMs(kShortageMs);
      }
      return std::nullopt;
    }
    patience_.reset();
    Stranger stranger{std::move(connection), Deadline::afterMs(kHelloMs), {}, 0};
    std::optional<Arrival> arrival;
    if (listen(stranger, arrival)) {
      if (arrival) return arrival;
      continue;
    }
    if (strangers_.size() == kMaxStrangers) strangers_.erase(strangers_.begin());
    strangers_.push_back(std::move(stranger));
  }
  return std::nullopt;
}

Acceptor::Event Acceptor::wait(std::span<const int> watched, Deadline deadline) {
  std::vector<pollfd> fds;
  for (;;) {
    strangers_.erase(
        std::remove_if(strangers_.begin(), strangers_.end(), [](const Stranger& s) { return s.deadline.passed(); }),
        strangers_.end());
    if (pause_ && pause_->passed()) pause_.reset();

    fds.clear();
    for (const int fd : watched) fds.push_back({fd, POLLRDHUP, 0});
    for (const UniqueFd& listener : listeners_) {
      fds.push_back({pause_ ? -1 : listener.get(), static_cast<short>(POLLIN), 0});
    }
    for (const Stranger& s : strangers_) fds.push_back({s.connection.get(), POLLIN, 0});

    Deadline wake = deadline;
    if (pause_) wake = earlier(wake, *pause_);
    if (!strangers_.empty()) wake = earlier(wake, strangers_.front().deadline);
    pollUntil(fds, wake);

    for (size_t i = 0; i < watched.size(); ++i) {
      if (fds[i].revents != 0) return {Event::HungUp, {}, i};
    }
    std::optional<Arrival> arrival;
    const size_t listenersAt = watched.size();
    const size_t strangersAt = listenersAt + listeners_.size();
    for (size_t i = 0; i < strangers_.size(); ++i) {
      if (fds[strangersAt + i].revents == 0 || !listen(strangers_[i], arrival)) continue;
      strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
      if (arrival) return {Event::Arrived, std::move(*arrival)};
      break;  // the positions in `fds` no longer match: the rest is read in the next turn
    }
    bool knocking = false;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (fds[listenersAt + i].revents == 0) continue;
      knocking = true;
      arrival = acceptFrom(listeners_[i].get());
      if (arrival) return {Event::Arrived, std::move(*arrival)};
    }
    if (!knocking && !pause_) patience_.reset();
    if (patience_ && patience_->passed()) return {Event::OutOfDescriptors};
    if (deadline.passed()) return {Event::DeadlinePassed};
  }
}

}  // namespace ulysses
