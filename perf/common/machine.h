// The machine a result belongs to.
#pragma once

#include <cstddef>
#include <string>

namespace ulysses::perf {

struct Machine {
  std::string cpu, host;
  int cores = 0;  // those this process may use
  size_t memoryBytes = 0;
};

Machine thisMachine();

// What this machine, or the control group this process is in, still has; and the most this process has had.
size_t availableMemory();
size_t peakMemory();

// A kernel's boot id: the same on all ranks of one host.
std::string bootId();

}  // namespace ulysses::perf
