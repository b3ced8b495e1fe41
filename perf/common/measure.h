// Times and checks one collective, as nccl-tests does.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/collective.h"
#include "common/options.h"
#include "common/ranks.h"

namespace ulysses::perf {

struct Measurement {
  double timeUs = 0;                   // per operation; 0 when nothing was timed
  std::vector<double> iterationsUs;    // with -I: per operation, the slowest rank's, by timed call
  std::optional<double> completionUs;  // of a call alone: from the first rank's entry to the last one's completion
  std::optional<size_t> wrong;         // elements over all ranks and checks; none when unchecked
  double ratio = 0;                    // with --lib: this build's time over the first one's; 0 when nothing was timed
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;  // after it, on this rank
  int chunks = 0;                                          // of a staged call
};

// One collective in one or several builds of the library, which take turns in the timed part. `at` is told what comes.
Result<std::vector<Measurement>> measure(Rank& rank, const CommonOptions& options,
                                         const std::vector<Collective*>& builds, bool inPlace,
                                         const std::function<void(const char*)>& at);

// The status of a call, its work done where that is on a stream.
Status finished(const Collective& collective, Status status);

// Fresh data, poisoned outputs, one call, every element compared: wrong elements over all ranks.
Result<size_t> checkOnce(Rank& rank, Collective& collective, bool inPlace);

}  // namespace ulysses::perf
