// Which of NCCL's calls go over windows. Pure, and the same on all ranks of a correct program: of what may differ
// between ranks (pointers, streams, what has been prepared) nothing is asked.
#pragma once

#include <cstddef>
#include <string>

namespace ulysses::drop_in {

// 0: a type that is not known.
size_t elementBytes(int ncclType);

struct CallFacts {
  size_t count = 0;  // elements, as the caller gives them: what each rank sends to each other
  int type = 0;      // ncclDataType_t
  int nranks = 1;
  size_t mostBytes = 0;  // of the larger of a rank's two buffers
};
// "" where it is taken.
std::string whyPassed(const CallFacts& facts);

// Work tables are kept as long as the communicator, in memory that it has from the beginning.
constexpr size_t kMostSizes = 1024;

}  // namespace ulysses::drop_in
