// One gather of one parameter, against MPI_Allgather and a plain copy of what it writes.
#pragma once

#include "common/program.h"

namespace ulysses::perf {

// At every size of the options, in turns for `rounds` rounds; then what a hit costs.
Status runGathers(Run& run, int rounds);

}  // namespace ulysses::perf
