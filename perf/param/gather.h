// Gathers of one parameter, as a table.
#pragma once

#include "common/program.h"

namespace ulysses::perf {

// At every size of the options; with `baseline` also in turns, for `rounds` rounds, with MPI_Allgather and a plain copy
// of what it writes. Then what a hit costs.
Status runGathers(Run& run, bool baseline, int rounds);

}  // namespace ulysses::perf
