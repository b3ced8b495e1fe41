/* Ulysses: the collectives of sequence-parallel transformers on one host. */
#ifndef ULYSSES_ULYSSES_H_
#define ULYSSES_ULYSSES_H_

#include <stddef.h>
#include <stdint.h>
#include <ulysses/version.h>

#if defined(__GNUC__)
#define ULYSSES_API __attribute__((visibility("default")))
#else
#define ULYSSES_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ulyssesComm* ulyssesComm_t;
typedef struct ulyssesPlan* ulyssesPlan_t;
typedef struct ulyssesParamComm* ulyssesParamComm_t;
typedef struct ulyssesWindow* ulyssesWindow_t;
typedef struct CUstream_st* ulyssesStream_t;

#define ULYSSES_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[ULYSSES_UNIQUE_ID_BYTES];
} ulyssesUniqueId;

typedef enum {
  ulyssesSuccess = 0,
  ulyssesUnhandledCudaError = 1,
  ulyssesSystemError = 2,
  ulyssesInternalError = 3,
  ulyssesInvalidArgument = 4,
  ulyssesInvalidUsage = 5,
  ulyssesRemoteError = 6,
  ulyssesInProgress = 7,
  ulyssesTimeout = 8,
  ulyssesMismatch = 16,
  ulyssesOutOfMemory = 17,
  ulyssesNotSupported = 18
} ulyssesResult_t;

typedef enum {
  ulyssesInt8 = 0,
  ulyssesUint8 = 1,
  ulyssesInt32 = 2,
  ulyssesUint32 = 3,
  ulyssesInt64 = 4,
  ulyssesUint64 = 5,
  ulyssesFloat16 = 6,
  ulyssesFloat32 = 7,
  ulyssesFloat64 = 8,
  ulyssesBfloat16 = 9,
  ulyssesFloat8e4m3 = 10,
  ulyssesFloat8e5m2 = 11
} ulyssesDataType_t;

typedef enum { ulyssesScatterHeads = 0, ulyssesGatherHeads = 1 } ulyssesDirection_t;
typedef enum { ulyssesMemoryAuto = 0, ulyssesMemoryHost = 1, ulyssesMemoryCuda = 2 } ulyssesMemory_t;

#define ULYSSES_MAGIC 0x554c5953u /* "ULYS" */

