// Ranks for the GPU tests, without the library's own bootstrap: threads of one process or forked processes. Both run in
// children, so that the parent never touches CUDA and a test that hangs is ended.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "window/ipc.h"

namespace ulysses::testing {

enum class RanksAs { Threads, Processes };

class Party {
 public:
  int rank() const { return rank_; }
  int nranks() const { return nranks_; }

  void barrier();
  // Every rank brings memory; all get everybody's as mapped for their device.
  std::vector<std::shared_ptr<DeviceMemory>> share(const std::shared_ptr<DeviceMemory>& mine, int device);
  // The largest of all ranks' values.
  double largest(double mine);

 private:
  friend std::string runRanks(RanksAs, int, const std::function<std::string(Party&)>&, int);
  struct Board;
  Party(Board* board, int rank, int nranks) : board_(board), rank_(rank), nranks_(nranks) {}

  Board* board_;
  int rank_, nranks_;
};

// Runs one function per rank and returns what went wrong, empty if nothing did. A machine without a GPU gives kNoDevice.
inline constexpr const char* kNoDevice = "no CUDA device";
std::string runRanks(RanksAs as, int nranks, const std::function<std::string(Party&)>& rank, int timeoutSeconds = 120);

}  // namespace ulysses::testing
