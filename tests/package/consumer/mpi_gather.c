/* A program of a user, with MPI: every rank learns all ranks' numbers. */
#include <stdio.h>
#include <ulysses/ulysses_mpi.h>

enum { kMostRanks = 64 };

static int gather(int rank, int ranks) {
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  ulyssesComm_t comm;
  int in = 100 + rank, out[kMostRanks], i;
  config.memory = ulyssesMemoryHost;
  if (ulyssesCommInitMPI(&comm, MPI_COMM_WORLD, &config) != ulyssesSuccess ||
      ulyssesAllGather(&in, out, 1, ulyssesInt32, comm, NULL) != ulyssesSuccess ||
      ulyssesCommDestroy(comm) != ulyssesSuccess) {
    fprintf(stderr, "rank %d: %s\n", rank, ulyssesGetLastError());
    return 1;
  }
  for (i = 0; i < ranks; ++i) {
    if (out[i] != 100 + i) {
      fprintf(stderr, "rank %d has %d of rank %d\n", rank, out[i], i);
      return 1;
    }
  }
  return 0;
}

int main(int argc, char** argv) {
  int rank, ranks, failed;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  failed = ranks > kMostRanks || gather(rank, ranks);
  MPI_Finalize();
  return failed;
}
