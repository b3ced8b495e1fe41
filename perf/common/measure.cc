#include "common/measure.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>

#include "common/clock.h"
#include "common/rounds.h"
#include "common/statistics.h"

namespace ulysses::perf {
namespace {

constexpr int kTurns = 10;  // of two builds: enough for a median
constexpr int kAlone = 5;   // calls of the host-to-completion time

// New in every run and for every check, the same on all ranks.
uint64_t freshSalt(Rank& rank) {
  std::random_device device;
  return rank.allgather((uint64_t{device()} << 32) | device())[0];
}

// One timed call: an operation, or a group of several.
Status call(Collective& collective, int aggIters, bool inPlace) {
  if (aggIters == 1) return collective.run(inPlace);
  const Communicator& comm = collective.comm();
  comm.library().GroupStart();
  Status status;
  for (int i = 0; i < aggIters && status.ok(); ++i) status = collective.run(inPlace);
  const Status ended = comm.status(comm.library().GroupEnd(), "ulyssesGroupEnd");
  return status.ok() ? ended : status;
}

// What the tests of this program need: a rank whose output is damaged after the call.
void damageOutput([[maybe_unused]] const Rank& rank, [[maybe_unused]] Collective& collective,
                  [[maybe_unused]] bool inPlace) {
#ifdef ULYSSES_TESTING
  const char* damaged = std::getenv("ULYSSES_TEST_CORRUPT_RANK");
  if (damaged && std::atoi(damaged) == rank.id() && collective.outputBytes() > 0) {
    Device* const device = collective.comm().device();
    std::byte* const byte = collective.output(inPlace) + collective.outputBytes() / 2;
    const std::byte value = read(device, byte, 1, [](const std::byte* data) { return *data; });
    write(device, byte, 1, [value](std::byte* data) { *data = value ^ std::byte{1}; });
  }
#endif
}

double overRanks(const std::vector<double>& times, int average) {
  switch (average) {
    case 0:
      return times[0];
    case 2:
      return *std::min_element(times.begin(), times.end());
    case 3:
      return *std::max_element(times.begin(), times.end());
    default:
      return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  }
}

// Element by element, the largest of all ranks'.
std::vector<double> slowest(Rank& rank, const std::vector<double>& mine) {
  const auto all = rank.allgather(mine.data(), mine.size());
  std::vector<double> most = mine;
  for (size_t i = 0; i < all.size(); ++i) most[i % mine.size()] = std::max(most[i % mine.size()], all[i]);
  return most;
}

// Times of the calls, out of the stamps at the start of every turn and after every call.
std::vector<double> iterations(Rank& rank, const std::vector<int64_t>& stamps, size_t runs, size_t turns,
                               double operations) {
  std::vector<double> times;
  size_t at = 0;
  for (size_t turn = 0; turn < turns; ++turn, ++at) {
    for (size_t k = runs / turns + (turn < runs % turns); k > 0; --k, ++at) {
      times.push_back(static_cast<double>(stamps[at + 1] - stamps[at]) / 1e3 / operations);
    }
  }
  return slowest(rank, times);
}

// The timed calls of a build: one by one or, with -G, all of them as a recorded graph.
class Timed {
 public:
  Timed(const CommonOptions& options, Collective& collective, bool inPlace)
      : options_(options), collective_(collective), inPlace_(inPlace) {}

  // Collective.
  Status record() {
    if (options_.graphLaunches == 0) return {};
    ULYSSES_ASSIGN(recording_, collective_.comm().device()->record([&]() -> Status {
      for (int i = 0; i < options_.iters; ++i) ULYSSES_TRY(step());
      return {};
    }));
    return {};
  }
  Status run() { return recording_ ? collective_.comm().device()->replay(*recording_) : step(); }
  int count() const { return recording_ ? options_.graphLaunches : options_.iters; }
  int operations() const { return (recording_ ? options_.iters : 1) * options_.aggIters; }  // of one run

 private:
  Status step() {
    const Status status = call(collective_, options_.aggIters, inPlace_);
    collective_.rotate();
    return status;
  }

