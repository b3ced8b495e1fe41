// CUDA's runtime as windows, transports and parameters use it. For sources that are compiled with CUDA alone.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "base/format.h"
#include "base/status.h"

namespace ulysses {

// The runtime keeps the last error for the caller of cudaGetLastError: ours is reported as a Status alone.
inline Status cudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  const bool memory = error == cudaErrorMemoryAllocation;
  return Status(memory ? ulyssesOutOfMemory : ulyssesUnhandledCudaError,
                formatText("{}: {}", what, cudaGetErrorString(error)));
}
#define ULYSSES_CUDA(call) ULYSSES_TRY(cudaStatus((call), #call))

// Lets this thread do what a capture forbids (allocate, query events of the library's own) and leaves the caller's
// captures, of this thread or another, as they are: none of it belongs into a graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() {
    if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) (void)cudaGetLastError();
  }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Makes a device current, and the caller's again when it ends; nothing that is done meanwhile disturbs a capture.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    status_ = cudaStatus(cudaGetDevice(&before_), "cudaGetDevice");
    // Also where it is current already: the driver's functions need its context to exist.
    if (!status_.ok())
      before_ = -1;
    else
      status_ = cudaStatus(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceGuard() {
    if (before_ >= 0 && cudaSetDevice(before_) != cudaSuccess) (void)cudaGetLastError();
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  const Status& status() const { return status_; }

 private:
  const RelaxedCapture relaxed_;
  int before_ = -1;
  Status status_;
};

// For a launch. The context is there already, so unlike DeviceGuard this does nothing where the device is current.
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
  const RelaxedCapture relaxed_;
  int before_ = -1;
  Status status_;
};

struct StreamDestroy {
  void operator()(cudaStream_t stream) const { (void)cudaStreamDestroy(stream); }
};
using OwnStream = std::unique_ptr<CUstream_st, StreamDestroy>;

// Neither waits for the legacy stream nor makes it wait.
inline Result<OwnStream> ownStream() {
  cudaStream_t stream = nullptr;
  ULYSSES_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return OwnStream(stream);
}

// Both are over when they return, and wait for nothing else on the device: a kernel may spin until this rank is done.
inline Status clearNow(void* to, size_t bytes) {
  ULYSSES_ASSIGN(const OwnStream stream, ownStream());
  ULYSSES_CUDA(cudaMemsetAsync(to, 0, bytes, stream.get()));
  return cudaStatus(cudaStreamSynchronize(stream.get()), "clearing device memory");
}
inline Status uploadNow(void* to, const void* from, size_t bytes) {
  ULYSSES_ASSIGN(const OwnStream stream, ownStream());
  ULYSSES_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream.get()));
  return cudaStatus(cudaStreamSynchronize(stream.get()), "copying to device memory");
}

struct DeviceFree {
  void operator()(void* p) const {
    const RelaxedCapture relaxed;
    (void)cudaFree(p);
  }
};
using DeviceBuffer = std::unique_ptr<void, DeviceFree>;

// Zeroed.
inline Result<DeviceBuffer> deviceBuffer(size_t bytes) {
  void* p = nullptr;
  ULYSSES_TRY(cudaStatus(cudaMalloc(&p, bytes), "device memory for tables"));
  DeviceBuffer buffer(p);
  ULYSSES_TRY(clearNow(p, bytes));
  return buffer;
}

}  // namespace ulysses
