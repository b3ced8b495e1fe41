// The ranks of a run: threads of this process, times the processes of the job.
#pragma once

#include <barrier>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "common/process_group.h"

namespace ulysses::perf {

class Ranks;

// One rank's view. Everything here is collective: a rank leaves its body early only with a Status that agree()
// returned, so that none waits for one that has gone.
class Rank {
 public:
  Rank(Ranks& ranks, int thread) : ranks_(ranks), thread_(thread) {}

  int id() const;
  int count() const;
  bool first() const { return id() == 0; }
  bool leadsProcess() const { return thread_ == 0; }
  // This rank is an MPI process of its own, so that MPI's collectives can stand in for ours.
  bool isMpiProcess() const;
  bool severalProcesses() const;
  // How the ranks came to be, with what the comparisons with MPI depend on.
  std::string launcher() const;

  void barrier();
  // Blocks of n elements in rank order.
  template <class T>
  std::vector<T> allgather(const T* mine, size_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(n * static_cast<size_t>(count()));
    gatherBytes(mine, all.data(), n * sizeof(T));
    return all;
  }
  template <class T>
  std::vector<T> allgather(const T& mine) {
    return allgather(&mine, 1);
  }
  // The failure of the first rank that has one, on all; success when none has. A rank whose peer did not come, or has died,
  // ends the run with 2: that peer would not come here either.
  Status agree(const Status& mine);

 private:
  void gatherBytes(const void* mine, void* all, size_t bytes);

  Ranks& ranks_;
  int thread_;
};

// Runs `body` once per rank and returns the largest exit code. Thread 0 of a process is its main thread.
int runRanks(int threads, const std::function<int(Rank&)>& body);

}  // namespace ulysses::perf
