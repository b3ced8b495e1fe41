// Who and where this process is.
#pragma once

#include <cstdint>
#include <string>

namespace ulysses {

// Differs between any two live processes, a forked child included; the same for all threads of one.
struct ProcessToken {
  uint64_t pid = 0, nonce = 0;
  friend bool operator==(const ProcessToken&, const ProcessToken&) = default;
};
ProcessToken processToken();

// The kernel's boot id (ULYSSES_HOSTID where set): what "the same host" means. Never a name.
std::string hostIdentity();
std::string hostName();

// Fills with the kernel's random bytes.
void randomBytes(void* data, size_t bytes);

}  // namespace ulysses