typedef struct ulyssesConfig {
  size_t size;
  unsigned magic, version;
  ulyssesMemory_t memory;
  int maxCtas;
  size_t windowCapBytes;
  int timeoutMs;
  int reserved;
  const char* commName;
} ulyssesConfig_t;
#define ULYSSES_CONFIG_INITIALIZER \
  { sizeof(ulyssesConfig_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, ulyssesMemoryAuto, 0, 0, 0, 0, NULL }

typedef struct ulyssesOob {
  int rank, nranks;
  void* context;
  int (*allgather)(void* context, const void* send, void* recv, size_t bytes);
} ulyssesOob_t;

typedef struct ulyssesCommInfo {
  size_t size;
  unsigned magic, version;
  ulyssesMemory_t memory;
  int nRanks, nHosts, singleHost, lsa, ranksPerDevice, ncclVersion;
  size_t windowBytes, windowCapBytes;
  uint64_t fusedCalls, fallbackCalls;
  char lastPath[16], lastReason[256];
} ulyssesCommInfo_t;
#define ULYSSES_COMM_INFO_INITIALIZER \
  { sizeof(ulyssesCommInfo_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, ulyssesMemoryAuto, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0} }

typedef struct ulyssesA2ADesc {
  size_t size;
  unsigned magic, version;
  size_t batch, seq, heads, headDim;
  ulyssesDataType_t dtype;
  ulyssesDirection_t direction;
  const size_t *seqSplits, *headSplits;
  size_t inStride[3], outStride[3];
  int replicateHeads;
  size_t headGroups;
  void* boundOut;
  int gradTracked;
} ulyssesA2ADesc_t;
#define ULYSSES_A2A_DESC_INITIALIZER                                                                                \
  {                                                                                                                 \
    sizeof(ulyssesA2ADesc_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, 0, 0, 0, 0, ulyssesBfloat16, ulyssesScatterHeads, \
        NULL, NULL, {0, 0, 0}, {0, 0, 0}, 0, 0, NULL, 0                                                             \
  }

typedef struct ulyssesPlanInfo {
  size_t size;
  unsigned magic, version;
  char path[16], reason[256];
  size_t planeBytes, chunkBytes, windowBytes;
  int chunks, ctas;
} ulyssesPlanInfo_t;
#define ULYSSES_PLAN_INFO_INITIALIZER \
  { sizeof(ulyssesPlanInfo_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, {0}, {0}, 0, 0, 0, 0, 0 }

#define ULYSSES_SPLIT_NOCOLOR (-1)

ULYSSES_API ulyssesResult_t ulyssesGetVersion(int* version);
ULYSSES_API const char* ulyssesGetErrorString(ulyssesResult_t result);
ULYSSES_API const char* ulyssesGetLastError(void);

ULYSSES_API ulyssesResult_t ulyssesGetUniqueId(ulyssesUniqueId* id);
ULYSSES_API ulyssesResult_t ulyssesCommInitRank(ulyssesComm_t* comm, int nranks, ulyssesUniqueId id, int rank);
ULYSSES_API ulyssesResult_t ulyssesCommInitRankConfig(ulyssesComm_t* comm, int nranks, ulyssesUniqueId id, int rank,
                                                      const ulyssesConfig_t* config);
ULYSSES_API ulyssesResult_t ulyssesCommInitAll(ulyssesComm_t* comms, int ndev, const int* devlist);
ULYSSES_API ulyssesResult_t ulyssesCommInitAllConfig(ulyssesComm_t* comms, int ndev, const int* devlist,
                                                     const ulyssesConfig_t* config);
ULYSSES_API ulyssesResult_t ulyssesCommInitOob(ulyssesComm_t* comm, const ulyssesOob_t* oob,
                                               const ulyssesConfig_t* config);
ULYSSES_API ulyssesResult_t ulyssesCommSplit(ulyssesComm_t comm, int color, int key, ulyssesComm_t* newcomm,
                                             const ulyssesConfig_t* config);
ULYSSES_API ulyssesResult_t ulyssesCommFinalize(ulyssesComm_t comm);
ULYSSES_API ulyssesResult_t ulyssesCommDestroy(ulyssesComm_t comm);
ULYSSES_API ulyssesResult_t ulyssesCommAbort(ulyssesComm_t comm);
ULYSSES_API ulyssesResult_t ulyssesCommGetAsyncError(ulyssesComm_t comm, ulyssesResult_t* asyncError);
ULYSSES_API ulyssesResult_t ulyssesCommCount(ulyssesComm_t comm, int* count);
ULYSSES_API ulyssesResult_t ulyssesCommUserRank(ulyssesComm_t comm, int* rank);
ULYSSES_API ulyssesResult_t ulyssesCommCuDevice(ulyssesComm_t comm, int* device);
ULYSSES_API ulyssesResult_t ulyssesCommGetInfo(ulyssesComm_t comm, ulyssesCommInfo_t* info);

ULYSSES_API ulyssesResult_t ulyssesA2A(const void* sendbuff, void* recvbuff, size_t batch, size_t seq, size_t heads,
                                       size_t headDim, ulyssesDataType_t dtype, ulyssesDirection_t direction,
                                       ulyssesComm_t comm, ulyssesStream_t stream);
ULYSSES_API ulyssesResult_t ulyssesPlanCreate(ulyssesPlan_t* plan, int n, const ulyssesA2ADesc_t descs[],
                                              ulyssesComm_t comm);
ULYSSES_API ulyssesResult_t ulyssesPlanExecute(ulyssesPlan_t plan, const void* const in[], void* const out[],
                                               ulyssesStream_t stream);
ULYSSES_API ulyssesResult_t ulyssesPlanInverse(ulyssesPlan_t forward, void* const boundOut[], ulyssesPlan_t* backward);
ULYSSES_API ulyssesResult_t ulyssesPlanGetInfo(ulyssesPlan_t plan, ulyssesPlanInfo_t* info);
ULYSSES_API ulyssesResult_t ulyssesPlanDestroy(ulyssesPlan_t plan);

ULYSSES_API ulyssesResult_t ulyssesGroupStart(void);
ULYSSES_API ulyssesResult_t ulyssesGroupEnd(void);

ULYSSES_API ulyssesResult_t ulyssesAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                                             ulyssesDataType_t dtype, ulyssesComm_t comm, ulyssesStream_t stream);
ULYSSES_API ulyssesResult_t ulyssesAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ulyssesDataType_t dtype,
                                            ulyssesComm_t comm, ulyssesStream_t stream);

ULYSSES_API ulyssesResult_t ulyssesMemAlloc(void** ptr, size_t bytes, ulyssesComm_t comm);
ULYSSES_API ulyssesResult_t ulyssesMemFree(void* ptr, ulyssesComm_t comm);
ULYSSES_API ulyssesResult_t ulyssesWindowRegister(ulyssesComm_t comm, void* buff, size_t bytes, ulyssesWindow_t* win);
ULYSSES_API ulyssesResult_t ulyssesWindowDeregister(ulyssesComm_t comm, ulyssesWindow_t win);

typedef enum {
  ulyssesResidencyPersistent = 0,
  ulyssesResidencyBudget = 1,
  ulyssesResidencyTransient = 2
} ulyssesResidency_t;

typedef struct ulyssesParamDesc {
  size_t size;
  unsigned magic, version;
  size_t count;
  ulyssesDataType_t shardType, gatherType;
  const size_t* splits;
  const void* shard;
  size_t alignment;
} ulyssesParamDesc_t;
#define ULYSSES_PARAM_DESC_INITIALIZER \
  { sizeof(ulyssesParamDesc_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, 0, ulyssesBfloat16, ulyssesBfloat16, NULL, NULL, 0 }

typedef struct ulyssesParamConfig {
  size_t size;
  unsigned magic, version;
  ulyssesResidency_t residency;
  int prefetchDepth;
  size_t budgetBytes;
} ulyssesParamConfig_t;
#define ULYSSES_PARAM_CONFIG_INITIALIZER \
  { sizeof(ulyssesParamConfig_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, ulyssesResidencyPersistent, 0, 0 }

typedef struct ulyssesParamStats {
  size_t size;
  unsigned magic, version;
  uint64_t acquires, hits, gathers, bytesMoved, evictions, prefetchHits;
  size_t residentBytes, peakBytes;
} ulyssesParamStats_t;
#define ULYSSES_PARAM_STATS_INITIALIZER \
  { sizeof(ulyssesParamStats_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, 0, 0, 0, 0, 0, 0, 0, 0 }

ULYSSES_API ulyssesResult_t ulyssesParamCommCreate(ulyssesParamComm_t* params, ulyssesComm_t comm,
                                                   const ulyssesParamConfig_t* config);
ULYSSES_API ulyssesResult_t ulyssesParamGroupAdd(ulyssesParamComm_t params, int n, const ulyssesParamDesc_t descs[],
                                                 int* group);
ULYSSES_API ulyssesResult_t ulyssesParamCommit(ulyssesParamComm_t params);
ULYSSES_API ulyssesResult_t ulyssesParamAcquire(ulyssesParamComm_t params, int group, void* ptrs[],
                                                ulyssesStream_t stream);
ULYSSES_API ulyssesResult_t ulyssesParamRelease(ulyssesParamComm_t params, int group, ulyssesStream_t stream);
ULYSSES_API ulyssesResult_t ulyssesParamPrefetch(ulyssesParamComm_t params, int group, ulyssesStream_t stream);
ULYSSES_API ulyssesResult_t ulyssesParamPublish(ulyssesParamComm_t params, int group, ulyssesStream_t stream);
ULYSSES_API ulyssesResult_t ulyssesParamReshard(ulyssesParamComm_t params, int group, ulyssesStream_t stream);
ULYSSES_API ulyssesResult_t ulyssesParamSetBudget(ulyssesParamComm_t params, size_t bytes);
ULYSSES_API ulyssesResult_t ulyssesParamGetStats(ulyssesParamComm_t params, ulyssesParamStats_t* stats);
ULYSSES_API ulyssesResult_t ulyssesParamCommDestroy(ulyssesParamComm_t params);

#ifdef __cplusplus
}
#endif

#endif
