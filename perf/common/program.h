// The frame of a perf binary: what all of them do around their own rows.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/library.h"
#include "common/options.h"
#include "common/report.h"

namespace ulysses::perf {

// What a binary's body works with; report is null on all ranks but the first.
struct Run {
  Rank& rank;
  const CommonOptions& options;
  Communicator& comm;
  Report* report;
};

// What the header says of a run.
struct Subject {
  std::string text;
  std::function<SizeRange(int nranks)> sizes;
};

// Starts the ranks, opens communicator and report, prints the header, calls `body` on every rank, prints the outcome.
// Returns the exit code: 0, 1 for wrong values, 2 for an error.
int runProgram(const std::string& name, int argc, char** argv, const CommonOptions& options, const Subject& subject,
               const std::function<Status(Run&)>& body);

// Measures every collective (in place too, where it has that), and prints its row and the footer.
Status runTable(Run& run, const std::vector<std::unique_ptr<Collective>>& rows);

}  // namespace ulysses::perf
