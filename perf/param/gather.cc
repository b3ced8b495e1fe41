#include "param/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/buffer.h"
#include "common/clock.h"
#include "common/comparison.h"
#include "common/statistics.h"
#include "flat/mpi_flat.h"

namespace ulysses::perf {
namespace {

constexpr int kHits = 20001;

// One parameter, gathered anew in every run: what the first Acquire and the one after every update do.
class ParamGather final : public Collective {
 public:
  ParamGather(const Communicator& comm, size_t count, ulyssesDataType_t dtype, int nranks, int rank)
      : comm_(comm), count_(count), dtype_(dtype), nranks_(nranks), rank_(rank) {}

  Status open(Rank& rank) {
    ULYSSES_TRY(rank.agree(Buffer::allocate(shard_, count_ * elementBytes(dtype_), comm_.device())));
    ULYSSES_TRY(rank.agree(params_.open(ULYSSES_PARAM_CONFIG_INITIALIZER)));
    ulyssesParamDesc_t desc = ULYSSES_PARAM_DESC_INITIALIZER;
    desc.count = count_ * static_cast<size_t>(nranks_);
    desc.shardType = desc.gatherType = dtype_;
    desc.shard = shard_.data();
    ULYSSES_TRY(rank.agree(params_.add({desc})));
    ULYSSES_TRY(params_.commit());
    void* ptr = nullptr;
    ULYSSES_TRY(params_.acquire(0, &ptr));
    // It stays where it is, and is laid out as an all-gather's output.
    data_.emplace(FlatKind::AllGather, count_, dtype_, nranks_, rank_, comm_, shard_.data(),
                  static_cast<std::byte*>(ptr));
    return params_.release(0);
  }

  Params& params() { return params_; }
  std::byte* shard() { return shard_.data(); }

  const Communicator& comm() const override { return comm_; }
  size_t bytes() const override { return data_->bytes(); }
  size_t count() const override { return count_; }
  ulyssesDataType_t dtype() const override { return dtype_; }
  std::string variant() const override { return "publish"; }
  double busFactor(int nranks) const override { return data_->busFactor(nranks); }
  void fill(uint64_t salt, bool inPlace) override { data_->fill(salt, inPlace); }
  Status run(bool) override {
    void* ptr = nullptr;
    ULYSSES_TRY(params_.publish(0));
    ULYSSES_TRY(params_.acquire(0, &ptr));
    return params_.release(0);
  }
  size_t countWrong(uint64_t salt, bool inPlace) const override { return data_->countWrong(salt, inPlace); }
  std::byte* output(bool inPlace) override { return data_->output(inPlace); }
  size_t outputBytes() const override { return data_->outputBytes(); }
  void touchBuffers() override { data_->touchBuffers(); }

 private:
  const Communicator& comm_;
  const size_t count_;
  const ulyssesDataType_t dtype_;
  const int nranks_, rank_;
  Buffer shard_;
  Params params_{comm_};
  std::optional<FlatCollective> data_;
};

Result<std::unique_ptr<ParamGather>> makeGather(Run& run, const Communicator& comm, size_t bytes,
                                                ulyssesDataType_t dtype) {
  const int n = run.rank.count();
  // A parameter has an element at least.
  const size_t count = std::max<size_t>(flatCount(bytes, n, dtype), 1);
  auto gather = std::make_unique<ParamGather>(comm, count, dtype, n, run.rank.id());
  ULYSSES_TRY(gather->open(run.rank));
  return gather;
}

Status compare(Run& run, size_t bytes, ulyssesDataType_t dtype, int rounds) {
  ULYSSES_ASSIGN(const auto one, makeGather(run, run.comm, bytes, dtype));
  const size_t all = one->bytes(), share = all / static_cast<size_t>(run.rank.count());
  Buffer plain;
  ULYSSES_TRY(run.rank.agree(Buffer::allocate(plain, all, run.device)));
  Buffer source;
  ULYSSES_TRY(run.rank.agree(Buffer::allocate(source, all, run.device)));
  FlatCollective toPlain(FlatKind::AllGather, one->count(), dtype, run.rank.count(), run.rank.id(), run.comm,
                         one->shard(), plain.data());
  OtherWay mpi(toPlain, [&] { return mpiFlat(FlatKind::AllGather, one->shard(), plain.data(), share); });
  const auto copyAll = [&] {
    plainCopy(run.device, plain.data(), source.data(), all);
    return Status();
  };
  OtherWay copy(toPlain, copyAll, run.device ? nullptr : &source, /*checked=*/false);
  std::unique_ptr<Nccl> nccl;
  if (run.device) ULYSSES_TRY(openNccl(run, &nccl));
  OtherWay ncclWay(toPlain, [&] { return nccl->allGather(one->shard(), plain.data(), share); });
  std::unique_ptr<NcclWindow> sent, received;
  if (nccl) sent = nccl->window(run.rank, std::max<size_t>(share, 1));
  if (sent) received = nccl->window(run.rank, all);
  FlatCollective toNcclWindow(FlatKind::AllGather, one->count(), dtype, run.rank.count(), run.rank.id(), run.comm,
                              sent ? sent->data() : nullptr, received ? received->data() : nullptr);
  OtherWay ncclWindows(toNcclWindow, [&] { return nccl->allGather(sent->data(), received->data(), share); });
  std::vector<Way> ways{{"parameter gather", true, one.get()}};
  std::unique_ptr<ParamGather> lib;
  if (run.lib) {
    ULYSSES_ASSIGN(lib, makeGather(run, *run.lib, bytes, dtype));
    ways.push_back({"gather, --lib", false, lib.get()});
  }
  if (run.rank.isMpiProcess() && !run.device) ways.push_back({"MPI_Allgather", false, &mpi});
  if (nccl) ways.push_back({"ncclAllGather", false, &ncclWay});
  if (received) ways.push_back({"ncclAllGather, windows", false, &ncclWindows});
  ways.push_back({"plain copy", false, &copy});
  return compareInTurns(run, ways, rounds);
}

// Acquire and Release of what is resident, each pair timed alone.
Status timeHits(Run& run) {
  ULYSSES_ASSIGN(const auto one,
                 makeGather(run, run.comm, size_t{8192} * static_cast<size_t>(run.rank.count()), ulyssesBfloat16));
  std::vector<double> acquires, pairs;
  for (int i = 0; i < kHits; ++i) {
    void* ptr = nullptr;
    const int64_t entry = nowNs();
    ULYSSES_TRY(one->params().acquire(0, &ptr));
    const int64_t acquired = nowNs();
    ULYSSES_TRY(one->params().release(0));
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

Status runGathers(Run& run, bool baseline, int rounds) {
  const auto sizes = run.options.sizes();
  const auto dtypes = run.options.datatypes();
  const auto dtypeOf = [&](size_t row) { return dtypes[row / sizes.size()]; };
  const size_t rows = dtypes.size() * sizes.size();
  std::vector<RowMaker> builds;
  for (Communicator* comm : run.comms()) {
    builds.push_back([&, comm](size_t row) -> Result<std::unique_ptr<Collective>> {
      ULYSSES_ASSIGN(auto gather, makeGather(run, *comm, sizes[row % sizes.size()], dtypeOf(row)));
      return std::unique_ptr<Collective>(std::move(gather));
    });
  }
  ULYSSES_TRY(runTable(run, rows, builds));
  for (size_t row = 0; row < rows && baseline; ++row) {
    ULYSSES_TRY(compare(run, sizes[row % sizes.size()], dtypeOf(row), rounds));
  }
  return timeHits(run);
}

}  // namespace ulysses::perf
