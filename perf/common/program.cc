#include "common/program.h"

#include <fmt/format.h>
#include <unistd.h>

namespace ulysses::perf {
namespace {

Status runRank(Rank& rank, const std::string& name, int argc, char** argv, const CommonOptions& options,
               const Subject& subject, const std::function<Status(Run&)>& body, size_t& wrong) {
  std::unique_ptr<Report> report;
  Status status;
  if (rank.first()) {
    auto opened = Report::open(name, argc, argv, options);
    if (opened.ok()) {
      report = opened.take();
    } else {
      status = opened.status();
    }
  }
  ULYSSES_TRY(rank.agree(status));

  RankPlace place;
  place.pid = getpid();
  gethostname(place.host, sizeof(place.host) - 1);
  const auto places = rank.allgather(place);
  if (report) report->header(places, subject.text, rank.launcher(), subject.sizes(rank.count()));
  if (options.expectRanks > 0 && options.expectRanks != rank.count()) {
    return {ulyssesInvalidUsage, fmt::format("--expect-ranks {}: this run has {} rank{}", options.expectRanks,
                                             rank.count(), rank.count() == 1 ? "" : "s")};
  }

  Communicator comm;
  ULYSSES_TRY(comm.open(rank, options.timeoutSeconds));
  Run run{rank, options, comm, report.get()};
  ULYSSES_TRY(body(run));
  if (report) status = report->finish();
  wrong = rank.allgather(report ? report->wrong() : size_t{0})[0];
  return rank.agree(status);
}

}  // namespace

int runProgram(const std::string& name, int argc, char** argv, const CommonOptions& options, const Subject& subject,
               const std::function<Status(Run&)>& body) {
  return runRanks(options.threads, [&](Rank& rank) {
    size_t wrong = 0;
    const Status status = runRank(rank, name, argc, argv, options, subject, body, wrong);
    if (!status.ok()) {
      if (rank.first()) fmt::print(stderr, "{}: {}\n", name, status.message());
      return 2;
    }
    return wrong > 0 ? 1 : 0;
  });
}

Status runTable(Run& run, const std::vector<std::unique_ptr<Collective>>& rows) {
  if (run.report) run.report->columns();
  for (const auto& row : rows) {
    ULYSSES_ASSIGN(const Measurement outOfPlace, measure(run.rank, run.options, *row, false));
    std::optional<Measurement> inPlace;
    if (row->hasInPlace()) {
      ULYSSES_ASSIGN(inPlace, measure(run.rank, run.options, *row, true));
    }
    if (run.report) run.report->row(*row, run.rank.count(), outOfPlace, inPlace, run.comm.info());
  }
  if (run.report) run.report->footer();
  return {};
}

}  // namespace ulysses::perf
