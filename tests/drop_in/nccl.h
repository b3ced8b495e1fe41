// NCCL's functions as a program finds them, for programs that speak NCCL and know nothing of Ulysses. Ranks are MPI's
// processes.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <mpi.h>

#include <cstdio>
#include <string>

struct ncclComm;
struct UniqueId {
  char internal[128];
};

inline thread_local int rank = 0;
inline int nranks = 0;

inline void check(bool right, const std::string& what) {
  if (right) return;
  std::fprintf(stderr, "rank %d: %s\n", rank, what.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
}
#define CUDA(call) check((call) == cudaSuccess, #call)

// As the dynamic linker would have found them, had the program been linked with NCCL.
template <class Function>
Function* found(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}
struct Nccl {
  int (*getVersion)(int*) = found<int(int*)>("ncclGetVersion");
  int (*getUniqueId)(UniqueId*) = found<int(UniqueId*)>("ncclGetUniqueId");
  int (*commInitRank)(ncclComm**, int, UniqueId, int) = found<int(ncclComm**, int, UniqueId, int)>("ncclCommInitRank");
  int (*commInitAll)(ncclComm**, int, const int*) = found<int(ncclComm**, int, const int*)>("ncclCommInitAll");
  int (*commSplit)(ncclComm*, int, int, ncclComm**,
                   void*) = found<int(ncclComm*, int, int, ncclComm**, void*)>("ncclCommSplit");
  int (*commShrink)(ncclComm*, int*, int, ncclComm**, void*,
                    int) = found<int(ncclComm*, int*, int, ncclComm**, void*, int)>("ncclCommShrink");
  int (*commRevoke)(ncclComm*, int) = found<int(ncclComm*, int)>("ncclCommRevoke");
  int (*commFinalize)(ncclComm*) = found<int(ncclComm*)>("ncclCommFinalize");
  int (*commDestroy)(ncclComm*) = found<int(ncclComm*)>("ncclCommDestroy");
  int (*commAbort)(ncclComm*) = found<int(ncclComm*)>("ncclCommAbort");
  int (*commCount)(const ncclComm*, int*) = found<int(const ncclComm*, int*)>("ncclCommCount");
  int (*commUserRank)(const ncclComm*, int*) = found<int(const ncclComm*, int*)>("ncclCommUserRank");
  int (*asyncError)(ncclComm*, int*) = found<int(ncclComm*, int*)>("ncclCommGetAsyncError");
  int (*allGather)(const void*, void*, size_t, int, ncclComm*, cudaStream_t) =
      found<int(const void*, void*, size_t, int, ncclComm*, cudaStream_t)>("ncclAllGather");
  int (*alltoAll)(const void*, void*, size_t, int, ncclComm*,
                  cudaStream_t) = found<int(const void*, void*, size_t, int, ncclComm*, cudaStream_t)>("ncclAlltoAll");
  int (*send)(const void*, size_t, int, int, ncclComm*,
              cudaStream_t) = found<int(const void*, size_t, int, int, ncclComm*, cudaStream_t)>("ncclSend");
  int (*recv)(void*, size_t, int, int, ncclComm*,
              cudaStream_t) = found<int(void*, size_t, int, int, ncclComm*, cudaStream_t)>("ncclRecv");
  int (*groupStart)() = found<int()>("ncclGroupStart");
  int (*groupEnd)() = found<int()>("ncclGroupEnd");
};

constexpr int kUint8 = 1, kFloat32 = 7, kBfloat16 = 9;

// MPI, NCCL's library and this rank's GPU. The number of GPUs.
inline int begin(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  check(dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL) != nullptr, "there is no libnccl.so.2");
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(rank % devices));
  return devices;
}
