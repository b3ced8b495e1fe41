#include "flat/flat_perf.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <vector>

#include "common/buffer.h"
#include "common/comparison.h"
#include "common/program.h"
#include "flat/mpi_flat.h"

namespace ulysses::perf {
namespace {

struct FlatOptions {
  CommonOptions common;
  std::string out = "window";
  bool baseline = false;
  int rounds = 30;
};

struct Buffers {
  Buffer in, out;

  Status open(Run& run, size_t bytes, bool window) {
    ULYSSES_TRY(run.rank.agree(Buffer::allocate(in, bytes)));
    return run.rank.agree(window ? Buffer::allocateWindow(out, bytes, run.comm.get()) : Buffer::allocate(out, bytes));
  }
};

// At one size: into a window and into plain memory, against MPI (under mpirun) and a plain copy of what a rank
// receives.
Status compare(Run& run, FlatKind kind, size_t count, ulyssesDataType_t dtype, int rounds) {
  const int n = run.rank.count(), id = run.rank.id();
  const size_t share = count * elementBytes(dtype), bytes = share * static_cast<size_t>(n);
  Buffers window, plain;
  ULYSSES_TRY(window.open(run, bytes, true));
  ULYSSES_TRY(plain.open(run, bytes, false));
  FlatCollective toWindow(kind, count, dtype, n, id, run.comm.get(), window.in.data(), window.out.data());
  FlatCollective toPlain(kind, count, dtype, n, id, run.comm.get(), plain.in.data(), plain.out.data());
  OtherWay mpi(toPlain, [&] { return mpiFlat(kind, plain.in.data(), plain.out.data(), share); });
  const auto copyAll = [&] {
    streamingCopy(plain.out.data(), plain.in.data(), bytes);
    return Status();
  };
  OtherWay copy(toPlain, copyAll, nullptr, /*checked=*/false);

  std::vector<Way> ways{{"window", true, &toWindow}, {"plain output", true, &toPlain}};
  if (run.rank.isMpiProcess()) {
    ways.push_back({kind == FlatKind::AllGather ? "MPI_Allgather" : "MPI_Alltoall", false, &mpi});
  }
  ways.push_back({"plain copy", false, &copy});
  return compareInTurns(run, ways, rounds);
}

Status runAll(Run& run, FlatKind kind, const FlatOptions& options) {
  const int n = run.rank.count(), id = run.rank.id();
  const auto sizes = options.common.sizes();
  const auto dtypes = options.common.datatypes();
  Buffers buffers;
  ULYSSES_TRY(buffers.open(run, options.common.lastBytes(), options.out == "window"));
  std::vector<std::unique_ptr<Collective>> rows;
  for (const auto dtype : dtypes) {
    for (const size_t bytes : sizes) {
      rows.push_back(std::make_unique<FlatCollective>(kind, flatCount(bytes, n, dtype), dtype, n, id, run.comm.get(),
                                                      buffers.in.data(), buffers.out.data()));
    }
  }
  ULYSSES_TRY(runTable(run, rows));
  if (!options.baseline) return {};
  for (const auto& row : rows) ULYSSES_TRY(compare(run, kind, row->count(), row->dtype(), options.rounds));
  return {};
}

}  // namespace

int runFlatPerf(FlatKind kind, const std::string& name, int argc, char** argv) {
  CLI::App app("A flat collective, measured and checked as nccl-tests does.", name);
  FlatOptions options;
  options.common.addTo(app);
  app.add_option("--out", options.out, "outputs in a window (peers write them directly) or plain")
      ->check(CLI::IsMember({"window", "plain"}))
      ->capture_default_str();
  app.add_flag("--baseline", options.baseline, "then compare with a plain copy and, under mpirun, with MPI, in turns");
  app.add_option("--rounds", options.rounds, "rounds of --baseline")->check(CLI::PositiveNumber)->capture_default_str();
  if (const auto code = parseArguments(app, argc, argv, [&] { return options.common.validate(); })) return *code;
  const Subject subject{"out " + options.out, [&](int) -> SizeRange {
                          return {options.common.firstBytes(), options.common.lastBytes()};
                        }};
  return runProgram(name, argc, argv, options.common, subject, [&](Run& run) { return runAll(run, kind, options); });
}

}  // namespace ulysses::perf
