/* ulysses_nccl.h in a program that has nccl.h, or at least its declaration of ncclComm_t: no clash, and the handle fits
   without a cast. C and C++. */
#ifdef WITH_NCCL
#include <nccl.h>
#else
typedef struct ncclComm* ncclComm_t;
#endif
#include <ulysses/ulysses_nccl.h>

ulyssesResult_t initBesideNccl(ulyssesComm_t* comm, ncclComm_t nccl);
ulyssesResult_t initBesideNccl(ulyssesComm_t* comm, ncclComm_t nccl) {
  return ulyssesCommInitNccl(comm, nccl, NULL);
}
