/* Communicators for NCCL programs. In libulysses; needs no nccl.h, but goes with one included before or after it. */
#ifndef ULYSSES_ULYSSES_NCCL_H_
#define ULYSSES_ULYSSES_NCCL_H_

#include <ulysses/ulysses.h>

struct ncclComm; /* ncclComm_t is a pointer to it */

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a communicator of nccl's ranks, in their order, each on its device. Collective over nccl, which stays the
   caller's, is used to exchange addresses and as the fallback, and must outlive *comm; no call of the caller's may be
   under way on it meanwhile. `config` may be NULL; its memory must not be host. *comm is NULL after an error. Errors:
   as ulyssesCommInitRank; ulyssesInvalidArgument (NULL), ulyssesNotSupported (no NCCL in the process). */
ULYSSES_API ulyssesResult_t ulyssesCommInitNccl(ulyssesComm_t* comm, struct ncclComm* nccl,
                                                const ulyssesConfig_t* config);

#ifdef __cplusplus
}
#endif

#endif
