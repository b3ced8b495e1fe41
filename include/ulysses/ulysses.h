/*
 * Ulysses: the collectives of sequence-parallel transformers, for the ranks of one host.
 *
 * Two jobs: the all-to-all of Ulysses sequence parallelism (DeepSpeed-Ulysses, arXiv:2309.14509), with the layout
 * change folded into the transfer; and the all-gather of persistent parameters, which stay resident until they change.
 * The conventions are NCCL's: opaque handles, result codes, a stream last. What holds of every call:
 *
 * RANKS. A communicator has P ranks: processes or threads, which may share a GPU. Collective calls are made by all
 * ranks of a communicator, in one order, by one thread of a rank at a time; local calls concern the caller only. Calls
 * on different communicators are independent of each other.
 *
 * AGREEMENT. Before any byte moves, the ranks of a collective call agree on it. A bad argument or a failed allocation
 * on one rank is returned by all, with the text of the first rank that failed; only an invalid handle returns on its
 * rank alone. A call refused so leaves every output untouched, and the next call starts afresh. ulyssesRemoteError and
 * ulyssesTimeout are sticky: outputs are undefined, and the communicator can only be aborted or destroyed.
 *
 * WAITING. Every wait ends when a peer dies, and at the timeout of the configuration.
 *
 * STREAMS. ulyssesStream_t is cudaStream_t; NULL is the legacy default stream. On device memory inputs are read and
 * outputs written in stream order; both stay in place until the stream has passed the call. On host memory the stream
 * is NULL and calls are complete when they return.
 *
 * MEMORY. The caller owns the buffers it passes; the library keeps no pointer beyond the call and its work on the
 * stream unless a call says so. Pointers are aligned to their element, and need no more. A window is memory that peers
 * write directly: an output in a window takes one pass; any other is staged, which takes a second copy.
 *
 * CAPTURE. On device memory plans execute under stream capture, and replay; other calls say what they do. Handles and
 * memory outlive the graphs that captured them.
 *
 * STRUCTS. Versioned structs are set from their ..._INITIALIZER. Zero or NULL in a field means its default. In an
 * output struct, size 0 means the layout of the first version.
 *
 * ERRORS. A call returns ulyssesInvalidArgument for a handle that is not valid; a collective one may return
 * ulyssesMismatch, ulyssesRemoteError and ulyssesTimeout. "Errors:" names what it may return besides. What this build
 * or machine can't do is ulyssesNotSupported. ulyssesGetLastError has the reason.
 *
 * ENVIRONMENT. ULYSSES_* variables are read when a communicator is made; `ulysses_topo --env` lists them.
 */
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

/* ---- Types ---- */

typedef struct ulyssesComm* ulyssesComm_t;           /* this rank's end of a communicator */
typedef struct ulyssesPlan* ulyssesPlan_t;           /* an agreed exchange, to be executed many times */
typedef struct ulyssesParamComm* ulyssesParamComm_t; /* groups of sharded parameters of one communicator */
typedef struct ulyssesWindow* ulyssesWindow_t;       /* a caller's buffer, registered */
typedef struct CUstream_st* ulyssesStream_t;         /* cudaStream_t, without a CUDA header */

/* Names a job: where its ranks meet, and a secret. Opaque bytes that the caller carries to every rank, as ncclUniqueId.
   Whoever has them can join. */
#define ULYSSES_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[ULYSSES_UNIQUE_ID_BYTES];
} ulyssesUniqueId;

/* 0 to 8 are NCCL's codes and values. */
typedef enum {
  ulyssesSuccess = 0,
  ulyssesUnhandledCudaError = 1, /* a CUDA call failed; the text has CUDA's own */
  ulyssesSystemError = 2,        /* the operating system refused something */
  ulyssesInternalError = 3,      /* a fault of this library */
  ulyssesInvalidArgument = 4,    /* a value, size, pointer or handle that can't be meant */
  ulyssesInvalidUsage = 5,       /* a call at the wrong time, or ranks set up in ways that do not fit */
  ulyssesRemoteError = 6,        /* a peer died, or aborted; the text names it. Sticky */
  ulyssesInProgress = 7,         /* NCCL's; this version is never in progress */
  ulyssesTimeout = 8,            /* a peer did not come in time; the text names it. Sticky */
  ulyssesMismatch = 16,          /* the ranks disagree on the call; the text names the field and both values */
  ulyssesOutOfMemory = 17,       /* memory, or the window cap; the text has wanted and available bytes */
  ulyssesNotSupported = 18       /* not in this build, or not on this machine */
} ulyssesResult_t;

