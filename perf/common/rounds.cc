#include "common/rounds.h"

#include <algorithm>
#include <string>

#include "common/clock.h"
#include "common/machine.h"

namespace ulysses::perf {
namespace {

struct Turn {
  int64_t entry = 0, exit = 0;
};

bool onOneHost(Rank& rank) {
  struct Host {
    char id[64];
  } mine{};
  bootId().copy(mine.id, sizeof(mine.id) - 1);
  const auto hosts = rank.allgather(mine);
  return std::all_of(hosts.begin(), hosts.end(), [&](const Host& h) { return std::string(h.id) == hosts[0].id; });
}

}  // namespace

Result<std::vector<std::vector<double>>> takeTurns(Rank& rank, const std::vector<Contender>& contenders, int rounds,
                                                   int warmupRounds) {
  const size_t n = contenders.size(), counted = static_cast<size_t>(rounds);
  const size_t warmup = static_cast<size_t>(warmupRounds);
  const bool oneClock = onOneHost(rank);
  std::vector<Turn> turns(n * counted);
  Status status;
  for (size_t round = 0; round < counted + warmup; ++round) {
    for (size_t i = 0; i < n; ++i) {
      const size_t which = (i + round) % n;
      const Contender& contender = contenders[which];
      if (contender.prepare) contender.prepare();
      rank.barrier();
      Turn turn;
      turn.entry = nowNs();
      if (status.ok()) status = contender.run();
      turn.exit = nowNs();
      rank.barrier();
      if (round >= warmup) turns[which * counted + round - warmup] = turn;
    }
    // A library call that fails does so on all ranks; this is for what fails on one.
    ULYSSES_TRY(rank.agree(status));
  }

  const auto all = rank.allgather(turns.data(), turns.size());
  std::vector<std::vector<double>> timesUs(n, std::vector<double>(counted));
  for (size_t which = 0; which < n; ++which) {
    for (size_t round = 0; round < counted; ++round) {
      int64_t entry = INT64_MAX, exit = INT64_MIN, longest = 0;
      for (size_t r = 0; r < static_cast<size_t>(rank.count()); ++r) {
        const Turn& turn = all[r * turns.size() + which * counted + round];
        entry = std::min(entry, turn.entry);
        exit = std::max(exit, turn.exit);
        longest = std::max(longest, turn.exit - turn.entry);
      }
      timesUs[which][round] = static_cast<double>(oneClock ? exit - entry : longest) / 1e3;
    }
  }
  return timesUs;
}

}  // namespace ulysses::perf
