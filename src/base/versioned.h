// The frame that every versioned struct of the API begins with: size, magic, version.
#pragma once

#include "base/format.h"
#include "base/status.h"

namespace ulysses {

// Whether a caller's struct comes from its initializer, in a version that this library knows.
template <class Struct>
Status checkVersioned(const Struct& given, const char* what, const char* initializer) {
  if (given.magic != ULYSSES_MAGIC || given.size < sizeof(Struct))
    return Status(ulyssesInvalidArgument, formatText("{} was not set up with {}", what, initializer));
  if (given.version == 0 || given.version > ULYSSES_VERSION_CODE)
    return Status(ulyssesInvalidArgument, formatText("{} is of version {}, this library knows versions up to {}", what,
                                                     given.version, ULYSSES_VERSION_CODE));
  return {};
}

}  // namespace ulysses
