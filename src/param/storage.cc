#include "param/storage.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/checked.h"
#include "base/format.h"
#include "base/log.h"
#include "param/device_shards.h"

namespace ulysses {
namespace {

constexpr size_t kPageBytes = 4096;       // what windows and plain host memory begin at
constexpr size_t kDeviceAlignment = 256;  // what cudaMalloc gives

Status outOfMemory(size_t bytes) {
  const size_t available = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return Status(
      ulyssesOutOfMemory,
      formatText("{} bytes wanted for gathered parameters, {} available; a budget or transient residency needs "
                 "less",
                 bytes, available));
}

}  // namespace

Status Storage::allocate(Communicator& comm, std::span<const Size> sizes, std::vector<Storage>* out) {
  size_t room = 0;
  ULYSSES_TRY(comm.windowRoom(&room));
  std::vector<Storage> made(sizes.size());
  const auto wanted = [&](size_t i) {
    const bool slack = sizes[i].alignment > (comm.onDevice() ? kDeviceAlignment : kPageBytes);
    return alignUp(made[i].bytes_ + (slack ? sizes[i].alignment : 0), kPageBytes);
  };
  // Windows first, which all ranks make together: a rank that has no plain memory fails alone, and then makes no more.
  for (size_t i = 0; i < sizes.size(); ++i) {
    Storage& s = made[i];
    s.bytes_ = std::max<size_t>(sizes[i].bytes, 1);
    if (wanted(i) > room) continue;
    const Status status = comm.allocateWindow(wanted(i), &s.base_);
    if (status.code() == ulyssesTimeout || status.code() == ulyssesRemoteError) return status;
    if (status.ok()) {
      s.comm_ = &comm;
      room -= wanted(i);
    } else {
      ULYSSES_LOG(Info, -1, "gathered parameters go to plain memory: {}", status.message());
      room = 0;
    }
  }
  Status local;
  for (size_t i = 0; i < sizes.size() && local.ok(); ++i) {
    Storage& s = made[i];
    if (s.base_ == nullptr && comm.onDevice()) {
      s.device_ = comm.device();
      Result<std::byte*> memory = allocateDeviceMemory(wanted(i), s.device_);
      if (!memory.ok()) {
        local = Status(memory.status().code(), formatText("{} bytes of device memory for gathered parameters: {}",
                                                          wanted(i), memory.status().message()));
        break;
      }
      s.base_ = memory.value();
    } else if (s.base_ == nullptr) {
      s.base_ = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, wanted(i)));
      if (s.base_ == nullptr) {
        local = outOfMemory(wanted(i));
        break;
      }
      std::memset(s.base_, 0, wanted(i));  // the pages are had now, not in a gather
    }
    const auto address = reinterpret_cast<uintptr_t>(s.base_);
    s.data_ = s.base_ + (alignUp(address, std::max<size_t>(sizes[i].alignment, 1)) - address);
  }
  ULYSSES_TRY(comm.agreeLocal(local));
  *out = std::move(made);
  return {};
}

void Storage::release() {
  if (base_ == nullptr) return;
  if (comm_ == nullptr && device_ >= 0) {
    freeDeviceMemory(base_, device_);
  } else if (comm_ == nullptr) {
    std::free(base_);
  } else if (const Status status = comm_->memFree(base_); !status.ok()) {
    ULYSSES_LOG(Warn, -1, "storage of gathered parameters: {}", status.message());
  }
}

}  // namespace ulysses
