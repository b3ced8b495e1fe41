/* What libulysses-nccl, preloaded or linked before NCCL, took over from it. For tests and for the curious; programs
   need no header of ours. Not in libulysses. */
#ifndef ULYSSES_ULYSSES_NCCL_DROP_IN_H_
#define ULYSSES_ULYSSES_NCCL_DROP_IN_H_

#include <ulysses/ulysses.h>

struct ncclComm; /* ncclComm_t is a pointer to it */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ulyssesNcclCounters {
  size_t size;                    /* of this structure, set by the caller */
  uint64_t communicators;         /* that Ulysses has been attached to */
  uint64_t allGathers, alltoalls; /* calls that went over windows; captured ones count once, replays do not */
  uint64_t passed;                /* ncclAllGather and ncclAlltoAll that went to NCCL */
  char reason[256];               /* the last one's, or why nothing is attached; "" where there is none */
} ulyssesNcclCounters_t;
#define ULYSSES_NCCL_COUNTERS_INITIALIZER \
  { sizeof(ulyssesNcclCounters_t), 0, 0, 0, 0, "" }

/* Of a live communicator of NCCL's, or of the process since it began (NULL). Local; any thread. Errors:
   ulyssesInvalidArgument (NULL, a smaller size). */
ULYSSES_API ulyssesResult_t ulyssesNcclGetCounters(struct ncclComm* comm, ulyssesNcclCounters_t* counters);

#ifdef __cplusplus
}
#endif

#endif
