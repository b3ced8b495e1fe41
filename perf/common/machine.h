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

// A kernel's boot id: the same on all ranks of one host.
std::string bootId();

}  // namespace ulysses::perf
