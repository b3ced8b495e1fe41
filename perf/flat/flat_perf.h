// The whole of all_gather_perf and alltoall_perf: they differ in the collective alone.
#pragma once

#include <string>

#include "flat/flat_collective.h"

namespace ulysses::perf {

int runFlatPerf(FlatKind kind, const std::string& name, int argc, char** argv);

}  // namespace ulysses::perf