/* ncclDataType_t's values. The exchange moves elements as raw bits; types are told apart only to find mismatches. */
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

/* The two directions of the exchange. Each is the other's inverse, and its backward. With seq and heads global, S_r and
   H_r rank r's part of them (n / P each, the first n mod P ranks one more, as torch.tensor_split):
     scatter heads: in [batch, S_r, heads, headDim] -> out [batch, seq, H_r, headDim]
     gather heads:  in [batch, seq, H_r, headDim]   -> out [batch, S_r, heads, headDim] */
typedef enum { ulyssesScatterHeads = 0, ulyssesGatherHeads = 1 } ulyssesDirection_t;

/* Auto is device memory when every rank has a GPU and host memory when none has; a mixture is ulyssesInvalidUsage. */
typedef enum { ulyssesMemoryAuto = 0, ulyssesMemoryHost = 1, ulyssesMemoryCuda = 2 } ulyssesMemory_t;

#define ULYSSES_MAGIC 0x554c5953u /* "ULYS" */

/* ---- Version and errors: local, callable at any time, from any thread ---- */

/* Version of the loaded library, as ULYSSES_VERSION(major, minor, patch). Errors: ulyssesInvalidArgument (NULL). */
ULYSSES_API ulyssesResult_t ulyssesGetVersion(int* version);

/* What a code means; for values outside the enum too. The string is static. */
ULYSSES_API const char* ulyssesGetErrorString(ulyssesResult_t result);

/* Why this thread's last failed call failed: what, on which rank, with the values. "" where none has. The string is the
   library's, valid until the thread's next call fails. As ncclGetLastError, but per thread. */
ULYSSES_API const char* ulyssesGetLastError(void);

/* ---- Communicators ---- */

