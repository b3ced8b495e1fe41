// NCCL as a table of functions, loaded at run time: one binary serves every version, and none. The functions and their
// meaning are those of nccl.h; what is newer than 2.7 is looked up and may be null.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

struct ncclComm;
struct CUstream_st;

namespace ulysses {

struct NcclLibrary {
  using Result = int;  // ncclResult_t: 0 is success
  static constexpr Result kInProgress = 7;
  static constexpr int kBytes = 1;  // ncclUint8
  struct UniqueId {
    char internal[128];
  };
  // The first members of ncclConfig_t, as version 2.14 had them.
  struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 21400;
    int blocking = 1, unused = 0;
  };
  struct Team {
    int nRanks, rank, stride;
  };
  using Window = struct ncclWindow_vidmem*;

  Result (*ncclGetVersion)(int* version) = nullptr;
  Result (*ncclGetUniqueId)(UniqueId* id) = nullptr;
  Result (*ncclCommInitRank)(ncclComm** comm, int nranks, UniqueId id, int rank) = nullptr;
  Result (*ncclCommDestroy)(ncclComm* comm) = nullptr;
  Result (*ncclCommAbort)(ncclComm* comm) = nullptr;
  Result (*ncclCommGetAsyncError)(ncclComm* comm, Result* error) = nullptr;
  Result (*ncclCommCount)(const ncclComm* comm, int* count) = nullptr;
  Result (*ncclCommUserRank)(const ncclComm* comm, int* rank) = nullptr;
  Result (*ncclCommCuDevice)(const ncclComm* comm, int* device) = nullptr;
  Result (*ncclAllGather)(const void* send, void* recv, size_t count, int type, ncclComm* comm,
                          CUstream_st* stream) = nullptr;
  Result (*ncclAlltoAll)(const void* send, void* recv, size_t count, int type, ncclComm* comm,
                         CUstream_st* stream) = nullptr;  // 2.28
  Result (*ncclSend)(const void* buffer, size_t count, int type, int peer, ncclComm* comm,
                     CUstream_st* stream) = nullptr;
  Result (*ncclRecv)(void* buffer, size_t count, int type, int peer, ncclComm* comm, CUstream_st* stream) = nullptr;
  Result (*ncclGroupStart)() = nullptr;
  Result (*ncclGroupEnd)() = nullptr;
  Result (*ncclCommInitRankConfig)(ncclComm** comm, int nranks, UniqueId id, int rank,
                                   Config* config) = nullptr;  // 2.14
  Result (*ncclMemAlloc)(void** ptr, size_t bytes) = nullptr;  // 2.19
  Result (*ncclMemFree)(void* ptr) = nullptr;                  // 2.19
  Result (*ncclCommWindowRegister)(ncclComm* comm, void* ptr, size_t bytes, Window* window,
                                   int flags) = nullptr;                                               // 2.27
  Result (*ncclCommWindowDeregister)(ncclComm* comm, Window window) = nullptr;                         // 2.27
  Team (*ncclTeamLsa)(ncclComm* comm) = nullptr;                                                       // 2.28
  Result (*ncclGetLsaDevicePointer)(Window window, size_t offset, int lsaRank, void** ptr) = nullptr;  // 2.29
  const char* (*ncclGetErrorString)(Result result) = nullptr;
  const char* (*ncclGetLastError)(const ncclComm* comm) = nullptr;  // 2.13

  int version = 0;  // NCCL_VERSION_CODE

  // Whether all that windows need is there: see NcclFacts.
  bool offersWindows() const;

  // What went wrong, with NCCL's own last words where this version has them.
  std::string textOf(Result result, const ncclComm* comm = nullptr) const;
};

// The copy that is in the process already, else the machine's; nothing where there is none, or one without send and
// receive.
std::optional<NcclLibrary> loadNccl();

// "2.28.3".
std::string ncclVersionText(int version);

// What one rank has of NCCL.
struct NcclFacts {
  int version = 0;               // NCCL_VERSION_CODE; 0: none
  int sharesGpusWhereAsked = 0;  // NCCL_MULTI_RANK_GPU_ENABLE is set
  int offersWindows = 0;         // every function that registers memory and tells where peers' lies
  int cuMemOff = 0;              // NCCL_CUMEM_ENABLE=0 is set: it registers nothing then
  int blocksAlways = 0;  // NCCL_COMM_BLOCKING=1 is set: it waits for ranks that failed before they came, for ever
};
NcclFacts ncclFacts(const std::optional<NcclLibrary>& nccl);

// Why NCCL will not make a communicator of ranks that have this, or "": pure, the same on all ranks.
std::string ncclRefusal(std::span<const NcclFacts> ranks, int ranksPerDevice);

}  // namespace ulysses
