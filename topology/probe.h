// Gathers the facts of this rank. Whatever is not on the machine (libcuda, NVML, NCCL, I/O objects) is missing from the
// facts, not an error.
#pragma once

#include "topology/facts.h"

namespace ulysses {

// Facts about this process and CUDA device `cudaDevice`, in this process's own numbering. -1: host memory. No GPU
// library is loaded then, so that a process that stays on host memory may still fork and use CUDA in the child.
RankFacts probe(int cudaDevice);

// GPUs that CUDA shows to this process; 0 without libcuda or a working driver.
int visibleGpuCount();

}  // namespace ulysses
