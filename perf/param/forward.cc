#include "param/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/buffer.h"
#include "common/clock.h"
#include "common/pattern.h"
#include "common/statistics.h"
#include "flat/mpi_flat.h"

namespace ulysses::perf {
namespace {

constexpr size_t kElementBytes = 2, kLine = 64, kPage = 4096;

// This rank's shards of all groups, balanced as the library does it: the first n mod P ranks hold one element more.
struct Shards {
  std::vector<Buffer> groups;
  std::vector<size_t> counts, offsets;  // of each parameter's shard in its group's buffer

  Status fill(const Model& model, int rank, int nranks) {
    const auto r = static_cast<size_t>(rank), n = static_cast<size_t>(nranks);
    size_t bytes = 0;
    std::vector<size_t> begins;
    for (const size_t count : model.counts) {
      offsets.push_back(bytes);
      counts.push_back(count / n + (r < count % n));
      begins.push_back(r * (count / n) + std::min(r, count % n));
      bytes += (counts.back() * kElementBytes + kLine - 1) / kLine * kLine;
    }
    for (size_t g = 0; g < model.groups; ++g) {
      ULYSSES_TRY(Buffer::allocate(groups.emplace_back(), bytes));
      for (size_t p = 0; p < counts.size(); ++p)
        perf::fill(groups[g].data() + offsets[p], kElementBytes, counts[p], begins[p], g * 1000 + p);
    }
    return {};
  }
};

// What a block saw of a parameter: a line of every page, which finds any shard that is stale or in the wrong place.
uint64_t look(const std::byte* data, size_t bytes, uint64_t sum) {
  for (size_t at = 0; at < bytes; at += kPage) {
    uint64_t word = 0;
    for (size_t i = at; i < std::min(at + kLine, bytes); i += sizeof word) {
      std::memcpy(&word, data + i, std::min(sizeof word, bytes - i));
      sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
      sum ^= sum >> 31;
    }
  }
  return sum;
}

void compute(int us) {
  for (const int64_t until = nowNs() + int64_t{us} * 1000; nowNs() < until;) {
  }
}

struct Outcome {
  double seconds = 0, gatherSeconds = 0;  // of the loop; of it, in Acquire, Prefetch and Release
  double hitUs = 0;                       // median of the acquires that moved nothing; 0 without
  uint64_t checksum = 0;
  ulyssesParamStats_t stats = ULYSSES_PARAM_STATS_INITIALIZER;
};

Result<Outcome> forwards(Run& run, const Model& model, const Shards& shards, const ResidencyChoice& choice,
                         const ForwardOptions& options) {
  ulyssesParamConfig_t config = ULYSSES_PARAM_CONFIG_INITIALIZER;
  config.residency = static_cast<ulyssesResidency_t>(choice.kind);
  config.budgetBytes = choice.budgetBytes;
  config.prefetchDepth = options.prefetchDepth;
  Params params(run.comm);
  ULYSSES_TRY(run.rank.agree(params.open(config)));
  for (size_t g = 0; g < model.groups; ++g) {
    std::vector<ulyssesParamDesc_t> descs(model.counts.size(), ULYSSES_PARAM_DESC_INITIALIZER);
    for (size_t p = 0; p < descs.size(); ++p) {
      descs[p].count = model.counts[p];
      descs[p].shard = shards.groups[g].data() + shards.offsets[p];
    }
    ULYSSES_TRY(params.add(descs));
  }
  ULYSSES_TRY(params.commit());

  Outcome outcome;
  std::vector<double> hits;
  std::vector<void*> ptrs(model.counts.size());
  const int groups = static_cast<int>(model.groups);
  int64_t inCalls = 0;
  run.rank.barrier();
  const int64_t start = nowNs();
  for (int f = 0; f < options.forwards; ++f) {
    for (int g = 0; g < groups; ++g) {
      const int64_t entry = nowNs();
      ULYSSES_TRY(params.acquire(g, ptrs.data()));
      const int64_t acquired = nowNs();
      for (int ahead = 1; ahead <= options.prefetchDepth; ++ahead) ULYSSES_TRY(params.prefetch((g + ahead) % groups));
      inCalls += nowNs() - entry;
      if (choice.kind == ulyssesResidencyPersistent && f > 0)
        hits.push_back(static_cast<double>(acquired - entry) / 1e3);
      for (size_t p = 0; p < ptrs.size(); ++p)
        outcome.checksum =
            look(static_cast<const std::byte*>(ptrs[p]), model.counts[p] * kElementBytes, outcome.checksum);
      compute(options.computeUs);
      const int64_t done = nowNs();
      ULYSSES_TRY(params.release(g));
      inCalls += nowNs() - done;
    }
  }
  outcome.seconds = static_cast<double>(nowNs() - start) / 1e9;
  outcome.gatherSeconds = static_cast<double>(inCalls) / 1e9;
  outcome.hitUs = median(std::move(hits));
  outcome.stats = params.stats();
  return outcome;
}

// The same loop with one MPI_Allgather of the block's shards, into one buffer.
Result<Outcome> mpiForwards(Run& run, const Model& model, const Shards& shards, const ForwardOptions& options) {
  const auto n = static_cast<size_t>(run.rank.count());
  const size_t share = shards.groups[0].bytes();
  Buffer out;
  ULYSSES_TRY(run.rank.agree(Buffer::allocate(out, share * n)));
  touch(out.data(), out.bytes());
  Outcome outcome;
  int64_t inCalls = 0;
  run.rank.barrier();
  const int64_t start = nowNs();
  for (int f = 0; f < options.forwards; ++f) {
    for (size_t g = 0; g < model.groups; ++g) {
      const int64_t entry = nowNs();
      ULYSSES_TRY(mpiFlat(FlatKind::AllGather, shards.groups[g].data(), out.data(), share));
      inCalls += nowNs() - entry;
      outcome.checksum = look(out.data(), share * n, outcome.checksum);
      compute(options.computeUs);
    }
  }
  outcome.seconds = static_cast<double>(nowNs() - start) / 1e9;
  outcome.gatherSeconds = static_cast<double>(inCalls) / 1e9;
  outcome.stats.gathers = outcome.stats.acquires = model.groups * static_cast<uint64_t>(options.forwards);
  outcome.stats.bytesMoved = outcome.stats.gathers * share * n;
  outcome.stats.residentBytes = outcome.stats.peakBytes = share * n;
  return outcome;
}

void print(Report& report, const std::string& name, const Outcome& o, bool ours) {
  const double share = o.seconds > 0 ? 100 * o.gatherSeconds / o.seconds : 0;
  const std::string checksum = ours ? fmt::format("{:016x}", o.checksum) : "-";
  report.line(
      fmt::format("{:>14}  {:>9.3f}  {:>9.3f}  {:>6.1f}  {:>14}  {:>7}  {:>7}  {:>7}  {:>12}  {:>12}  {:>6.2f}  {}",
                  name, o.seconds, o.gatherSeconds, share, o.stats.bytesMoved, o.stats.gathers, o.stats.hits,
                  o.stats.prefetchHits, o.stats.residentBytes, o.stats.peakBytes, o.hitUs, checksum));
  report.append("forwards", {{"residency", name},
                             {"seconds", o.seconds},
                             {"gather_seconds", o.gatherSeconds},
                             {"gather_share", share / 100},
                             {"bytes_moved", o.stats.bytesMoved},
                             {"acquires", o.stats.acquires},
                             {"gathers", o.stats.gathers},
                             {"hits", o.stats.hits},
                             {"prefetch_hits", o.stats.prefetchHits},
                             {"evictions", o.stats.evictions},
                             {"resident_bytes", o.stats.residentBytes},
                             {"peak_bytes", o.stats.peakBytes},
                             {"hit_us", o.hitUs},
                             {"checksum", checksum}});
}

// Of all ranks: the slowest, and its share of time.
Outcome slowest(Rank& rank, const Outcome& mine) {
  const auto all = rank.allgather(mine);
  return *std::max_element(all.begin(), all.end(),
                           [](const Outcome& a, const Outcome& b) { return a.seconds < b.seconds; });
}

}  // namespace

Status runForwards(Run& run, const Model& model, const std::vector<ResidencyChoice>& choices,
                   const ForwardOptions& options) {
  Shards shards;
  ULYSSES_TRY(run.rank.agree(shards.fill(model, run.rank.id(), run.rank.count())));
  if (run.report) {
    run.report->line(fmt::format("# {} groups of {} bytes, {} forwards, {} us of compute a block, prefetch depth {}",
                                 model.groups, model.groupBytes(), options.forwards, options.computeUs,
                                 options.prefetchDepth));
    run.report->line(fmt::format("#{:>13}  {:>9}  {:>9}  {:>6}  {:>14}  {:>7}  {:>7}  {:>7}  {:>12}  {:>12}  {:>6}  {}",
                                 "residency", "time (s)", "calls (s)", "%", "moved (B)", "gathers", "hits", "ahead",
                                 "resident (B)", "peak (B)", "hit us", "checksum"));
  }
  std::optional<uint64_t> first;
  for (const ResidencyChoice& choice : choices) {
    run.at(choice.name);
    ULYSSES_ASSIGN(const Outcome mine, forwards(run, model, shards, choice, options));
    if (!first) first = run.rank.allgather(mine.checksum)[0];
    const Status same = mine.checksum == *first
                            ? Status()
                            : Status(ulyssesInternalError,
                                     fmt::format("{} on rank {} saw other parameters", choice.name, run.rank.id()));
    ULYSSES_TRY(run.rank.agree(same));
    const Outcome outcome = slowest(run.rank, mine);
    if (run.report) print(*run.report, choice.name, outcome, true);
  }
  if (!run.rank.isMpiProcess()) return {};
  run.at("MPI_Allgather");
  ULYSSES_ASSIGN(const Outcome mine, mpiForwards(run, model, shards, options));
  const Outcome outcome = slowest(run.rank, mine);
  if (run.report) print(*run.report, "MPI_Allgather", outcome, false);
  return {};
}

}  // namespace ulysses::perf
