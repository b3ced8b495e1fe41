/* The smallest program: four ranks as threads of one process, one exchange on host memory.
 *
 * Every rank holds a quarter of the sequence, with all heads. Attention needs the whole sequence of some heads: after
 * ulyssesA2A every rank has all 8 positions of its own 2 heads. */
#include <pthread.h>
#include <stdio.h>
#include <ulysses/ulysses.h>

enum { kRanks = 4, kSeq = 8, kHeads = 8, kHeadDim = 2, kMine = kSeq * kHeads * kHeadDim / kRanks };

static ulyssesComm_t comms[kRanks];
static int failed[kRanks];

/* The value of element (s, h, d) of the global tensor. */
static float element(int s, int h, int d) {
  return (float)((s * kHeads + h) * kHeadDim + d);
}

static void* runRank(void* argument) {
  const int rank = (int)((ulyssesComm_t*)argument - comms);
  const int seqBegin = rank * kSeq / kRanks, headBegin = rank * kHeads / kRanks;
  float in[kMine], out[kMine], *next = in;
  int s, h, d;
  for (s = seqBegin; s < seqBegin + kSeq / kRanks; ++s) {
    for (h = 0; h < kHeads; ++h) {
      for (d = 0; d < kHeadDim; ++d) *next++ = element(s, h, d);
    }
  }

  if (ulyssesA2A(in, out, 1, kSeq, kHeads, kHeadDim, ulyssesFloat32, ulyssesScatterHeads, comms[rank], NULL) !=
      ulyssesSuccess) {
    fprintf(stderr, "rank %d: %s\n", rank, ulyssesGetLastError());
    failed[rank] = 1;
    return NULL;
  }

  next = out;
  for (s = 0; s < kSeq; ++s) {
    for (h = headBegin; h < headBegin + kHeads / kRanks; ++h) {
      for (d = 0; d < kHeadDim; ++d) failed[rank] |= *next++ != element(s, h, d);
    }
  }
  return NULL;
}

int main(void) {
  pthread_t threads[kRanks];
  int rank, result = 0;
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.memory = ulyssesMemoryHost;
  if (ulyssesCommInitAllConfig(comms, kRanks, NULL, &config) != ulyssesSuccess) {
    fprintf(stderr, "%s\n", ulyssesGetLastError());
    return 1;
  }
  for (rank = 0; rank < kRanks; ++rank) pthread_create(&threads[rank], NULL, runRank, &comms[rank]);
  for (rank = 0; rank < kRanks; ++rank) pthread_join(threads[rank], NULL);
  for (rank = 0; rank < kRanks; ++rank) {
    printf("rank %d: %s\n", rank, failed[rank] ? "FAILED" : "has every position of its heads");
    result |= failed[rank];
    ulyssesCommDestroy(comms[rank]);
  }
  return result;
}
