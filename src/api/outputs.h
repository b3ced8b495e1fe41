// Output structures that grow with versions: the caller's size says how much it knows.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "base/status.h"
#include "base/versioned.h"

namespace ulysses {

// Fills the caller's structure and keeps its size. Size 0 means the first version's layout, which is today's; nothing
// else of such a structure needs to be set.
template <class Info>
Status copyOut(const Info& full, Info* out, const char* name) {
  if (out == nullptr) return Status(ulyssesInvalidArgument, std::string(name) + " is NULL");
  const size_t size = out->size;
  if (size != 0) ULYSSES_TRY(checkVersioned(*out, name, "its initializer"));
  std::memcpy(out, &full, sizeof full);
  out->size = size;
  return {};
}

}  // namespace ulysses
