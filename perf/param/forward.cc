#include "param/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "common/buffer.h"
#include "common/clock.h"
#include "common/comparison.h"
#include "common/pattern.h"
#include "common/statistics.h"
#include "device/nccl.h"
#include "flat/mpi_flat.h"
#include "param/look.h"

namespace ulysses::perf {
namespace {

constexpr size_t kElementBytes = 2, kLine = 64;

// This rank's shards of all groups, balanced as the library does it: the first n mod P ranks hold one element more.
struct Shards {
  std::vector<Buffer> groups;
  std::vector<size_t> counts, offsets;  // of each parameter's shard in its group's buffer

  Status fill(const Model& model, int rank, int nranks, Device* device) {
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
      ULYSSES_TRY(Buffer::allocate(groups.emplace_back(), bytes, device));
      write(device, groups[g].data(), bytes, [&](std::byte* data) {
        for (size_t p = 0; p < counts.size(); ++p)
          perf::fill(data + offsets[p], kElementBytes, counts[p], begins[p], g * 1000 + p);
      });
    }
    return {};
  }
};

struct Outcome {
  double seconds = 0, gatherSeconds = 0;  // of the loop; of it, what Acquire, Prefetch and Release took (Blocks::gather)
  double hitUs = 0;                       // median of the acquires that moved nothing; 0 without
  uint64_t checksum = 0;
  ulyssesParamStats_t stats = ULYSSES_PARAM_STATS_INITIALIZER;
};

// The blocks' side of the loop, and its clock: on a GPU in the order of the device's stream.
class Blocks {
 public:
  Blocks(Device* device, int computeUs) : device_(device), computeUs_(computeUs) {}

  Status open() { return device_ != nullptr ? Buffer::allocate(sum_, sizeof(uint64_t), device_) : Status(); }
  void start() {
    checksum_ = visit_ = 0;
    inCalls_ = 0;
    if (device_ != nullptr) device_->set(sum_.data(), 0, sum_.bytes());
    start_ = nowNs();
  }

  // Around the calls that gather: what they keep the blocks waiting for is time on the stream, on host memory their own.
  template <class Calls>
  Status gather(const Calls& calls) {
    const int64_t entry = nowNs();
    if (device_ != nullptr) device_->beginSpan();
    const Status status = calls();
    if (device_ != nullptr) device_->endSpan();
    inCalls_ += nowNs() - entry;
    return status;
  }
  void look(const void* data, size_t bytes) {
    ++visit_;
    if (device_ != nullptr) return device_->look(static_cast<const std::byte*>(data), bytes, visit_, sum_.data());
    for (size_t page = 0; page < pagesOf(bytes); ++page)
      checksum_ += lookAtPage(static_cast<const unsigned char*>(data), bytes, page, visit_);
  }
  void compute() {
    if (device_ != nullptr) return device_->busy(computeUs_);
    for (const int64_t until = nowNs() + int64_t{computeUs_} * 1000; nowNs() < until;) {
    }
  }

  Status finish(Outcome* outcome) {
    if (device_ != nullptr) ULYSSES_TRY(device_->finish());
    outcome->seconds = static_cast<double>(nowNs() - start_) / 1e9;
    outcome->gatherSeconds = static_cast<double>(inCalls_) / 1e9;
    outcome->checksum = checksum_;
    if (device_ == nullptr) return {};
    outcome->gatherSeconds = device_->spansUs() / 1e6;
    device_->get(reinterpret_cast<std::byte*>(&outcome->checksum), sum_.data(), sum_.bytes());
    return device_->finish();
  }

