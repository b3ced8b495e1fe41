#include "common/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/measure.h"
#include "common/rounds.h"
#include "common/statistics.h"

namespace ulysses::perf {
namespace {

void print(Report& report, int nranks, const std::vector<Way>& ways, const std::vector<std::vector<double>>& timesUs) {
  const Collective& first = *ways[0].collective;
  const size_t rounds = timesUs[0].size();
  report.line(fmt::format("# In turns: {}, {} bytes per rank, {} ranks, {} rounds", first.variant(), first.bytes(),
                          nranks, rounds));
  nlohmann::json times = nlohmann::json::object(), ratios = nlohmann::json::object();
  for (size_t i = 0; i < ways.size(); ++i) {
    const double us = median(timesUs[i]), best = *std::min_element(timesUs[i].begin(), timesUs[i].end());
    report.line(fmt::format("#   {:<20} median {:>10.1f} us  best {:>10.1f} us  {:>7.2f} GB/s", ways[i].name, us, best,
                            us > 0 ? static_cast<double>(first.bytes()) / 1e3 / us : 0));
    times[ways[i].name] = {{"median_us", us}, {"best_us", best}, {"times_us", timesUs[i]}};
  }
  report.line("# Speed, as medians of per-round ratios");
  for (size_t ours = 0; ours < ways.size(); ++ours) {
    for (size_t theirs = 0; theirs < ways.size() && ways[ours].ours; ++theirs) {
      if (ways[theirs].ours) continue;
      const double ratio = medianRatio(timesUs[theirs], timesUs[ours]);
      const std::string name = ways[ours].name + " against " + ways[theirs].name;
      report.line(fmt::format("#   {:<36} {:6.2f} x", name, ratio));
      ratios[name] = ratio;
    }
  }
  report.line("#");
  report.append("baseline", {{"variant", first.variant()},
                             {"size", first.bytes()},
                             {"type", datatypeName(first.dtype())},
                             {"ranks", nranks},
                             {"rounds", rounds},
                             {"ways", times},
                             {"ratios", ratios}});
}

}  // namespace

Status openNccl(Run& run, std::unique_ptr<Nccl>* nccl) {
  std::string why;
  ULYSSES_ASSIGN(*nccl, Nccl::open(run.rank, *run.device, run.comm.info().ranksPerDevice, &why));
  if (run.report)
    run.report->line(*nccl ? fmt::format("# NCCL {}", (*nccl)->version()) : fmt::format("# Without NCCL: {}", why));
  return {};
}

Status compareInTurns(Run& run, const std::vector<Way>& ways, int rounds) {
  run.at(fmt::format("{} ways in turns, {} bytes, {} rounds", ways.size(), ways[0].collective->bytes(), rounds));
  std::vector<Contender> contenders;
  for (const Way& way : ways) {
    size_t wrong = 0;
    if (run.options.checkIters > 0) {
      ULYSSES_ASSIGN(wrong, checkOnce(run.rank, *way.collective, false));
    }
    if (wrong > 0) return {ulyssesInternalError, fmt::format("{}: {} wrong elements", way.name, wrong)};
    Collective* collective = way.collective;
    contenders.push_back({[collective] { return finished(*collective, collective->run(false)); },
                          [collective] { collective->touchBuffers(); }});
  }
  ULYSSES_ASSIGN(const auto timesUs, takeTurns(run.rank, contenders, rounds));
  if (run.report) print(*run.report, run.rank.count(), ways, timesUs);
  return {};
}

}  // namespace ulysses::perf
