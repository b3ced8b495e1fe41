// What a rank must know to reach a listener, and what it shows there. A unique id is an invitation; so is what rank 0
// tells the others when a control channel opens.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"

namespace ulysses {

// Ranks of different versions of these structs and of frame.h must not talk to each other.
constexpr uint32_t kWireVersion = 1;

using Secret = std::array<uint8_t, 16>;

struct Invitation {
  struct Endpoint {
    uint16_t family = 0;  // 4 or 6
    uint16_t port = 0;
    std::array<uint8_t, 16> address{};
  };
  static constexpr uint32_t kMagic = 0x4449'4c55;

  uint32_t magic = kMagic;
  uint32_t version = kWireVersion;
  Secret secret{};
  uint64_t locality = 0;  // of the listener
  uint32_t count = 0;
  std::array<Endpoint, 3> endpoints{};
};
static_assert(sizeof(Invitation) <= ULYSSES_UNIQUE_ID_BYTES);

// The first bytes on every connection. Fixed in size, so that a stranger cannot make the listener allocate.
struct Hello {
  static constexpr uint32_t kMagic = 0x4f4c'4c48;

  uint32_t magic = kMagic;
  uint32_t version = kWireVersion;
  Secret secret{};
  int32_t rank = -1;
  int32_t nranks = 0;
  int32_t remainingMs = -1;  // until this rank's deadline; -1 = none
  int32_t failure = 0;       // errno of what keeps this rank from taking part; 0 = it comes
};

// Equal for processes that reach each other by loopback and by abstract Unix sockets: one host, one network namespace.
uint64_t localityHash();
uint64_t hostHash();

struct Listening {
  Invitation invitation;
  std::vector<UniqueFd> listeners;
};
Result<Listening> listenForRanks();

// errno where this process cannot open a socket at all, as without descriptors; else 0.
int socketShortage();
// Where it cannot: shows `hello`, with that failure, all the same. Best effort; false when it could not be said.
bool sayWithoutDescriptors(const Invitation& invitation, Hello hello, int failure, Deadline deadline);

// Connects to the first endpoint that answers and shows `hello` there. ulyssesRemoteError when nobody listens any more.
Result<UniqueFd> connectToInvitation(const Invitation& invitation, Hello hello, Deadline deadline);

}  // namespace ulysses
