#include "device/staging_copy.h"

#include <cuda_runtime.h>

#include "device/copy.cuh"

namespace ulysses::device {
namespace {

constexpr int kInFlight = 4;
constexpr int kCopyThreads = 512;

// blockIdx.y is the part, blockIdx.x the CTA among those that share it.
__global__ void __launch_bounds__(kCopyThreads) stagingCopyKernel(const __grid_constant__ StagedCopy x) {
  __shared__ uint64_t in[kMaxOperands], out[kMaxOperands];
  for (uint32_t i = threadIdx.x; i < static_cast<uint32_t>(x.operands); i += blockDim.x) {
    in[i] = x.in[i];
    out[i] = x.out[i];
  }
  __syncthreads();
  copyStaged<kInFlight, DeviceMemory>(x, x.parts[blockIdx.y], in, out, blockIdx.x, threadIdx.x, blockDim.x);
}

int settled(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace

int loadStagingCopy() {
  cudaFuncAttributes attributes;
  return settled(cudaFuncGetAttributes(&attributes, stagingCopyKernel));
}

int launchStagingCopy(const StagedCopy& copy, CUstream_st* stream) {
  if (copy.count == 0) return cudaSuccess;
  StagedCopy x = copy;
  void* arguments[] = {&x};
  return settled(cudaLaunchKernel(reinterpret_cast<const void*>(&stagingCopyKernel), dim3(x.ctas, x.count),
                                  dim3(kCopyThreads), arguments, 0, stream));
}

}  // namespace ulysses::device
