// Times and checks one collective, as nccl-tests does.
#pragma once

#include <cstddef>
#include <optional>

#include "common/collective.h"
#include "common/options.h"
#include "common/ranks.h"

namespace ulysses::perf {

struct Measurement {
  double timeUs = 0;            // per operation; 0 when nothing was timed
  std::optional<size_t> wrong;  // elements over all ranks and checks; none when unchecked
};

Result<Measurement> measure(Rank& rank, const CommonOptions& options, Collective& collective, bool inPlace);

// Fresh data, poisoned outputs, one call, every element compared: wrong elements over all ranks.
Result<size_t> checkOnce(Rank& rank, Collective& collective, bool inPlace);

}  // namespace ulysses::perf
