// Where on the machine this rank and its GPU are: NUMA nodes and processors, through hwloc.
#pragma once

#include "topology/facts.h"

namespace ulysses {

// Adds numaNodes, cpuset and, where there is a GPU, its NUMA node and the processors near it. These are hints for
// people and for placement; whatever is missing becomes a warning, never a failed query.
void queryHwloc(RankFacts& facts);

}  // namespace ulysses