  const CommonOptions& options_;
  Collective& collective_;
  const bool inPlace_;
  std::unique_ptr<Recording> recording_;
};

// The builds' iterations in turns of a few; without a second build there is one turn, as nccl-tests has it. On a device
// the time is that between events before and after a turn, but for the one until the calls return (-C).
Status timeInTurns(Rank& rank, const CommonOptions& options, const std::vector<Collective*>& builds, bool inPlace,
                   std::vector<Measurement>& results) {
  const size_t n = builds.size();
  if (options.iters == 0) return {};
  Device* const device = builds[0]->comm().device();
  std::vector<Timed> timed;
  for (Collective* collective : builds) {
    timed.emplace_back(options, *collective, inPlace);
    ULYSSES_TRY(rank.agree(timed.back().record()));
  }
  const size_t runs = static_cast<size_t>(timed[0].count());
  const size_t turns = n == 1 ? 1 : std::min<size_t>(runs, kTurns);
  const double operations = timed[0].operations();
  std::vector<std::vector<double>> turnUs(n);  // per operation, by turn
  std::vector<std::vector<int64_t>> stamps(n);
  std::vector<double> totalUs(n, 0);
  Status status;
  for (size_t turn = 0; turn < turns; ++turn) {
    const size_t calls = runs / turns + (turn < runs % turns);
    for (size_t i = 0; i < n; ++i) {
      const size_t b = (i + turn) % n;
      rank.barrier();
      if (device) device->mark(0);
      const int64_t start = nowNs();
      if (options.perIteration) stamps[b].push_back(start);
      for (size_t k = 0; k < calls; ++k) {
        if (status.ok()) status = timed[b].run();
        if (options.blocking > 0 || options.perIteration) status = finished(*builds[b], status);
        // Also after a failure, so that no rank waits here alone.
        if (options.blocking == 1) rank.barrier();
        if (options.perIteration) stamps[b].push_back(nowNs());
      }
      const double hostUs = static_cast<double>(nowNs() - start) / 1e3;
      if (device) device->mark(1);
      status = finished(*builds[b], status);
      const double us = (device && !options.cpuTime ? device->markedUs() : hostUs) / operations;
      totalUs[b] += us;
      turnUs[b].push_back(us / static_cast<double>(calls));
    }
  }
  ULYSSES_TRY(rank.agree(status));

  for (size_t b = 0; b < n; ++b) {
    results[b].timeUs = overRanks(rank.allgather(totalUs[b] / static_cast<double>(runs)), options.average);
    if (options.perIteration) results[b].iterationsUs = iterations(rank, stamps[b], runs, turns, operations);
    turnUs[b] = slowest(rank, turnUs[b]);
    results[b].ratio = medianRatio(turnUs[b], turnUs[0]);
  }
  return {};
}

// From the host's call to completion on all ranks, one call at a time.
Status timeAlone(Rank& rank, const CommonOptions& options, const std::vector<Collective*>& builds, bool inPlace,
                 std::vector<Measurement>& results) {
  const int rounds = std::min(options.iters, kAlone);
  if (rounds == 0) return {};
  std::vector<Contender> contenders;
  for (Collective* collective : builds) {
    contenders.push_back({[collective, inPlace] { return finished(*collective, collective->run(inPlace)); }, {}});
  }
  ULYSSES_ASSIGN(const auto timesUs, takeTurns(rank, contenders, rounds, /*warmupRounds=*/0));
  for (size_t b = 0; b < builds.size(); ++b) results[b].completionUs = median(timesUs[b]);
  return {};
}

}  // namespace

Status finished(const Collective& collective, Status status) {
  Device* const device = collective.comm().device();
  return status.ok() && device ? device->finish() : status;
}

Result<size_t> checkOnce(Rank& rank, Collective& collective, bool inPlace) {
  const uint64_t salt = freshSalt(rank);
  collective.fill(salt, inPlace);
  rank.barrier();
  ULYSSES_TRY(rank.agree(finished(collective, collective.run(inPlace))));
  damageOutput(rank, collective, inPlace);
  const auto wrong = rank.allgather(collective.countWrong(salt, inPlace));
  return std::accumulate(wrong.begin(), wrong.end(), size_t{0});
}

Result<std::vector<Measurement>> measure(Rank& rank, const CommonOptions& options,
                                         const std::vector<Collective*>& builds, bool inPlace,
                                         const std::function<void(const char*)>& at) {
  std::vector<Measurement> results(builds.size());
  at("warming up");
  Status status;
  for (Collective* collective : builds) {
    collective->fill(freshSalt(rank), inPlace);
    rank.barrier();
    // One call more than asked for: what a first call sets up is never timed.
    for (int i = 0; i <= options.warmupIters && status.ok(); ++i) status = call(*collective, options.aggIters, inPlace);
    ULYSSES_TRY(rank.agree(finished(*collective, status)));
  }

  at("timing");
  ULYSSES_TRY(timeInTurns(rank, options, builds, inPlace, results));
  ULYSSES_TRY(timeAlone(rank, options, builds, inPlace, results));

  for (size_t b = 0; b < builds.size(); ++b) {
    at("checking");
    Measurement& result = results[b];
    for (int i = 0; i < options.checkIters && result.wrong.value_or(0) == 0; ++i) {
      ULYSSES_ASSIGN(result.wrong, checkOnce(rank, *builds[b], inPlace));
    }
    result.info = builds[b]->comm().info();
    // Ranks whose outputs are direct and staged differ in their paths; all ask, or none.
    const auto staged = rank.allgather(int{std::string_view(result.info.lastPath) == "staged"});
    if (std::find(staged.begin(), staged.end(), 1) != staged.end()) {
      auto chunks = builds[b]->stagedChunks();
      ULYSSES_TRY(rank.agree(chunks.status()));
      result.chunks = chunks.take();
    }
  }
  return results;
}

}  // namespace ulysses::perf
