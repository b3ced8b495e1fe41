// A caller's configuration of a communicator, checked and by value: for calls that run later, and for communicators
// that are split off.
#pragma once

#include <string>

#include "base/parameters.h"
#include "base/status.h"

namespace ulysses {

struct Config {
  Config() = default;
  // NULL: the defaults. Reads nothing beyond what the structure says it has.
  explicit Config(const ulyssesConfig_t* given);

  // Longest wait for a peer, in a call and while a communicator is made: what the environment says goes first.
  int callTimeoutMs(const Parameters& parameters) const;
  int initTimeoutMs(const Parameters& parameters) const;

  Status status;  // what is wrong with the given one; the values are the defaults then
  ulyssesConfig_t values = ULYSSES_CONFIG_INITIALIZER;
  std::string name;  // commName, which `values` does not point to
};

}  // namespace ulysses
