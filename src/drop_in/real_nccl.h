// NCCL itself: what the program would have called without libulysses-nccl.
#pragma once

#include "drop_in/nccl_abi.h"

namespace ulysses::drop_in {

// Functions that this version lacks are null.
struct RealNccl {
  decltype(&::ncclCommInitRank) commInitRank = nullptr;
  decltype(&::ncclCommInitRankConfig) commInitRankConfig = nullptr;      // 2.14
  decltype(&::ncclCommInitRankScalable) commInitRankScalable = nullptr;  // 2.23
  decltype(&::ncclCommInitAll) commInitAll = nullptr;
  decltype(&::ncclCommSplit) commSplit = nullptr;    // 2.18
  decltype(&::ncclCommShrink) commShrink = nullptr;  // 2.27
  decltype(&::ncclCommRevoke) commRevoke = nullptr;  // 2.29
  decltype(&::ncclCommFinalize) commFinalize = nullptr;
  decltype(&::ncclCommDestroy) commDestroy = nullptr;
  decltype(&::ncclCommAbort) commAbort = nullptr;
  decltype(&::ncclCommGetAsyncError) commGetAsyncError = nullptr;
  decltype(&::ncclAllGather) allGather = nullptr;
  decltype(&::ncclAlltoAll) alltoAll = nullptr;  // 2.28
  int (*send)(const void* data, size_t count, int type, int peer, ncclComm* comm, CUstream_st* stream) = nullptr;
  int (*recv)(void* data, size_t count, int type, int peer, ncclComm* comm, CUstream_st* stream) = nullptr;
  decltype(&::ncclGroupStart) groupStart = nullptr;
  decltype(&::ncclGroupEnd) groupEnd = nullptr;
  decltype(&::ncclGroupSimulateEnd) groupSimulateEnd = nullptr;  // 2.22
  int (*commCount)(const ncclComm* comm, int* count) = nullptr;
  int (*commUserRank)(const ncclComm* comm, int* rank) = nullptr;
};

// The copy that the process has, else the machine's; all null where there is none.
const RealNccl& realNccl();

}  // namespace ulysses::drop_in
