#include "device/flags.h"

#include <cuda_runtime.h>

#include "device/exchange.cuh"

namespace ulysses::device {

namespace {

constexpr int kEntryThreads = 160;  // a lane for every word of every rank's entry
constexpr int kWarp = 32;

__device__ uint64_t* flagAt(const Channel& channel, Flag flag, int owner, int writer) {
  auto* flags = reinterpret_cast<Flags*>(channel.flags[owner]);
  return flag == Flag::Landed ? &flags->landed[writer][0] : &flags->credit[writer][0];
}

__global__ void __launch_bounds__(kEntryThreads) entryKernel(const __grid_constant__ Exchange x, uint64_t contract) {
  __shared__ CtaState cta;
  announce(x);
  if (threadIdx.x == 0) cta.epoch = loadRelaxed(&x.channel.epoch->value) + 1;
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(&x.channel.epoch->value, cta.epoch);  // announce() has read the one before
  readEntries(x, cta);
  if (threadIdx.x >= kWarp) return;
  const int peer = threadIdx.x;
  const bool sends = peer < x.channel.nranks && peer != x.channel.rank && cta.contract[peer] == contract;
  const uint32_t senders = __ballot_sync(~0u, sends);
  if (threadIdx.x == 0) x.channel.epoch->senders = senders;
}

// The copies before it on the stream are complete: the release makes that known with the flag. (No manual says so of
// copy engines; a test on several GPUs has to hold it.)
__global__ void __launch_bounds__(1)
    raiseKernel(const __grid_constant__ Channel channel, Flag flag, int peer, uint32_t count) {
  __threadfence_system();
  storeRelease(flagAt(channel, flag, peer, channel.rank), flagValue(loadRelaxed(&channel.epoch->value), count));
}

__global__ void __launch_bounds__(kWarp)
    awaitKernel(const __grid_constant__ Channel channel, Flag flag, int peer, uint32_t count) {
  const int from = threadIdx.x;
  const uint32_t epoch = loadRelaxed(&channel.epoch->value);
  const bool awaited = (peer < 0 || peer == from) && (loadRelaxed(&channel.epoch->senders) >> from & 1) != 0;
  bool arrived = true;
  if (awaited) {
    const uint64_t* word = flagAt(channel, flag, channel.rank, from);
    arrived = await(channel.host, [&] { return reached(word, flagValue(epoch, count)); });
  }
  if (!__all_sync(~0u, arrived) && from == 0) reportError(channel, epoch, KernelError::Aborted, -1);
}

// The caller gets the error; the runtime's memory of it is not left behind.
int settled(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

template <class... Parameters>
int launch(void (*kernel)(Parameters...), int threads, CUstream_st* stream, Parameters... parameters) {
  void* arguments[] = {&parameters...};
  return settled(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(1), dim3(threads), arguments, 0, stream));
}

}  // namespace

int loadFlagKernels() {
  for (const void* kernel : {reinterpret_cast<const void*>(&entryKernel), reinterpret_cast<const void*>(&raiseKernel),
                             reinterpret_cast<const void*>(&awaitKernel)}) {
    cudaFuncAttributes attributes;
    if (const int error = settled(cudaFuncGetAttributes(&attributes, kernel)); error != 0) return error;
  }
  return cudaSuccess;
}

int launchEntry(const Exchange& x, uint64_t contract, CUstream_st* stream) {
  return launch(&entryKernel, kEntryThreads, stream, x, contract);
}

int launchRaise(const Channel& channel, Flag flag, int peer, uint32_t count, CUstream_st* stream) {
  return launch(&raiseKernel, 1, stream, channel, flag, peer, count);
}

int launchAwait(const Channel& channel, Flag flag, int peer, uint32_t count, CUstream_st* stream) {
  return launch(&awaitKernel, kWarp, stream, channel, flag, peer, count);
}

}  // namespace ulysses::device
