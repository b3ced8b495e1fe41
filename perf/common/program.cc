#include "common/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/checked.h"
#include "common/machine.h"

namespace ulysses::perf {
namespace {

// Cuts the largest size to what the memory holds, as nccl-tests does: per rank an input, and an output in every build
// and in two comparisons. Returns the new size where there was one to cut.
Result<std::optional<size_t>> fitMemory(Rank& rank, CommonOptions& options, const Device* device) {
  struct Share {
    char host[64];
    size_t available;
  } mine{{}, device ? device->memoryBytes() : availableMemory()};
  bootId().copy(mine.host, sizeof(mine.host) - 1);
  const auto all = rank.allgather(mine);
  size_t least = SIZE_MAX;
  for (const Share& one : all) {
    const auto neighbours = std::count_if(all.begin(), all.end(),
                                          [&](const Share& other) { return std::string_view(one.host) == other.host; });
    least = std::min(least, one.available / static_cast<size_t>(neighbours));
  }
  const size_t most = least / (options.libraryPath.empty() ? 4 : 5);
  if (!options.maxBytes || *options.maxBytes <= most) return std::optional<size_t>();
  if (options.firstBytes() > most) {
    return Status(ulyssesOutOfMemory, fmt::format("-b {}: this machine's memory is enough for {} bytes per rank",
                                                  options.firstBytes(), most));
  }
  // One object for all threads of a process.
  rank.barrier();
  if (rank.leadsProcess()) options.maxBytes = most;
  rank.barrier();
  return std::optional<size_t>(most);
}

// The linked library and, with --lib, the other one, each with a communicator over all ranks.
struct Builds {
  Library other;
  std::unique_ptr<Communicator> comm, lib;

  Status open(Rank& rank, const CommonOptions& options, size_t windowBytes, Device* device) {
    comm = std::make_unique<Communicator>(Library::linked());
    ULYSSES_TRY(comm->open(rank, options.timeoutSeconds, windowBytes, device));
    if (options.libraryPath.empty()) return {};
    auto loaded = Library::load(options.libraryPath);
    ULYSSES_TRY(rank.agree(loaded.status()));
    other = loaded.take();
    lib = std::make_unique<Communicator>(other);
    return lib->open(rank, options.timeoutSeconds, windowBytes, device);
  }
};

// Window bytes for the outputs of table and comparison beside what the library needs itself; 0, the library's default,
// where that is enough.
size_t windowBytesFor(const SizeRange& sizes) {
  constexpr size_t kDefault = size_t{1} << 30;
  const auto outputs = checkedMul(sizes.last, 2);
  if (!outputs || *outputs <= kDefault / 2) return 0;
  return checkedAdd(*outputs, kDefault).value_or(0);
}

Status runRank(Rank& rank, const std::string& name, int argc, char** argv, CommonOptions& options,
               const Subject& subject, const std::function<Status(Run&)>& body, bool& failed) {
  std::unique_ptr<Device> device;
  if (options.onDevice()) {
    auto opened = Device::open(rank.id());
    ULYSSES_TRY(rank.agree(opened.status()));
    device = opened.take();
  }
  ULYSSES_ASSIGN(const auto cut, fitMemory(rank, options, device.get()));
  std::unique_ptr<Report> report;
  std::unique_ptr<Progress> progress;
  Status status;
  if (rank.first()) {
    auto opened = Report::open(name, argc, argv, options);
    if (opened.ok()) {
      report = opened.take();
      progress = std::make_unique<Progress>(name, options.progressSeconds);
    } else {
      status = opened.status();
    }
  }
  ULYSSES_TRY(rank.agree(status));

  RankPlace place;
  place.pid = getpid();
  gethostname(place.host, sizeof(place.host) - 1);
  if (device) {
    device->name().copy(place.device, sizeof(place.device) - 1);
    place.number = device->number();
  }
  const auto places = rank.allgather(place);
  const SizeRange sizes = subject.sizes(rank.count());
  if (report) report->header(places, subject.text, rank.launcher(), sizes);
  if (report && cut) report->line(fmt::format("#\n# Reducing maxBytes to {} due to memory limitation", *cut));
  if (options.expectRanks > 0 && options.expectRanks != rank.count()) {
    return {ulyssesInvalidUsage, fmt::format("--expect-ranks {}: this run has {} rank{}", options.expectRanks,
                                             rank.count(), rank.count() == 1 ? "" : "s")};
  }

  Builds builds;
  ULYSSES_TRY(builds.open(rank, options, windowBytesFor(sizes), device.get()));
  Run run{rank, options, *builds.comm, builds.lib.get(), device.get(), report.get(), progress.get()};
  if (report) {
    const auto comms = run.comms();
    report->builds({comms.begin(), comms.end()});
  }
  ULYSSES_TRY(body(run));
  if (report) status = report->finish();
  failed = rank.allgather(int{report && report->failed()})[0] != 0;
  return rank.agree(status);
}

}  // namespace

int runProgram(const std::string& name, int argc, char** argv, CommonOptions& options, const Subject& subject,
               const std::function<Status(Run&)>& body) {
  return runRanks(options.threads, [&](Rank& rank) {
    bool failed = false;
    const Status status = runRank(rank, name, argc, argv, options, subject, body, failed);
    if (!status.ok()) {
      if (rank.first()) fmt::print(stderr, "{}: {}\n", name, status.message());
      return 2;
    }
    return failed ? 1 : 0;
  });
}

namespace {

Status runRow(Run& run, size_t row, size_t rows, const std::vector<RowMaker>& builds) {
  std::vector<std::unique_ptr<Collective>> owned;
  std::vector<Collective*> collectives;
  for (const RowMaker& make : builds) {
    ULYSSES_ASSIGN(auto made, make(row));
    collectives.push_back(made.get());
    owned.push_back(std::move(made));
  }
  const Collective& first = *collectives[0];
  std::vector<Measurement> results[2];
  for (const bool inPlace : {false, true}) {
    if (inPlace && !first.hasInPlace()) continue;
    const auto at = [&](const char* what) {
      run.at(
          fmt::format("row {} of {}, {} bytes{}: {}", row + 1, rows, first.bytes(), inPlace ? " in place" : "", what));
    };
    ULYSSES_ASSIGN(results[inPlace], measure(run.rank, run.options, collectives, inPlace, at));
  }
  if (run.report) run.report->row(first, run.rank.count(), results[0], results[1]);
  return {};
}

}  // namespace

Status runTable(Run& run, size_t rows, const std::vector<RowMaker>& builds) {
  if (run.report) run.report->columns();
  for (int cycle = 0; run.options.cycles == 0 || cycle<run.options.cycles; cycle += run.options.cycles> 0) {
    for (size_t row = 0; row < rows; ++row) ULYSSES_TRY(runRow(run, row, rows, builds));
  }
  if (run.report) run.report->footer();
  return {};
}

}  // namespace ulysses::perf
