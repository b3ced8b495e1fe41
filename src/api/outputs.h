// Output structures that grow with versions: the caller's size says how much it knows.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "base/status.h"

namespace ulysses {

// Copies as much of `full` as the caller's structure holds, and keeps its size. Size 0 means the first version's
// layout, which is today's.
template <class Info>
Status copyOut(const Info& full, Info* out, const char* name) {
  if (out == nullptr) return Status(ulyssesInvalidArgument, std::string(name) + " is NULL");
  const size_t known = out->size == 0 ? sizeof(Info) : out->size;
  if (known < offsetof(Info, version) + sizeof full.version)
    return Status(ulyssesInvalidArgument, std::string(name) + "->size is smaller than any version of the structure");
  const size_t size = out->size;
  std::memcpy(out, &full, std::min(known, sizeof full));
  out->size = size;
  return {};
}

}  // namespace ulysses
