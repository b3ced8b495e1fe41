#include "common/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace ulysses::perf {

Machine thisMachine() {
  Machine machine;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(':');
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      machine.cpu = line.substr(line.find_first_not_of(' ', colon + 1));
      break;
    }
  }
  if (machine.cpu.empty()) machine.cpu = "unknown CPU";
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  machine.host = host;
  machine.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));  // of the machine: mpirun may bind a rank to one
  machine.memoryBytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  return machine;
}

size_t availableMemory() {
  size_t bytes = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, line; meminfo >> key && std::getline(meminfo, line);) {
    if (key == "MemAvailable:") bytes = std::strtoull(line.c_str(), nullptr, 10) << 10;
  }
  size_t most = 0, now = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> most && std::ifstream("/sys/fs/cgroup/memory.current") >> now) {
    bytes = std::min(bytes, most - std::min(most, now));
  }
  return bytes;
}

size_t peakMemory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

std::string bootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace ulysses::perf