typedef struct ulyssesConfig {
  size_t size;
  unsigned magic, version;
  ulyssesMemory_t memory; /* where the buffers of all calls are; the same on all ranks */
  int maxCtas;            /* most CTAs of one launch; 0: as many as the geometry wants */
  size_t windowCapBytes;  /* most window bytes this rank may register, all uses counted; 0: 1 GiB. The smallest of all
                             ranks holds */
  int timeoutMs;          /* longest wait for a peer; 0: 600000, while a communicator is made 120000; -1: for ever */
  int reserved;           /* 0 */
  const char* commName;   /* for the log; copied. NULL: none */
} ulyssesConfig_t;
#define ULYSSES_CONFIG_INITIALIZER \
  { sizeof(ulyssesConfig_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, ulyssesMemoryAuto, 0, 0, 0, 0, NULL }

/* Makes an id for one job, and listens in this process until its ranks have met; the process must live that long.
   Local. As ncclGetUniqueId. Errors: ulyssesSystemError (no socket). */
ULYSSES_API ulyssesResult_t ulyssesGetUniqueId(ulyssesUniqueId* id);

/* Makes rank `rank` of `nranks`. Collective over the job; blocks until all ranks have come. On device memory the rank
   takes the caller's current device. `config` may be NULL. *comm is NULL after an error. An id serves one job.
   As ncclCommInitRank, ncclCommInitRankConfig. Errors: ulyssesInvalidArgument (a rank twice or out of range, nranks
   that differ), ulyssesInvalidUsage (memory that differs), ulyssesOutOfMemory, ulyssesSystemError. */
ULYSSES_API ulyssesResult_t ulyssesCommInitRank(ulyssesComm_t* comm, int nranks, ulyssesUniqueId id, int rank);
ULYSSES_API ulyssesResult_t ulyssesCommInitRankConfig(ulyssesComm_t* comm, int nranks, ulyssesUniqueId id, int rank,
                                                      const ulyssesConfig_t* config);

/* Makes all `ndev` ranks in this process: comms[r] is rank r on device devlist[r], which may repeat; NULL: devices 0 to
   ndev - 1. On host memory devlist is not read. One call by one thread. As ncclCommInitAll. Errors: as CommInitRank. */
ULYSSES_API ulyssesResult_t ulyssesCommInitAll(ulyssesComm_t* comms, int ndev, const int* devlist);
ULYSSES_API ulyssesResult_t ulyssesCommInitAllConfig(ulyssesComm_t* comms, int ndev, const int* devlist,
                                                     const ulyssesConfig_t* config);

/* The caller's own way to exchange addresses: an all-gather of `bytes` from every rank into recv, nranks blocks in rank
   order; 0 = success. Called on the caller's thread, while the communicator is made and never after. */
typedef struct ulyssesOob {
  int rank, nranks;
  void* context;
  int (*allgather)(void* context, const void* send, void* recv, size_t bytes);
} ulyssesOob_t;

/* Makes a communicator over the caller's allgather, in place of a unique id. Collective. As UCC's OOB contexts. Errors:
   as CommInitRank; ulyssesRemoteError where allgather failed. */
ULYSSES_API ulyssesResult_t ulyssesCommInitOob(ulyssesComm_t* comm, const ulyssesOob_t* oob,
                                               const ulyssesConfig_t* config);

/* Ranks of one color make a communicator, ordered by key, then by their rank in `comm`. Collective over `comm`. A color
   of ULYSSES_SPLIT_NOCOLOR takes part and gets NULL. `config` NULL: that of `comm`. As ncclCommSplit. Errors:
   ulyssesInvalidArgument (another negative color), as CommInitRank. */
#define ULYSSES_SPLIT_NOCOLOR (-1)
ULYSSES_API ulyssesResult_t ulyssesCommSplit(ulyssesComm_t comm, int color, int key, ulyssesComm_t* newcomm,
                                             const ulyssesConfig_t* config);

/* Completes what the communicator has been given; afterwards it may only be asked about and destroyed. Local. As
   ncclCommFinalize. */
ULYSSES_API ulyssesResult_t ulyssesCommFinalize(ulyssesComm_t comm);

/* Gives the handle back; every rank calls it. A peer that is dead or never calls does not hold it up beyond the
   timeout. Plans, parameter communicators and memory hold a reference: what they need is freed when the last of them
   is. As ncclCommDestroy. Errors: ulyssesInvalidUsage (under stream capture). */
ULYSSES_API ulyssesResult_t ulyssesCommDestroy(ulyssesComm_t comm);

/* Ends the communicator without its peers, and gives the handle back. Local; any thread, also while another is inside a
   call, which then returns. Waiting peers return ulyssesRemoteError. Outputs under way are undefined.
   As ncclCommAbort. */
ULYSSES_API ulyssesResult_t ulyssesCommAbort(ulyssesComm_t comm);

/* The error that has struck the communicator outside a call, or is sticky: ulyssesSuccess where there is none. Local,
   any thread, never waits. As ncclCommGetAsyncError. */
ULYSSES_API ulyssesResult_t ulyssesCommGetAsyncError(ulyssesComm_t comm, ulyssesResult_t* asyncError);

/* Number of ranks, this rank, and its CUDA device (-1 on host memory). Local. As NCCL's calls of these names. Errors:
   ulyssesInvalidArgument (NULL). */
ULYSSES_API ulyssesResult_t ulyssesCommCount(ulyssesComm_t comm, int* count);
ULYSSES_API ulyssesResult_t ulyssesCommUserRank(ulyssesComm_t comm, int* rank);
ULYSSES_API ulyssesResult_t ulyssesCommCuDevice(ulyssesComm_t comm, int* device);

typedef struct ulyssesCommInfo {
  size_t size;
  unsigned magic, version;
  ulyssesMemory_t memory;             /* host or CUDA, never auto */
  int nRanks, nHosts, singleHost;     /* a host is a running kernel, whatever its names; singleHost 0 or 1 */
  int lsa;                            /* 1: every rank can address every other's windows */
  int ranksPerDevice;                 /* most ranks on one GPU; 0 on host memory */
  int ncclVersion;                    /* NCCL's own code for the loaded copy; 0: none */
  size_t windowBytes, windowCapBytes; /* registered by this rank now; the cap that holds for all */
  uint64_t fusedCalls, fallbackCalls; /* exchanges and flat collectives since init */
  char lastPath[16];                  /* of the last one: "direct", "staged", "copy-engine", "nccl", "mpi"; "": none */
  char lastReason[256];               /* why that path */
} ulyssesCommInfo_t;
#define ULYSSES_COMM_INFO_INITIALIZER                                                                                \
  {                                                                                                                  \
    sizeof(ulyssesCommInfo_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, ulyssesMemoryAuto, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        "", ""                                                                                                       \
  }

/* What the communicator is and has done. Local. Errors: ulyssesInvalidArgument (NULL, or a bad size or magic). */
ULYSSES_API ulyssesResult_t ulyssesCommGetInfo(ulyssesComm_t comm, ulyssesCommInfo_t* info);

/* Writes this rank's flight recorder, its last 256 calls with contract, path, timing and state, to `path`; NULL: a file
   that the library names in the log. Local; any thread, also while another hangs in a call. Errors: ulyssesSystemError
   (the file can't be written). */
ULYSSES_API ulyssesResult_t ulyssesCommDump(ulyssesComm_t comm, const char* path);

/* ---- The exchange ---- */

/* One exchange of contiguous tensors, shaped as ulyssesDirection_t says; `batch` counts planes, so packed QKV is a
   batch of three. Collective: the host waits until every rank has called, the data moves on the stream; where hosts run
   ahead of each other, use a plan. Counts as not grad-tracked. An empty tensor moves nothing and may be NULL. sendbuff
   and recvbuff must not overlap, except that at P = 1 they may be equal, and nothing is done. Under capture by all
   ranks a call that was made outside before is recorded, else it is refused; captured by some ranks only, it is refused
   on all. Graphs that record calls of one communicator, unlike those that record plans, share flags and staging: they run
   one after the other. The all-to-all of DeepSpeed-Ulysses' DistributedAttention. Errors: ulyssesInvalidArgument (sizes
   beyond 64 bits, NULL, overlapping or misaligned buffers, an unknown type or direction), ulyssesInvalidUsage (capture,
   before the stream is touched; two threads at once), ulyssesOutOfMemory and ulyssesSystemError (staging memory; the
   next call tries anew), ulyssesNotSupported (not fused, and no fallback), ulyssesUnhandledCudaError. */
ULYSSES_API ulyssesResult_t ulyssesA2A(const void* sendbuff, void* recvbuff, size_t batch, size_t seq, size_t heads,
                                       size_t headDim, ulyssesDataType_t dtype, ulyssesDirection_t direction,
                                       ulyssesComm_t comm, ulyssesStream_t stream);

/* One operand of a planned exchange. All but strides and boundOut is the same on all ranks. */
typedef struct ulyssesA2ADesc {
  size_t size;
  unsigned magic, version;
  size_t batch, seq, heads, headDim; /* elements; seq and heads global, as in ulyssesA2A */
  ulyssesDataType_t dtype;
  ulyssesDirection_t direction;
  const size_t *seqSplits, *headSplits; /* nranks entries each that add up to seq and heads, read by PlanCreate only;
                                           NULL: balanced. Zero entries are allowed */
  size_t inStride[3], outStride[3];     /* elements, of batch, seq and head; all 0: contiguous. headDim is contiguous.
                                           Output elements must not overlap each other */
  int replicateHeads; /* 1: fewer heads than ranks; head h goes to ranks h*rep to h*rep + rep - 1, where
                         rep = nranks / heads, which must divide (KV heads of GQA) */
  size_t headGroups;  /* 0, or the number of KV heads: query heads are split within their group, so that
                         a rank's query heads meet their KV head (28 over 4, 8 ranks: 4, 3, 4, 3, ...) */
  void* boundOut;     /* NULL, or the output, in a window, that every Execute will be given: peers know
                         it from the plan, so that copy engines can write it where every rank has a GPU of its
                         own ("copy-engine" in ulyssesPlanInfo_t). Their copies can't be held back: where ranks
                         execute different plans, or one that is wrong on a rank, all are told, but what bound
                         outputs hold is then undefined. Device memory alone looks at it */
  int gradTracked;    /* 1: the operand takes part in a backward; large planes are then staged as
                         ULYSSES_A2A_LONG_TRAINING says */
} ulyssesA2ADesc_t;
#define ULYSSES_A2A_DESC_INITIALIZER                                                                                 \
  {                                                                                                                  \
    sizeof(ulyssesA2ADesc_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, 0, 0, 0, 0, ulyssesBfloat16, ulyssesScatterHeads, \
        NULL, NULL, {0, 0, 0}, {0, 0, 0}, 0, 0, NULL, 0                                                              \
  }

/* Agrees on an exchange of `n` operands, at most 64, which moves in one launch with one synchronisation: Q, K and V of
   different head counts, straight out of one strided projection. All operands share seq and its splits. Collective;
   allocates what Execute will need. The descriptors are copied. Destroy with ulyssesPlanDestroy. Errors:
   ulyssesInvalidArgument (splits that do not add up, strides that overlap, n not 1 to 64, sizes beyond 64 bits, a
   boundOut outside windows), ulyssesInvalidUsage (under capture), ulyssesOutOfMemory, ulyssesNotSupported. */
ULYSSES_API ulyssesResult_t ulyssesPlanCreate(ulyssesPlan_t* plan, int n, const ulyssesA2ADesc_t descs[],
                                              ulyssesComm_t comm);

/* Runs the exchange: in[i] and out[i] are operand i's tensors on this rank; no output overlaps an input or an output.
   Collective, without a host wait on device memory: ranks whose plans differ find out on the device, write nothing, and
   the mismatch shows in ulyssesCommGetAsyncError or as the next call's result, which is made all the same. On host memory it completes, and reports, before
   it returns. Capturable; replays mix with eager calls. Errors: ulyssesInvalidArgument (NULL, overlapping or misaligned
   buffers, an output that is not boundOut), ulyssesInvalidUsage (two threads at once), ulyssesUnhandledCudaError. */
ULYSSES_API ulyssesResult_t ulyssesPlanExecute(ulyssesPlan_t plan, const void* const in[], void* const out[],
                                               ulyssesStream_t stream);

/* The same exchange reversed, for the backward: its inputs are shaped and strided as `forward`'s outputs and the
   reverse. boundOut: NULL, or one pointer per operand; not used yet, since peers learn of it in collective calls alone.
   A replicating operand gathers every replica, [batch, S_r, heads*rep, headDim] with the replicas of a head adjacent:
   the caller sums them. Local: what is needed was agreed with `forward`, which may be destroyed first. Errors: ulyssesInvalidArgument (NULL), ulyssesOutOfMemory. */
ULYSSES_API ulyssesResult_t ulyssesPlanInverse(ulyssesPlan_t forward, void* const boundOut[], ulyssesPlan_t* backward);

typedef struct ulyssesPlanInfo {
  size_t size;
  unsigned magic, version;
  char path[16];    /* "fused", "copy-engine", or the fallback: "nccl", "mpi". Direct or staged is found per receiver */
  char reason[256]; /* why that path and launch */
  size_t planeBytes;  /* the largest plane of an operand, this rank's share */
  size_t chunkBytes;  /* moved at a time where an output is staged; 0: never staged */
  size_t windowBytes; /* staging window the plan uses; 0: none */
  int chunks;         /* that a staged execution takes */
  int ctas;           /* of the launch; 0 on host memory and for the fallback */
} ulyssesPlanInfo_t;
#define ULYSSES_PLAN_INFO_INITIALIZER \
  { sizeof(ulyssesPlanInfo_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, "", "", 0, 0, 0, 0, 0 }

/* What was agreed; the same on all ranks but for planeBytes. Local. Errors: ulyssesInvalidArgument. */
ULYSSES_API ulyssesResult_t ulyssesPlanGetInfo(ulyssesPlan_t plan, ulyssesPlanInfo_t* info);

/* Gives the plan back, once its work on all streams is done. Local. Graphs that captured it must not run any more. */
ULYSSES_API ulyssesResult_t ulyssesPlanDestroy(ulyssesPlan_t plan);

/* ---- Groups ---- */

/* For one thread that drives several ranks: ulyssesCommInitRank, CommInitRankConfig, CommSplit, MemAlloc, PlanCreate,
   A2A, AllGather, AlltoAll, PlanExecute, ParamCommit, ParamAcquire and CommDestroy between Start and End run at End, on
   all communicators at once, and have returned on the host when End does. Until then they return ulyssesSuccess, what
   they point at stays in place, and what they give by pointer is not there yet. Groups nest: the outermost End runs
   them. End returns the first error. Any other collective call needs a thread per rank. Local to the thread.
   As ncclGroupStart, ncclGroupEnd. Errors: ulyssesInvalidUsage (End without Start). */
ULYSSES_API ulyssesResult_t ulyssesGroupStart(void);
ULYSSES_API ulyssesResult_t ulyssesGroupEnd(void);

/* ---- The flat collectives ---- */

/* recvbuff, P * sendcount elements, gets rank r's sendcount elements at r * sendcount. In place where sendbuff ==
   recvbuff + rank * sendcount; no other overlap. Collective; waiting, capture and errors as ulyssesA2A.
   As ncclAllGather. */
ULYSSES_API ulyssesResult_t ulyssesAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                                             ulyssesDataType_t dtype, ulyssesComm_t comm, ulyssesStream_t stream);

/* Both buffers hold P blocks of `count` elements: block p of sendbuff goes to block r of rank p's recvbuff, r the
   sender. Not in place. Collective; waiting, capture and errors as ulyssesA2A. As ncclAlltoAll. */
ULYSSES_API ulyssesResult_t ulyssesAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ulyssesDataType_t dtype,
                                            ulyssesComm_t comm, ulyssesStream_t stream);

/* ---- Windows ---- */

/* Memory that peers write directly, for outputs: page-aligned, not initialised, owned by the caller. `bytes` may differ
   by rank; 0 gives NULL. Counts against the cap, rounded up to what was taken; where NCCL registers windows
   (ULYSSES_WINDOWS) each rank has and counts as much as the one that asks for most, and the memory is free again when all
   have given it back. Collective. As ncclMemAlloc with ncclCommWindowRegister. Errors: ulyssesOutOfMemory (on all),
   ulyssesInvalidUsage (under capture), ulyssesNotSupported. */
ULYSSES_API ulyssesResult_t ulyssesMemAlloc(void** ptr, size_t bytes, ulyssesComm_t comm);

/* Gives back what MemAlloc gave, once no call uses it; NULL is allowed. Local: peers unmap it at their next collective
   call. Errors: ulyssesInvalidArgument (not from ulyssesMemAlloc on this communicator), ulyssesInvalidUsage (device
   memory that an exchange on a stream, outside a graph, may still write; nothing is given back then). */
ULYSSES_API ulyssesResult_t ulyssesMemFree(void* ptr, ulyssesComm_t comm);

/* Makes the caller's own device memory a window, where it can be exported to the peers: memory of cudaMalloc, any part of
   an allocation, and of cuMemCreate with POSIX file descriptors as handle type. `bytes` may differ by rank; with 0 a rank
   brings nothing. The memory stays the caller's and outlives the window; what peers have mapped they unmap in the next
   ulyssesMemAlloc, ulyssesWindowRegister or ulyssesPlanCreate after its end. Counts against the cap. Collective. As
   ncclCommWindowRegister. Errors: ulyssesNotSupported (on all, where one rank's memory can't be exported; always on host
   memory), ulyssesOutOfMemory (the cap), ulyssesInvalidArgument (NULL, or memory that lies in a window already). */
ULYSSES_API ulyssesResult_t ulyssesWindowRegister(ulyssesComm_t comm, void* buff, size_t bytes, ulyssesWindow_t* win);

/* Ends a window, once no call uses it; NULL is allowed. Local, as ulyssesMemFree. As ncclCommWindowDeregister. Errors:
   ulyssesInvalidArgument (not a window of this communicator), ulyssesInvalidUsage (as ulyssesMemFree). */
ULYSSES_API ulyssesResult_t ulyssesWindowDeregister(ulyssesComm_t comm, ulyssesWindow_t win);

/* ---- Persistent parameters ---- */

/* What happens to gathered parameters. ULYSSES_RESIDENCY overrides it. */
typedef enum {
  ulyssesResidencyPersistent = 0, /* the first Acquire gathers, later ones are hits (FSDP's SHARD_GRAD_OP,
                                     reshard_after_forward=False) */
  ulyssesResidencyBudget = 1,   /* a fixed set of groups that fits budgetBytes is persistent, the others are streamed */
  ulyssesResidencyTransient = 2 /* Release gives the memory back (FSDP's FULL_SHARD) */
} ulyssesResidency_t;

/* One parameter, flattened and sharded by element. All but shard is the same on all ranks. */
typedef struct ulyssesParamDesc {
  size_t size;
  unsigned magic, version;
  size_t count;                            /* elements of the whole parameter */
  ulyssesDataType_t shardType, gatherType; /* equal, or float32 and bfloat16 or float16: the shard is cast before the
                                              gather, to nearest even, NaN to 0x7FC0 or 0x7E00 */
  const size_t* splits; /* elements per rank, read by GroupAdd only; NULL: balanced. Zero is allowed */
  const void* shard;    /* this rank's elements: the caller's, read by every gather, valid as long as the parameter
                           communicator. With device memory: there, or in host memory, from where every gather copies
                           them (beside other work where they are pinned) */
  size_t alignment;     /* bytes, a power of two, of the gathered parameter; 0: an element's size */
} ulyssesParamDesc_t;
#define ULYSSES_PARAM_DESC_INITIALIZER                                                                                \
  {                                                                                                                   \
    sizeof(ulyssesParamDesc_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, 0, ulyssesBfloat16, ulyssesBfloat16, NULL, NULL, \
        0                                                                                                             \
  }

typedef struct ulyssesParamConfig {
  size_t size;
  unsigned magic, version;
  ulyssesResidency_t residency; /* the same on all ranks */
  int prefetchDepth;            /* groups fetched ahead where groups are streamed: a ring of prefetchDepth + 1 slots */
  size_t budgetBytes; /* most bytes of persistent groups (the ring is extra); the smallest of all ranks holds */
} ulyssesParamConfig_t;
#define ULYSSES_PARAM_CONFIG_INITIALIZER \
  { sizeof(ulyssesParamConfig_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, ulyssesResidencyPersistent, 0, 0 }

typedef struct ulyssesParamStats {
  size_t size;
  unsigned magic, version;
  uint64_t acquires, hits, gathers; /* calls of Acquire; those that found the group current; gathers made */
  uint64_t bytesMoved;              /* written by gathers into this rank's gathered storage, its own shard included */
  uint64_t evictions, prefetchHits; /* groups that gave way to others; acquires that a Prefetch had served */
  size_t residentBytes, peakBytes;  /* gathered storage now, and at most so far, the ring included */
} ulyssesParamStats_t;
#define ULYSSES_PARAM_STATS_INITIALIZER \
  { sizeof(ulyssesParamStats_t), ULYSSES_MAGIC, ULYSSES_VERSION_CODE, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Makes an empty set of parameter groups over `comm`. `config` may be NULL. Local; the agreement is at Commit. Errors:
   ulyssesInvalidArgument. */
ULYSSES_API ulyssesResult_t ulyssesParamCommCreate(ulyssesParamComm_t* params, ulyssesComm_t comm,
                                                   const ulyssesParamConfig_t* config);

/* Adds `n` parameters that are gathered together, such as those of one transformer block; *group is its number, from 0
   in order. Before Commit; the same groups in the same order on all ranks. Descriptors are copied. Local. Errors:
   ulyssesInvalidArgument (splits, types, alignment), ulyssesInvalidUsage (after Commit). */
ULYSSES_API ulyssesResult_t ulyssesParamGroupAdd(ulyssesParamComm_t params, int n, const ulyssesParamDesc_t descs[],
                                                 int* group);

/* Agrees on the groups and the budget, and allocates. Once. Collective. Errors: ulyssesInvalidUsage (twice, under
   capture), ulyssesOutOfMemory, ulyssesNotSupported. */
ULYSSES_API ulyssesResult_t ulyssesParamCommit(ulyssesParamComm_t params);

/* ptrs[i] is the whole of parameter i, contiguous and aligned, the library's; readable in stream order until Release.
   Gathers where the resident copy is older than the last Publish, else is a hit: no communication, no kernel.
   Collective; a hit does not wait. Ranks of which some hit and some gather return ulyssesMismatch, a rank that hit at
   its next call. Persistent addresses stay fixed until Reshard, SetBudget or destroy, which invalidate graphs that
   captured them. Under capture a hit records nothing, and a gather follows the rules of ulyssesAllGather. As FSDP's
   unshard. Errors: ulyssesInvalidUsage (before Commit, acquired already),
   ulyssesInvalidArgument (no such group), ulyssesOutOfMemory, ulyssesUnhandledCudaError. */
ULYSSES_API ulyssesResult_t ulyssesParamAcquire(ulyssesParamComm_t params, int group, void* ptrs[],
                                                ulyssesStream_t stream);

/* The group is read no more after this point of the stream. Every rank, in program order; waits for nobody. Errors:
   ulyssesInvalidUsage (not acquired). */
ULYSSES_API ulyssesResult_t ulyssesParamRelease(ulyssesParamComm_t params, int group, ulyssesStream_t stream);

/* Starts the gather that the next Acquire of the group would do, where there is a slot for it: when the stream has come to
   this point, beside what follows on it. Exchanges of the same communicator wait for the gather; one of its own (Split)
   keeps parameters apart. Collective, in program order. Errors: as Acquire. */
ULYSSES_API ulyssesResult_t ulyssesParamPrefetch(ulyssesParamComm_t params, int group, ulyssesStream_t stream);

/* The shard has changed, by work before this point of the stream: the group has a new version and the next Acquire
   gathers. A promise that every rank makes in program order; waits for nobody. Errors: ulyssesInvalidUsage (while
   acquired). */
ULYSSES_API ulyssesResult_t ulyssesParamPublish(ulyssesParamComm_t params, int group, ulyssesStream_t stream);

/* Drops the resident copy, and its memory once the stream has passed this point. Every rank, in program order; waits
   for nobody. As FSDP's reshard. Errors: ulyssesInvalidUsage (while acquired). */
ULYSSES_API ulyssesResult_t ulyssesParamReshard(ulyssesParamComm_t params, int group, ulyssesStream_t stream);

/* Sets budgetBytes anew, the smallest of all ranks; resident copies are dropped as needed. Collective; no group may be
   acquired. Errors: ulyssesInvalidUsage (a group is acquired; residency is not Budget), ulyssesOutOfMemory. */
ULYSSES_API ulyssesResult_t ulyssesParamSetBudget(ulyssesParamComm_t params, size_t bytes);

/* Counts since Commit. Local. Errors: ulyssesInvalidArgument (NULL, or a bad size or magic). */
ULYSSES_API ulyssesResult_t ulyssesParamGetStats(ulyssesParamComm_t params, ulyssesParamStats_t* stats);

/* Gives the groups and their storage back, once their work on all streams is done. Every rank; waits for nobody. */
ULYSSES_API ulyssesResult_t ulyssesParamCommDestroy(ulyssesParamComm_t params);

#ifdef __cplusplus
}
#endif

#endif