 private:
  Device* const device_;
  const int computeUs_;
  Buffer sum_;
  uint64_t checksum_ = 0, visit_ = 0;
  int64_t start_ = 0, inCalls_ = 0;
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
  Blocks blocks(run.device, options.computeUs);
  ULYSSES_TRY(run.rank.agree(blocks.open()));
  run.rank.barrier();
  blocks.start();
  for (int f = 0; f < options.forwards; ++f) {
    for (int g = 0; g < groups; ++g) {
      ULYSSES_TRY(blocks.gather([&]() -> Status {
        const int64_t entry = nowNs();
        ULYSSES_TRY(params.acquire(g, ptrs.data()));
        if (choice.kind == ulyssesResidencyPersistent && f > 0)
          hits.push_back(static_cast<double>(nowNs() - entry) / 1e3);
        for (int ahead = 1; ahead <= options.prefetchDepth; ++ahead) ULYSSES_TRY(params.prefetch((g + ahead) % groups));
        return {};
      }));
      for (size_t p = 0; p < ptrs.size(); ++p) blocks.look(ptrs[p], model.counts[p] * kElementBytes);
      blocks.compute();
      ULYSSES_TRY(blocks.gather([&] { return params.release(g); }));
    }
  }
  ULYSSES_TRY(blocks.finish(&outcome));
  outcome.hitUs = median(std::move(hits));
  outcome.stats = params.stats();
  return outcome;
}

// The same loop with one all-gather of the block's shards, made by others, into one buffer.
using AllGather = std::function<Status(const std::byte* shards, std::byte* all, size_t share)>;
Result<Outcome> otherForwards(Run& run, const Model& model, const Shards& shards, const ForwardOptions& options,
                              const AllGather& allGather) {
  const auto n = static_cast<size_t>(run.rank.count());
  const size_t share = shards.groups[0].bytes();
  Buffer out;
  ULYSSES_TRY(run.rank.agree(Buffer::allocate(out, share * n, run.device)));
  if (run.device == nullptr) touch(out.data(), out.bytes());
  Outcome outcome;
  Blocks blocks(run.device, options.computeUs);
  ULYSSES_TRY(run.rank.agree(blocks.open()));
  run.rank.barrier();
  blocks.start();
  for (int f = 0; f < options.forwards; ++f) {
    for (size_t g = 0; g < model.groups; ++g) {
      ULYSSES_TRY(blocks.gather([&] { return allGather(shards.groups[g].data(), out.data(), share); }));
      blocks.look(out.data(), share * n);
      blocks.compute();
    }
  }
  ULYSSES_TRY(blocks.finish(&outcome));
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
  ULYSSES_TRY(run.rank.agree(shards.fill(model, run.rank.id(), run.rank.count(), run.device)));
  if (run.report) {
    run.report->line(fmt::format("# {} groups of {} bytes, {} forwards, {} us of compute a block, prefetch depth {}",
                                 model.groups, model.groupBytes(), options.forwards, options.computeUs,
                                 options.prefetchDepth));
    run.report->line(fmt::format("#{:>13}  {:>9}  {:>9}  {:>6}  {:>14}  {:>7}  {:>7}  {:>7}  {:>12}  {:>12}  {:>6}  {}",
                                 "residency", "time (s)", run.device != nullptr ? "waits (s)" : "calls (s)", "%", "moved (B)", "gathers", "hits", "ahead",
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
  const auto other = [&](const char* name, const AllGather& allGather) -> Status {
    run.at(name);
    ULYSSES_ASSIGN(const Outcome mine, otherForwards(run, model, shards, options, allGather));
    const Outcome outcome = slowest(run.rank, mine);
    if (run.report) print(*run.report, name, outcome, false);
    return {};
  };
  if (run.device != nullptr) {
    std::unique_ptr<Nccl> nccl;
    ULYSSES_TRY(openNccl(run, &nccl));
    return nccl == nullptr ? Status() : other("ncclAllGather", [&](const std::byte* mine, std::byte* all, size_t share) {
      return nccl->allGather(mine, all, share);
    });
  }
  if (!run.rank.isMpiProcess()) return {};
  return other("MPI_Allgather", [](const std::byte* mine, std::byte* all, size_t share) {
    return mpiFlat(FlatKind::AllGather, mine, all, share);
  });
}

}  // namespace ulysses::perf
