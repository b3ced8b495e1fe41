/* Which GPUs the stand-in has: ULYSSES_EMULATED_GPUS (1) of them. CUDA_VISIBLE_DEVICES chooses among them, by numbers.
 */
#ifndef ULYSSES_EMULATOR_GPUS_H
#define ULYSSES_EMULATOR_GPUS_H

#include <stdlib.h>

enum { kMostEmulatedGpus = 16 };

static inline int emulatedGpus(void) {
  const char* text = getenv("ULYSSES_EMULATED_GPUS");
  const int count = text != NULL ? atoi(text) : 1;
  return count > kMostEmulatedGpus ? kMostEmulatedGpus : count;
}

/* The number of the GPU that this process knows as `ordinal`; -1 where there is none. One that does not exist ends the
   list, as it does for CUDA. */
static inline int emulatedGpu(int ordinal) {
  const int count = emulatedGpus();
  const char* at = getenv("CUDA_VISIBLE_DEVICES");
  if (ordinal < 0) return -1;
  if (at == NULL) return ordinal < count ? ordinal : -1;
  for (int i = 0;; ++i) {
    char* end = NULL;
    const long number = strtol(at, &end, 10);
    if (end == at || number < 0 || number >= count) return -1;
    if (i == ordinal) return (int)number;
    if (*end != ',') return -1;
    at = end + 1;
  }
}

static inline int emulatedVisible(void) {
  int count = 0;
  while (count < kMostEmulatedGpus && emulatedGpu(count) >= 0) ++count;
  return count;
}

#endif
