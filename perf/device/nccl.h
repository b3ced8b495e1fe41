// NCCL's own collectives, for the comparisons on device memory. Loaded at run time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/ranks.h"
#include "device/device.h"
#include "topology/nccl_library.h"

namespace ulysses::perf {

// Memory of NCCL's own in a window of its communicator, which goes before the communicator does.
class NcclWindow {
 public:
  NcclWindow(std::byte* data, std::function<void()> release) : data_(data), release_(std::move(release)) {}
  ~NcclWindow() { release_(); }
  NcclWindow(const NcclWindow&) = delete;
  NcclWindow& operator=(const NcclWindow&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* const data_;
  const std::function<void()> release_;
};

class Nccl {
 public:
  // Collective. Null, with the reason in `*why`, the same on all ranks, where NCCL isn't there or refuses these ranks.
  static Result<std::unique_ptr<Nccl>> open(Rank& rank, Device& device, int ranksPerDevice, std::string* why);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // Collective. Null on all ranks where this version has no windows, or refuses one.
  std::unique_ptr<NcclWindow> window(Rank& rank, size_t bytes);

  std::string version() const { return ncclVersionText(library_.version); }

  // On the device's stream. `bytes` for each peer.
  Status allGather(const std::byte* in, std::byte* out, size_t bytes);
  Status allToAll(const std::byte* in, std::byte* out, size_t bytes) { return allToAll(in, out, bytes, 1); }
  // `planes` of them, each [peer][bytes], in one group.
  Status allToAll(const std::byte* in, std::byte* out, size_t bytes, size_t planes);

 private:
  Nccl(const NcclLibrary& library, Device& device, int nranks) : library_(library), device_(device), nranks_(nranks) {}
  Status status(NcclLibrary::Result result, const char* what) const;

  const NcclLibrary library_;
  Device& device_;
  const int nranks_;
  ncclComm* comm_ = nullptr;
};

}  // namespace ulysses::perf
