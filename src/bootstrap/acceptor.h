// Lets ranks in and keeps everybody else out: a connection that does not show the secret soon is dropped, and delays
// nobody meanwhile.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "bootstrap/invitation.h"

namespace ulysses {

class Acceptor {
 public:
  struct Arrival {
    UniqueFd connection;
    Hello hello;
  };
  struct Event {
    enum Kind { Arrived, HungUp, DeadlinePassed, OutOfDescriptors } kind;
    Arrival arrival{};   // Arrived: it has shown the secret; rank and nranks are as it claims
    size_t watched = 0;  // HungUp: which of `watched`
  };

  Acceptor(std::vector<UniqueFd> listeners, const Secret& secret) : listeners_(std::move(listeners)), secret_(secret) {}
  // Closes the listeners in forked children too: from now on connecting is refused.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Waits for the next rank, or until one of the connections `watched` (-1: none) hangs up.
  Event wait(std::span<const int> watched, Deadline deadline);

 private:
  struct Stranger {
    UniqueFd connection;
    Deadline deadline;
    Hello hello;
    size_t received = 0;
  };

  std::optional<Arrival> acceptFrom(int listener);
  // True when the connection is decided: it is a rank (then `arrival` is set) or was dropped.
  bool listen(Stranger& stranger, std::optional<Arrival>& arrival) const;

  std::vector<UniqueFd> listeners_;
  Secret secret_;
  std::vector<Stranger> strangers_;  // the oldest first
  std::optional<Deadline> pause_;    // set while descriptors are short: accepting again at once would only spin
  std::optional<Deadline> patience_;
};

}  // namespace ulysses
