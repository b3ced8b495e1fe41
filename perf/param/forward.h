// The loop of a model that is served: forward after forward, block after block, every block's parameters acquired.
#pragma once

#include <cstddef>

#include "common/program.h"
#include "param/model.h"

namespace ulysses::perf {

struct ForwardOptions {
  int forwards = 35;
  int computeUs = 0;      // stand-in for a block's compute: the processor is busy for as long
  int prefetchDepth = 0;  // blocks fetched ahead
};

// Runs the loop for every choice, and with MPI_Allgather per block where ranks are MPI processes. Prints a table and
// fails where what the blocks saw differs between choices.
Status runForwards(Run& run, const Model& model, const std::vector<ResidencyChoice>& choices,
                   const ForwardOptions& options);

}  // namespace ulysses::perf
