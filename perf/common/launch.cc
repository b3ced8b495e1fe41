#include <cstdlib>
#include <initializer_list>

#include "common/process_group.h"

namespace ulysses::perf {
namespace {

const char* firstOf(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return value;
  }
  return nullptr;
}

}  // namespace

bool launchedByMpi() {
  return firstOf({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS"}) != nullptr;
}

int launchedRank() {
  const char* rank = firstOf({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"});
  return rank ? std::atoi(rank) : 0;
}

}  // namespace ulysses::perf
