// What the opaque handles point to, and the frame around every C entry point.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "api/communicator.h"
#include "api/group.h"
#include "api/plan.h"
#include "base/caught.h"
#include "param/param_communicator.h"

// A handle is known by its mark; a destroyed one has lost it.
struct ulyssesComm {
  static constexpr uint64_t kMark = 0x756c79737365636f;
  uint64_t mark = kMark;
  std::shared_ptr<ulysses::Communicator> object;
};
struct ulyssesPlan {
  static constexpr uint64_t kMark = 0x756c79737365706c;
  uint64_t mark = kMark;
  std::shared_ptr<ulysses::Plan> object;
};
struct ulyssesParamComm {
  static constexpr uint64_t kMark = 0x756c79737365706d;
  uint64_t mark = kMark;
  std::shared_ptr<ulysses::ParamCommunicator> object;
};

namespace ulysses {

// A window of the caller's memory. It ends with its communicator at the latest.
struct CallerWindow {
  std::weak_ptr<Communicator> comm;
  uint32_t number;
};

}  // namespace ulysses

struct ulyssesWindow {
  static constexpr uint64_t kMark = 0x756c797373657769;
  uint64_t mark = kMark;
  std::shared_ptr<ulysses::CallerWindow> object;
};

namespace ulysses {

// Sets the thread's text and gives the code.
ulyssesResult_t report(const Status& status);

// Runs the body of an entry point: nothing thrown inside crosses into C.
template <class Body>
ulyssesResult_t guarded(Body&& body) {
  return report(caught(std::forward<Body>(body)));
}

// The object behind a handle, or why there is none.
template <class Handle>
auto open(Handle* handle, const char* what) -> Result<decltype(handle->object)> {
  if (handle == nullptr) return Status(ulyssesInvalidArgument, std::string(what) + " is NULL");
  if (handle->mark != Handle::kMark)
    return Status(ulyssesInvalidArgument, std::string(what) + " is not a live handle of this library");
  return handle->object;
}

template <class Handle, class Object>
Handle* makeHandle(std::shared_ptr<Object> object) {
  auto* handle = new Handle;
  handle->object = std::move(object);
  return handle;
}

template <class Handle>
void closeHandle(Handle* handle) {
  handle->mark = 0;
  delete handle;
}

inline Status checkStream(ulyssesStream_t stream) {
  if (stream == nullptr) return {};
  return Status(ulyssesInvalidArgument, "on host memory the stream is NULL");
}

// Runs a call of `comm` now, or at the group's end.
template <class Job>
Status nowOrLater(const std::shared_ptr<Communicator>& comm, Job job) {
  if (!group::active()) return job();
  group::add(comm.get(), std::move(job));
  return {};
}

}  // namespace ulysses
