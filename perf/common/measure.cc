#include "common/measure.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>

#include "common/clock.h"
#include "common/library.h"

namespace ulysses::perf {
namespace {

// New in every run and for every check, the same on all ranks.
uint64_t freshSalt(Rank& rank) {
  std::random_device device;
  return rank.allgather((uint64_t{device()} << 32) | device())[0];
}

Status call(Collective& collective, int aggIters, bool inPlace) {
  if (aggIters == 1) return collective.run(inPlace);
  ulyssesGroupStart();
  Status status;
  for (int i = 0; i < aggIters && status.ok(); ++i) status = collective.run(inPlace);
  const Status ended = libraryStatus(ulyssesGroupEnd(), "ulyssesGroupEnd");
  return status.ok() ? ended : status;
}

// What the tests of this program need: a rank whose output is damaged after the call.
void damageOutput([[maybe_unused]] const Rank& rank, [[maybe_unused]] Collective& collective,
                  [[maybe_unused]] bool inPlace) {
#ifdef ULYSSES_TESTING
  const char* damaged = std::getenv("ULYSSES_TEST_CORRUPT_RANK");
  if (damaged && std::atoi(damaged) == rank.id() && collective.outputBytes() > 0) {
    collective.output(inPlace)[collective.outputBytes() / 2] ^= std::byte{1};
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

}  // namespace

Result<size_t> checkOnce(Rank& rank, Collective& collective, bool inPlace) {
  const uint64_t salt = freshSalt(rank);
  collective.fill(salt, inPlace);
  rank.barrier();
  ULYSSES_TRY(rank.agree(collective.run(inPlace)));
  damageOutput(rank, collective, inPlace);
  const auto wrong = rank.allgather(collective.countWrong(salt, inPlace));
  return std::accumulate(wrong.begin(), wrong.end(), size_t{0});
}

Result<Measurement> measure(Rank& rank, const CommonOptions& options, Collective& collective, bool inPlace) {
  Measurement result;
  collective.fill(freshSalt(rank), inPlace);
  rank.barrier();
  Status status;
  for (int i = 0; i < options.warmupIters && status.ok(); ++i) status = call(collective, options.aggIters, inPlace);
  ULYSSES_TRY(rank.agree(status));

  rank.barrier();
  const int64_t start = nowNs();
  for (int i = 0; i < options.iters && status.ok(); ++i) status = call(collective, options.aggIters, inPlace);
  const int64_t end = nowNs();
  ULYSSES_TRY(rank.agree(status));
  if (options.iters > 0) {
    const double mine = static_cast<double>(end - start) / 1e3 / options.iters / options.aggIters;
    result.timeUs = overRanks(rank.allgather(mine), options.average);
  }

  for (int i = 0; i < options.checkIters; ++i) {
    ULYSSES_ASSIGN(const size_t wrong, checkOnce(rank, collective, inPlace));
    result.wrong = result.wrong.value_or(0) + wrong;
  }
  return result;
}

}  // namespace ulysses::perf
