// What the core asks of CUDA beside a transport: transport/device.h.
#ifdef ULYSSES_HAVE_CUDA
#include "base/cuda_support.h"

#include "transport/device.h"

namespace ulysses {

bool isCapturing(ulyssesStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) (void)cudaGetLastError();
  return status != cudaStreamCaptureStatusNone;
}

Status copyOnDevice(const Schedule& schedule, const void* const in[], void* const out[], ulyssesStream_t stream) {
  for (size_t i = 0; i < schedule.operands; ++i)
    for (const layout::BlockCopy& c : schedule.shares[0][i].direct.copies()) {
      const auto* src = static_cast<const std::byte*>(in[i]) + c.srcOffset;
      auto* dst = static_cast<std::byte*>(out[i]) + c.dstOffset;
      if (src != dst)
        ULYSSES_CUDA(
            cudaMemcpy2DAsync(dst, c.dstPitch, src, c.srcPitch, c.rowBytes, c.rows, cudaMemcpyDeviceToDevice, stream));
    }
  return {};
}

Status synchroniseStream(ulyssesStream_t stream) {
  return cudaStatus(cudaStreamSynchronize(stream), "waiting for the stream");
}

int currentCudaDevice() {
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  return device;
}

void setCurrentCudaDevice(int device) {
  if (device >= 0 && cudaSetDevice(device) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace ulysses
#endif
