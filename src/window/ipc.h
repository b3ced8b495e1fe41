// Device memory that the GPUs of other ranks can write: VMM allocations shared as file descriptors, legacy CUDA IPC
// where those can't be had. Ranks of one process use each other's addresses.
//
// Nothing here may run while a kernel that waits for another rank may be on the device: the driver may synchronise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/process.h"
#include "base/status.h"

namespace ulysses {

class DeviceMemory {
 public:
  enum class Kind : uint32_t { Vmm, LegacyIpc };

  // What another rank needs to map the memory, beside the descriptor (Kind::Vmm alone has one). Plain bytes.
  struct Offer {
    ProcessToken process;
    Kind kind = Kind::Vmm;
    int32_t device = -1;       // the owner's number for it
    uint64_t address = 0;      // in that process
    uint64_t mappedBytes = 0;  // of the allocation it is part of
    uint64_t offset = 0;       // in that allocation
    uint64_t bytes = 0;
    unsigned char legacyHandle[64] = {};
  };

  // New memory, rounded up to the device's granularity: bytes() is what is really reserved. Its contents are undefined.
  // ulyssesOutOfMemory gives the wanted and the free bytes.
  static Result<std::shared_ptr<DeviceMemory>> create(size_t bytes, int device);

  // The caller's own device memory, which stays the caller's and must outlive this. ulyssesNotSupported where it can't
  // be exported.
  static Result<std::shared_ptr<DeviceMemory>> adopt(void* ptr, size_t bytes, int device);

  // Another rank's memory, for this rank's device. Of another process: `fd` is the descriptor that came with the offer.
  // Of this process: `owner` lets the device in, and is kept.
  static Result<std::shared_ptr<DeviceMemory>> open(const Offer& offer, UniqueFd fd, int device);
  static Result<std::shared_ptr<DeviceMemory>> open(const std::shared_ptr<DeviceMemory>& owner, int device);

  // Unmaps; the owner's also frees. Peers unmap before owners free.
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  size_t bytes() const { return offer_.bytes; }
  const Offer& offer() const { return offer_; }
  int fd() const { return fd_.get(); }  // -1: none is needed

 private:
  enum class Held { Nothing, VmmMapping, VmmReservation, LegacyAllocation, LegacyMapping };

  DeviceMemory() = default;
  Status allocateVmm(size_t bytes, int device);
  Status allocateLegacy(size_t bytes, int device);
  Status mapVmm(unsigned long long handle, size_t bytes, int device);
  Status letIn(int device);

  Offer offer_;
  UniqueFd fd_;
  int device_ = -1;
  Held held_ = Held::Nothing;
  uint64_t address_ = 0;  // of the memory; the mapping starts offer_.offset before it
  std::shared_ptr<DeviceMemory> owner_;
};

// Bytes of the allocation that `ptr` lies in, on the current device.
Result<size_t> allocationBytes(const void* ptr);

}  // namespace ulysses
