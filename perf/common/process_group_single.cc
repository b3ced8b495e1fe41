#include <cstdio>

#include "common/process_group.h"
#include "common/single_process.h"

namespace ulysses::perf {

std::unique_ptr<ProcessGroup> openProcessGroup() {
  if (launchedByMpi()) {
    std::fprintf(stderr, "# started by an MPI launcher, but built without MPI: this process is a job of its own\n");
  }
  return std::make_unique<SingleProcess>();
}

}  // namespace ulysses::perf
