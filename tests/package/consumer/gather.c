/* A program of a user, in C: two ranks in one thread gather what each of them has. */
#include <stdio.h>
#include <ulysses/ulysses.h>

enum { kRanks = 2, kCount = 1000 };

static int fail(const char* call) {
  fprintf(stderr, "%s: %s\n", call, ulyssesGetLastError());
  return 1;
}

int main(void) {
  static float in[kRanks][kCount], out[kRanks][kRanks * kCount];
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  ulyssesComm_t comms[kRanks];
  int version = 0, rank, i;

  if (ulyssesGetVersion(&version) != ulyssesSuccess || version != ULYSSES_VERSION_CODE) {
    fprintf(stderr, "the header is of version %d, the library of version %d\n", ULYSSES_VERSION_CODE, version);
    return 1;
  }
  config.memory = ulyssesMemoryHost;
  if (ulyssesCommInitAllConfig(comms, kRanks, NULL, &config) != ulyssesSuccess) return fail("ulyssesCommInitAllConfig");
  for (rank = 0; rank < kRanks; ++rank) {
    for (i = 0; i < kCount; ++i) in[rank][i] = (float)(rank * kCount + i);
  }
  if (ulyssesGroupStart() != ulyssesSuccess) return fail("ulyssesGroupStart");
  for (rank = 0; rank < kRanks; ++rank) {
    if (ulyssesAllGather(in[rank], out[rank], kCount, ulyssesFloat32, comms[rank], NULL) != ulyssesSuccess) {
      return fail("ulyssesAllGather");
    }
  }
  if (ulyssesGroupEnd() != ulyssesSuccess) return fail("ulyssesGroupEnd");
  for (rank = 0; rank < kRanks; ++rank) {
    for (i = 0; i < kRanks * kCount; ++i) {
      if (out[rank][i] != (float)i) {
        fprintf(stderr, "rank %d, element %d: %g\n", rank, i, (double)out[rank][i]);
        return 1;
      }
    }
  }
  for (rank = 0; rank < kRanks; ++rank) {
    if (ulyssesCommDestroy(comms[rank]) != ulyssesSuccess) return fail("ulyssesCommDestroy");
  }
  return 0;
}
