// Turns what the standard library throws into a Status.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "base/status.h"

namespace ulysses {

template <class Body>
Status caught(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return Status(ulyssesOutOfMemory, "out of host memory inside the library");
  } catch (const std::exception& e) {
    return Status(ulyssesInternalError, e.what());
  }
}

}  // namespace ulysses
