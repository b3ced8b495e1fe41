#include "base/test_hooks.h"

#include <csignal>

#if ULYSSES_TESTING
namespace ulysses::hooks {
namespace {

struct Planted {
  Stage stage = Stage::None;
  bool death = false;
  Status failure;
  bool fusedOff = false;
  size_t stagingBytes = 0;
  unsigned long long firstRound = 1;
  int callTimeoutMs = 0;
};
thread_local Planted planted;
std::string architectureOfGpus;
bool sharedGpuEngines = false;

}  // namespace

void plantFailure(Stage stage, Status failure) {
  planted.stage = stage;
  planted.death = false;
  planted.failure = std::move(failure);
}

void plantDeath(Stage stage) {
  planted.stage = stage;
  planted.death = true;
}

Status injectedFailure(Stage stage) {
  if (stage == Stage::None || planted.stage != stage) return {};
  if (planted.death) raise(SIGKILL);
  planted.stage = Stage::None;
  return planted.failure;
}

void setFusedOff(bool off) { planted.fusedOff = off; }
bool fusedOff() { return planted.fusedOff; }
void setInitialStagingBytes(size_t bytes) { planted.stagingBytes = bytes; }
size_t initialStagingBytes() { return planted.stagingBytes; }
void setFirstRound(unsigned long long round) { planted.firstRound = round; }
unsigned long long firstRound() { return planted.firstRound; }
void setCallTimeoutMs(int ms) { planted.callTimeoutMs = ms; }
int callTimeoutMs() { return planted.callTimeoutMs; }
void setArchitecture(std::string name) { architectureOfGpus = std::move(name); }
std::string architecture() { return architectureOfGpus; }
void setEnginesOnSharedGpus(bool on) { sharedGpuEngines = on; }
bool enginesOnSharedGpus() { return sharedGpuEngines; }

}  // namespace ulysses::hooks
#endif
