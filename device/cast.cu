#include "device/cast.h"

#include <cuda_runtime.h>

#include <algorithm>

namespace ulysses::device {
namespace {

constexpr int kCastThreads = 256;
constexpr size_t kMostCastCtas = 1024;

// Two elements a store; a shard is aligned to its element, its place among the casts to 16 bytes.
__global__ void __launch_bounds__(kCastThreads)
    castKernel(const uint32_t* __restrict__ in, uint16_t* __restrict__ out, size_t count, bool toBfloat16) {
  const size_t lanes = static_cast<size_t>(gridDim.x) * blockDim.x,
               lane = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto cast = [toBfloat16](uint32_t bits) -> uint32_t { return toBfloat16 ? bfloat16Of(bits) : float16Of(bits); };
  for (size_t pair = lane; pair < count / 2; pair += lanes)
    reinterpret_cast<uint32_t*>(out)[pair] = cast(in[2 * pair]) | cast(in[2 * pair + 1]) << 16;
  if (lane == 0 && count % 2 != 0) out[count - 1] = static_cast<uint16_t>(cast(in[count - 1]));
}

int settled(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace

int loadCast() {
  cudaFuncAttributes attributes;
  return settled(cudaFuncGetAttributes(&attributes, castKernel));
}

int launchCast(const void* in, void* out, size_t count, bool toBfloat16, CUstream_st* stream) {
  if (count == 0) return cudaSuccess;
  const size_t ctas = std::min(kMostCastCtas, (count / 2 + kCastThreads) / kCastThreads);
  castKernel<<<static_cast<unsigned>(ctas), kCastThreads, 0, stream>>>(static_cast<const uint32_t*>(in),
                                                                       static_cast<uint16_t*>(out), count, toBfloat16);
  return settled(cudaPeekAtLastError());
}

}  // namespace ulysses::device
