#include <cuda_runtime.h>

#include <algorithm>

#include "device/exchange.cuh"

namespace ulysses::device {

namespace {

constexpr int kInFlight = 4;

const void* const kExchange = reinterpret_cast<const void*>(&exchangeKernel<kInFlight, DeviceMemory>);
const void* const kLineExchange = reinterpret_cast<const void*>(&lineExchangeKernel<kInFlight, DeviceMemory>);
const void* const kSmallExchange = reinterpret_cast<const void*>(&smallExchangeKernel<kInFlight, DeviceMemory>);

// The caller gets the error; the runtime's memory of it is not left behind.
int settled(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

int launch(const void* kernel, const Exchange& exchange, CUstream_st* stream) {
  void* arguments[] = {const_cast<Exchange*>(&exchange)};
  return settled(cudaLaunchKernel(kernel, dim3(exchange.ctas), dim3(kThreads), arguments, 0, stream));
}

}  // namespace

int loadKernels() {
  for (const void* kernel : {kExchange, kLineExchange, kSmallExchange}) {
    cudaFuncAttributes attributes;
    if (const int error = settled(cudaFuncGetAttributes(&attributes, kernel)); error != 0) return error;
  }
  return cudaSuccess;
}

int residentCtas(int* ctas) {
  int device = 0, processors = 0, perProcessor = kMaxCtas;
  int error = settled(cudaGetDevice(&device));
  if (error == 0) error = settled(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  for (const void* kernel : {kExchange, kLineExchange, kSmallExchange}) {
    int blocks = 0;
    if (error == 0) error = settled(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, 0));
    perProcessor = std::min(perProcessor, blocks);
  }
  *ctas = processors * perProcessor;
  return error;
}

int launchExchange(const Exchange& exchange, CUstream_st* stream) {
  return launch(exchange.tileBytes != 0 ? kExchange : kLineExchange, exchange, stream);
}

int launchSmallExchange(const Exchange& exchange, CUstream_st* stream) {
  return launch(kSmallExchange, exchange, stream);
}

}  // namespace ulysses::device
