// The frame of a perf binary: what all of them do around their own rows.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/library.h"
#include "common/options.h"
#include "common/progress.h"
#include "common/report.h"

namespace ulysses::perf {

// What a binary's body works with; report and progress are null on all ranks but the first.
struct Run {
  Rank& rank;
  const CommonOptions& options;
  Communicator& comm;  // of the linked library
  Communicator* lib;   // of --lib's, or null
  Device* device;      // this rank's, or null: host memory
  Report* report;
  Progress* progress;

  std::vector<Communicator*> comms() const {
    return lib ? std::vector<Communicator*>{&comm, lib} : std::vector<Communicator*>{&comm};
  }
  void at(std::string what) const {
    if (progress) progress->at(std::move(what));
  }
};

// What the header says of a run.
struct Subject {
  std::string text;
  std::function<SizeRange(int nranks)> sizes;
};

// Starts the ranks, opens communicators and report, prints the header, calls `body` on every rank, prints the outcome.
// Returns the exit code: 0, 1 for wrong values, 2 for an error. Sizes beyond the machine's memory are cut in `options`
// before `subject.sizes` and `body` are called.
int runProgram(const std::string& name, int argc, char** argv, CommonOptions& options, const Subject& subject,
               const std::function<Status(Run&)>& body);

// Makes one row of the table for the communicator of one build. Collective.
using RowMaker = std::function<Result<std::unique_ptr<Collective>>(size_t row)>;

// Measures `rows` collectives (in place too, where they have that), in all builds, in the order of Run::comms(), and
// prints their rows and the footer. A row lives while it is measured.
Status runTable(Run& run, size_t rows, const std::vector<RowMaker>& builds);

}  // namespace ulysses::perf
