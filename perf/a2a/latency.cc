#include "a2a/latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "a2a/exchange.h"
#include "common/buffer.h"
#include "common/clock.h"
#include "common/measure.h"
#include "common/rounds.h"
#include "common/statistics.h"
#include "flat/mpi_flat.h"

namespace ulysses::perf {
namespace {

// The buffers of a small exchange, and the exchange into each kind of output.
struct Small {
  Buffer in, plain, window;
  std::unique_ptr<Exchange> toPlain, toWindow;

  Status open(Run& run, const Communicator& comm, const Geometry& geometry) {
    const int n = run.rank.count(), id = run.rank.id();
    const size_t inBytes = inputBlock(geometry, n, id).bytes(), outBytes = outputBlock(geometry, n, id).bytes();
    ULYSSES_TRY(run.rank.agree(Buffer::allocate(in, inBytes)));
    ULYSSES_TRY(run.rank.agree(Buffer::allocate(plain, std::max(inBytes, outBytes))));
    ULYSSES_TRY(run.rank.agree(Buffer::allocateWindow(window, outputBlock(geometry, n, 0).bytes(), comm)));
    toPlain = std::make_unique<Exchange>(geometry, n, id, comm, in.data(), plain.data());
    toWindow = std::make_unique<Exchange>(geometry, n, id, comm, in.data(), window.data());
    for (Exchange* exchange : {toPlain.get(), toWindow.get()}) {
      ULYSSES_ASSIGN(const size_t wrong, checkOnce(run.rank, *exchange, false));
      if (wrong > 0) return {ulyssesInternalError, fmt::format("small exchange: {} wrong elements", wrong)};
    }
    return {};
  }
};

template <class Fn>
std::function<Status()> repeat(int calls, Fn call) {
  return [calls, call] {
    for (int i = 0; i < calls; ++i) ULYSSES_TRY(call());
    return Status();
  };
}

}  // namespace

Status runLatency(Run& run, const Geometry& geometry, int rounds, int calls) {
  Rank& rank = run.rank;
  Small small, lib;
  ULYSSES_TRY(small.open(run, run.comm, geometry));
  if (run.lib) ULYSSES_TRY(lib.open(run, *run.lib, geometry));
  const size_t perPeer = small.toPlain->bytes() / static_cast<size_t>(rank.count());
  Exchange* window = small.toWindow.get();
  Exchange* plain = small.toPlain.get();

  std::vector<std::string> names{"ulyssesA2A, window", "ulyssesA2A, plain"};
  std::vector<Contender> contenders{{repeat(calls, [window] { return window->run(false); }), {}},
                                    {repeat(calls, [plain] { return plain->run(false); }), {}}};
  if (run.lib) {
    names.insert(names.end(), {"window, --lib", "plain, --lib"});
    for (Exchange* exchange : {lib.toWindow.get(), lib.toPlain.get()}) {
      contenders.push_back({repeat(calls, [exchange] { return exchange->run(false); }), {}});
    }
  }
  if (rank.isMpiProcess()) {
    names.push_back("MPI_Alltoall");
    const std::byte* from = small.in.data();
    std::byte* to = small.plain.data();
    contenders.push_back({repeat(calls, [=] { return mpiFlat(FlatKind::AlltoAll, from, to, perPeer); }), {}});
  }
  ULYSSES_ASSIGN(auto timesUs, takeTurns(rank, contenders, rounds));
  if (!run.report) return {};

  run.report->line(fmt::format("# Latency: {} bytes per rank, {} ranks, {} rounds of {} calls", plain->bytes(),
                               rank.count(), rounds, calls));
  for (auto& times : timesUs) {
    for (double& us : times) us /= calls;
  }
  nlohmann::json ways = nlohmann::json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    const double us = median(timesUs[i]);
    ways[names[i]] = {{"median_us", us}, {"times_us", timesUs[i]}};
    std::string text = fmt::format("#   {:<20} {:>8.2f} us per call", names[i], us);
    if (rank.isMpiProcess() && i + 1 < names.size()) {
      const double ratio = medianRatio(timesUs[i], timesUs.back());
      text += fmt::format("  {:.2f} x MPI_Alltoall's time (median of per-round ratios)", ratio);
      ways[names[i]]["against_mpi"] = ratio;
    }
    if (run.lib && i < 2) {
      const double ratio = medianRatio(timesUs[i + 2], timesUs[i]);
      text += fmt::format("  {:.2f} x as fast as --lib", ratio);
      ways[names[i]]["against_lib"] = ratio;
    }
    run.report->line(text);
  }
  run.report->attach(
      "latency",
      {{"size", plain->bytes()}, {"ranks", rank.count()}, {"rounds", rounds}, {"calls", calls}, {"ways", ways}});
  return {};
}

Status runAgreement(Run& run, const Geometry& geometry, int calls) {
  Rank& rank = run.rank;
  Small small;
  ULYSSES_TRY(small.open(run, run.comm, geometry));
  const size_t n = static_cast<size_t>(calls);
  std::vector<int64_t> entries(n), exits(n);
  Status status;
  rank.barrier();
  for (size_t i = 0; i < n && status.ok(); ++i) {
    entries[i] = nowNs();
    status = small.toWindow->run(false);
    exits[i] = nowNs();
  }
  ULYSSES_TRY(rank.agree(status));

  const auto allEntries = rank.allgather(entries.data(), n), allExits = rank.allgather(exits.data(), n);
  if (!run.report) return {};
  std::vector<double> costs(n);
  for (size_t i = 0; i < n; ++i) {
    int64_t entry = INT64_MIN, exit = INT64_MIN;
    for (size_t r = 0; r < static_cast<size_t>(rank.count()); ++r) {
      entry = std::max(entry, allEntries[r * n + i]);
      exit = std::max(exit, allExits[r * n + i]);
    }
    costs[i] = static_cast<double>(exit - entry) / 1e3;
  }
  std::sort(costs.begin(), costs.end());
  const double p90 = costs[n * 9 / 10], middle = median(costs);
  run.report->line(fmt::format("# Agreement: last exit - last entry over {} calls of {} bytes, {} ranks", calls,
                               small.toWindow->bytes(), rank.count()));
  run.report->line(fmt::format("#   median {:.2f} us, 90th percentile {:.2f} us", middle, p90));
  run.report->attach("agreement", {{"size", small.toWindow->bytes()},
                                   {"ranks", rank.count()},
                                   {"calls", calls},
                                   {"median_us", middle},
                                   {"p90_us", p90}});
  return {};
}

}  // namespace ulysses::perf
