// The functions of nccl.h that libulysses-nccl has in NCCL's place, by their binary interface, which is that of 2.18 to
// 2.32: enumerations are ints, and configurations are looked into no further than their first fields.
#pragma once

#include <cstddef>

struct ncclComm;
struct CUstream_st;

namespace ulysses::drop_in {

struct UniqueId {
  char internal[128];
};
// The beginning of ncclConfig_t, as it has been since 2.14.
struct ConfigHead {
  size_t size;
  unsigned magic, version;
  int blocking;  // 0: calls return before they are done
};

constexpr int kSuccess = 0, kSystemError = 2, kInternalError = 3, kInvalidArgument = 4, kInvalidUsage = 5,
              kRemoteError = 6;
constexpr int kShrinkAbort = 1;  // NCCL_SHRINK_ABORT

}  // namespace ulysses::drop_in

#define ULYSSES_IN_PLACE_OF_NCCL __attribute__((visibility("default")))

extern "C" {
ULYSSES_IN_PLACE_OF_NCCL int ncclCommInitRank(ncclComm** comm, int nranks, ulysses::drop_in::UniqueId id, int rank);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommInitRankConfig(ncclComm** comm, int nranks, ulysses::drop_in::UniqueId id,
                                                    int rank, void* config);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommInitRankScalable(ncclComm** comm, int nranks, int rank, int nIds,
                                                      ulysses::drop_in::UniqueId* ids, void* config);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommInitAll(ncclComm** comms, int ndev, const int* devlist);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommSplit(ncclComm* comm, int color, int key, ncclComm** newcomm, void* config);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommShrink(ncclComm* comm, int* excluded, int count, ncclComm** newcomm, void* config,
                                            int flags);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommRevoke(ncclComm* comm, int flags);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommFinalize(ncclComm* comm);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommDestroy(ncclComm* comm);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommAbort(ncclComm* comm);
ULYSSES_IN_PLACE_OF_NCCL int ncclCommGetAsyncError(ncclComm* comm, int* error);
ULYSSES_IN_PLACE_OF_NCCL int ncclAllGather(const void* send, void* recv, size_t count, int type, ncclComm* comm,
                                           CUstream_st* stream);
ULYSSES_IN_PLACE_OF_NCCL int ncclAlltoAll(const void* send, void* recv, size_t count, int type, ncclComm* comm,
                                          CUstream_st* stream);
ULYSSES_IN_PLACE_OF_NCCL int ncclGroupStart();
ULYSSES_IN_PLACE_OF_NCCL int ncclGroupEnd();
ULYSSES_IN_PLACE_OF_NCCL int ncclGroupSimulateEnd(void* info);
}
