/* One rank per MPI process: a unique id that MPI broadcasts makes the communicator; MPI is not needed after that.
 *
 *   mpirun -n 4 example_mpi        with fewer than four cores: mpirun --oversubscribe -n 4 example_mpi
 *
 * Exchanges there and back, into a window (which peers write directly) and out of it, and compares. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <ulysses/ulysses.h>

enum { kSeqPerRank = 64, kHeadsPerRank = 2, kHeadDim = 128 };

static void check(ulyssesResult_t result, int rank) {
  if (result == ulyssesSuccess) return;
  fprintf(stderr, "rank %d: %s: %s\n", rank, ulyssesGetErrorString(result), ulyssesGetLastError());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
  int rank, nranks, wrong = 0, wrongAnywhere = 0;
  size_t seq, heads, i, n;
  ulyssesUniqueId id;
  ulyssesComm_t comm;
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  float *hidden, *back;
  void* gathered;

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);

  if (rank == 0) check(ulyssesGetUniqueId(&id), rank);
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
  config.memory = ulyssesMemoryHost;
  check(ulyssesCommInitRankConfig(&comm, nranks, id, rank, &config), rank);

  seq = (size_t)kSeqPerRank * (size_t)nranks;
  heads = (size_t)kHeadsPerRank * (size_t)nranks;
  n = kSeqPerRank * heads * kHeadDim;
  hidden = malloc(n * sizeof(float));
  back = malloc(n * sizeof(float));
  check(ulyssesMemAlloc(&gathered, n * sizeof(float), comm), rank);
  for (i = 0; i < n; ++i) hidden[i] = (float)(i * 31 % 65521) + (float)rank;

  /* before attention: [1, S/P, H, D] -> [1, S, H/P, D]; after it: the inverse */
  check(ulyssesA2A(hidden, gathered, 1, seq, heads, kHeadDim, ulyssesFloat32, ulyssesScatterHeads, comm, NULL), rank);
  check(ulyssesA2A(gathered, back, 1, seq, heads, kHeadDim, ulyssesFloat32, ulyssesGatherHeads, comm, NULL), rank);

  for (i = 0; i < n; ++i) wrong += back[i] != hidden[i];
  /* Head h of position s began on rank s / kSeqPerRank, as its element (s % kSeqPerRank, h, 0). */
  for (i = 0; i < seq; ++i) {
    const size_t local = ((i % kSeqPerRank) * heads + (size_t)rank * kHeadsPerRank) * kHeadDim;
    wrong += ((float*)gathered)[i * kHeadsPerRank * kHeadDim] != (float)(local * 31 % 65521) + (float)(i / kSeqPerRank);
  }
  MPI_Reduce(&wrong, &wrongAnywhere, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks, there and back: %d wrong\n", nranks, wrongAnywhere);

  ulyssesMemFree(gathered, comm);
  ulyssesCommDestroy(comm);
  free(hidden);
  free(back);
  MPI_Finalize();
  return wrong != 0 || wrongAnywhere != 0;
}
