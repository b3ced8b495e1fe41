// Contenders that take turns within one run, so that what disturbs the machine disturbs all of them.
#pragma once

#include <functional>
#include <vector>

#include "common/ranks.h"

namespace ulysses::perf {

struct Contender {
  std::function<Status()> run;
  std::function<void()> prepare;  // before the barrier, not timed: touches the buffers
};

// Times in us by contender and round. One turn lasts from the first rank's entry to the last rank's exit, which counts
// all the work also where there are fewer cores than ranks; over several hosts, whose clocks differ, it is the slowest
// rank's own time. The order rotates by round; `warmupRounds` before the counted ones are not counted.
Result<std::vector<std::vector<double>>> takeTurns(Rank& rank, const std::vector<Contender>& contenders, int rounds,
                                                   int warmupRounds = 3);

}  // namespace ulysses::perf
