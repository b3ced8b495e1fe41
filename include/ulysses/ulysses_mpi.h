/* Communicators for MPI programs. Link libulysses_mpi; libulysses itself needs no MPI. */
#ifndef ULYSSES_ULYSSES_MPI_H_
#define ULYSSES_ULYSSES_MPI_H_

#include <mpi.h>
#include <ulysses/ulysses.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a communicator of mpiComm's ranks, in their order. Collective over mpiComm, which stays the caller's: the
   library works on its own duplicate, so its messages never meet the caller's, and where exchanges can't be fused it
   carries them. The application initialises and finalises MPI; destroy *comm before MPI_Finalize. `config` may be NULL.
   *comm is NULL after an error. Errors: as ulyssesCommInitRank; ulyssesInvalidUsage (before MPI_Init or after
   MPI_Finalize), ulyssesInvalidArgument (MPI_COMM_NULL, an inter-communicator). */
ULYSSES_API ulyssesResult_t ulyssesCommInitMPI(ulyssesComm_t* comm, MPI_Comm mpiComm, const ulyssesConfig_t* config);

#ifdef __cplusplus
}
#endif

#endif
