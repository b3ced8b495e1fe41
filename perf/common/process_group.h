// The processes of a run: those that mpirun started, or this one alone.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace ulysses::perf {

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string description() const = 0;
  virtual void barrier() = 0;
  virtual void allgather(const void* mine, void* all, size_t bytes) = 0;
  // Ends the run without waiting for anybody, from any thread.
  [[noreturn]] virtual void abandon(int exitCode) = 0;
};

// MPI_Init only where mpirun (or another launcher of MPI jobs) started this process and MPI is built in; a binary that
// a person started alone is one process. To be called by the main thread, which must make all calls on the group.
std::unique_ptr<ProcessGroup> openProcessGroup();

// From the launcher's environment, before any MPI_Init.
bool launchedByMpi();
int launchedRank();

}  // namespace ulysses::perf
