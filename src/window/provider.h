// Where window memory comes from: every provider gives the same thing, one base address per rank.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "bootstrap/bootstrap.h"

namespace ulysses {

// One rank's part of a window, as this process sees it. `keep` holds the memory, or the mapping of a peer's.
struct WindowPart {
  std::byte* base = nullptr;
  size_t bytes = 0;
  std::shared_ptr<void> keep;
};

class WindowProvider {
 public:
  virtual ~WindowProvider() = default;
  virtual const char* name() const = 0;

  // Whether memory may be unmapped at any time. Else only while all ranks are in allocate(): the driver may wait for
  // kernels that wait for other ranks.
  virtual bool unmapsAnytime() const { return true; }

  // Whether new windows have one size on all ranks, and go as a whole, on all ranks in one order: NCCL's registrations.
  virtual bool symmetric() const { return false; }

  // Collective: every rank brings `bytes` of new memory (0: none) and maps the others'. The outcome is agreed: on a
  // failure anywhere nothing is left on any rank and all return the first failing rank's code and text.
  virtual Status allocate(size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts, Deadline deadline) = 0;

  // Whether memory of the caller's own can be a window.
  virtual Status adopts() const {
    return Status(ulyssesNotSupported, "host memory of the caller's own cannot be mapped by other processes; use ulyssesMemAlloc");
  }
  // As allocate(), with memory that every rank has already (0 bytes: none) and that stays the caller's.
  // ulyssesNotSupported on all where one rank's cannot be mapped by others.
  virtual Status adopt(void*, size_t, ControlChannel&, std::vector<WindowPart>&, Deadline) { return adopts(); }
};

// Host memory: memory files passed between the processes of one host.
std::unique_ptr<WindowProvider> makeHostProvider();
// Device memory of CUDA device `device`, mapped into the other processes. In builds with CUDA.
std::unique_ptr<WindowProvider> makeDeviceProvider(int device);

class ControlPage;
struct NcclLibrary;
// The same through NCCL's windows, on ranks that chooseWindows() found able to. Collective; the outcome is agreed, and
// its text says why there is none. `page`: of these ranks; outlives the provider, as `channel` does. Memory of the
// caller's own, and all new memory after a registration that failed, is as that of makeDeviceProvider(). In builds with
// CUDA.
Result<std::unique_ptr<WindowProvider>> makeNcclProvider(const NcclLibrary& nccl, int device, ControlPage& page,
                                                         ControlChannel& channel, Deadline deadline);

}  // namespace ulysses
