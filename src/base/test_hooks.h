// Faults that tests inject. In the product's build every question here answers "no" at compile time.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace ulysses::hooks {

// Where a failure can be planted on one rank.
enum class Stage {
  None, ControlMemory, Configuration, Allocate, Open, Commit,
  Kernels, Flags, Tables, Staging,  // of device memory
  NcclId, NcclComm, NcclRegister, NcclAddress,  // of windows by NCCL
  Prefetch,
  Reserved  // CTAs, on this rank alone as yet
};

#ifndef ULYSSES_TESTING
#error "a file that asks the hooks is compiled once per flavour: add it to HOOKED_SOURCES in src/CMakeLists.txt"
#elif ULYSSES_TESTING
// Of the calling thread, so that ranks that are threads fail one at a time. One planted failure fires once.
void plantFailure(Stage stage, Status failure);
void plantDeath(Stage stage);  // of the process, there
Status injectedFailure(Stage stage);
void setFusedOff(bool off);
bool fusedOff();
void setInitialStagingBytes(size_t bytes);  // 0: the policy's
size_t initialStagingBytes();
void setFirstRound(unsigned long long round);
unsigned long long firstRound();
void setCallTimeoutMs(int ms);  // 0: the configuration's; init keeps its own
int callTimeoutMs();
void setArchitecture(std::string name);  // of the GPUs, as the tuning table knows it; "": as it is. Of the process
std::string architecture();
void setEnginesOnSharedGpus(bool on);  // copy engines also where ranks share a GPU. Of the process
bool enginesOnSharedGpus();
#else
inline Status injectedFailure(Stage) { return {}; }
constexpr bool fusedOff() { return false; }
constexpr size_t initialStagingBytes() { return 0; }
constexpr unsigned long long firstRound() { return 1; }
constexpr int callTimeoutMs() { return 0; }
inline std::string architecture() { return {}; }
constexpr bool enginesOnSharedGpus() { return false; }
#endif

}  // namespace ulysses::hooks
