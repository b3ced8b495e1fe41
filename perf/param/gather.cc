#include "param/gather.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/buffer.h"
#include "common/clock.h"
#include "common/comparison.h"
#include "common/statistics.h"
#include "flat/mpi_flat.h"
#include "param/params.h"

namespace ulysses::perf {
namespace {

constexpr int kHits = 20001;

// A new version, gathered: what the first Acquire and the one after every update do.
Status gatherAgain(Params& params) {
  void* ptr = nullptr;
  ULYSSES_TRY(params.publish(0));
  ULYSSES_TRY(params.acquire(0, &ptr));
  return params.release(0);
}

struct OneParameter {
  Buffer shard;
  Params params;
  std::byte* gathered = nullptr;  // stays where it is

  Status open(Run& run, size_t count, ulyssesDataType_t dtype) {
    const auto n = static_cast<size_t>(run.rank.count());
    ULYSSES_TRY(run.rank.agree(Buffer::allocate(shard, count * elementBytes(dtype))));
    ULYSSES_TRY(params.open(run.comm.get(), ULYSSES_PARAM_CONFIG_INITIALIZER));
    ulyssesParamDesc_t desc = ULYSSES_PARAM_DESC_INITIALIZER;
    desc.count = count * n;
    desc.shardType = desc.gatherType = dtype;
    desc.shard = shard.data();
    ULYSSES_TRY(params.add({desc}));
    ULYSSES_TRY(params.commit());
    void* ptr = nullptr;
    ULYSSES_TRY(params.acquire(0, &ptr));
    gathered = static_cast<std::byte*>(ptr);
    return params.release(0);
  }
};

Status compare(Run& run, size_t bytes, ulyssesDataType_t dtype, int rounds) {
  const int n = run.rank.count();
  const size_t count = flatCount(bytes, n, dtype), share = count * elementBytes(dtype),
               all = share * static_cast<size_t>(n);
  if (count == 0) return {};
  OneParameter one;
  ULYSSES_TRY(one.open(run, count, dtype));
  Buffer plain;
  ULYSSES_TRY(run.rank.agree(Buffer::allocate(plain, all)));
  Buffer source;
  ULYSSES_TRY(run.rank.agree(Buffer::allocate(source, all)));
  FlatCollective toGathered(FlatKind::AllGather, count, dtype, n, run.rank.id(), run.comm.get(), one.shard.data(),
                            one.gathered);
  FlatCollective toPlain(FlatKind::AllGather, count, dtype, n, run.rank.id(), run.comm.get(), one.shard.data(),
                         plain.data());
  OtherWay ours(toGathered, [&] { return gatherAgain(one.params); });
  OtherWay mpi(toPlain, [&] { return mpiFlat(FlatKind::AllGather, one.shard.data(), plain.data(), share); });
  const auto copyAll = [&] {
    streamingCopy(plain.data(), source.data(), all);
    return Status();
  };
  OtherWay copy(toPlain, copyAll, &source, /*checked=*/false);
  std::vector<Way> ways{{"parameter gather", true, &ours}};
  if (run.rank.isMpiProcess()) ways.push_back({"MPI_Allgather", false, &mpi});
  ways.push_back({"plain copy", false, &copy});
  return compareInTurns(run, ways, rounds);
}

// Acquire and Release of what is resident, each pair timed alone.
Status timeHits(Run& run) {
  OneParameter one;
  ULYSSES_TRY(one.open(run, 4096, ulyssesBfloat16));
  std::vector<double> acquires, pairs;
  for (int i = 0; i < kHits; ++i) {
    void* ptr = nullptr;
    const int64_t entry = nowNs();
    ULYSSES_TRY(one.params.acquire(0, &ptr));
    const int64_t acquired = nowNs();
    ULYSSES_TRY(one.params.release(0));
    acquires.push_back(static_cast<double>(acquired - entry) / 1e3);
    pairs.push_back(static_cast<double>(nowNs() - entry) / 1e3);
  }
  run.rank.barrier();
  const double acquire = median(run.rank.allgather(median(std::move(acquires))));
  const double pair = median(run.rank.allgather(median(std::move(pairs))));
  if (!run.report) return {};
  run.report->line(
      fmt::format("# A hit: Acquire {:.3f} us, with Release {:.3f} us (medians, clock reads included)", acquire, pair));
  run.report->attach("hit", {{"acquire_us", acquire}, {"acquire_release_us", pair}});
  return {};
}

}  // namespace

Status runGathers(Run& run, int rounds) {
  for (const ulyssesDataType_t dtype : run.options.datatypes())
    for (const size_t bytes : run.options.sizes()) ULYSSES_TRY(compare(run, bytes, dtype, rounds));
  return timeHits(run);
}

}  // namespace ulysses::perf
