// CUDA's runtime as the transports use it. For sources that are compiled with CUDA alone.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "base/format.h"
#include "base/status.h"

namespace ulysses {

inline Status cudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  const bool memory = error == cudaErrorMemoryAllocation;
  return Status(memory ? ulyssesOutOfMemory : ulyssesUnhandledCudaError,
                formatText("{}: {}", what, cudaGetErrorString(error)));
}
#define ULYSSES_CUDA(call) ULYSSES_TRY(cudaStatus((call), #call))

struct DeviceFree {
  void operator()(void* p) const { (void)cudaFree(p); }
};
using DeviceBuffer = std::unique_ptr<void, DeviceFree>;

// Zeroed.
inline Result<DeviceBuffer> deviceBuffer(size_t bytes) {
  void* p = nullptr;
  ULYSSES_TRY(cudaStatus(cudaMalloc(&p, bytes), "device memory for tables"));
  DeviceBuffer buffer(p);
  ULYSSES_CUDA(cudaMemset(p, 0, bytes));
  ULYSSES_CUDA(cudaStreamSynchronize(nullptr));  // other streams do not wait for it
  return buffer;
}

// Makes the device current for a launch. The context is there already, so unlike DeviceGuard this does nothing where
// the device is current.
class LaunchGuard {
 public:
  explicit LaunchGuard(int device) {
    int now = -1;
    status_ = cudaStatus(cudaGetDevice(&now), "cudaGetDevice");
    if (!status_.ok() || now == device) return;
    status_ = cudaStatus(cudaSetDevice(device), "cudaSetDevice");
    before_ = now;
  }
  ~LaunchGuard() {
    if (before_ >= 0 && cudaSetDevice(before_) != cudaSuccess) (void)cudaGetLastError();
  }
  LaunchGuard(const LaunchGuard&) = delete;
  LaunchGuard& operator=(const LaunchGuard&) = delete;
  const Status& status() const { return status_; }

 private:
  int before_ = -1;
  Status status_;
};

}  // namespace ulysses
