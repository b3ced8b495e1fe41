#include "flat/flat_perf.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/checked.h"
#include "common/buffer.h"
#include "common/comparison.h"
#include "common/program.h"
#include "flat/mpi_flat.h"

namespace ulysses::perf {
namespace {

struct FlatOptions {
  CommonOptions common;
  bool baseline = false;
  int rounds = 30;
};

struct Buffers {
  Buffer in, out;

  Status open(Run& run, const Communicator& comm, size_t bytes, bool window) {
    ULYSSES_TRY(run.rank.agree(Buffer::allocate(in, bytes, run.device)));
    return run.rank.agree(window ? Buffer::allocateWindow(out, bytes, comm) : Buffer::allocate(out, bytes, run.device));
  }
};

// At one size: into a window and into plain memory, against another build (with --lib), MPI (under mpirun) and a plain
// copy of what a rank receives.
Status compare(Run& run, FlatKind kind, size_t count, ulyssesDataType_t dtype, int rounds) {
  const int n = run.rank.count(), id = run.rank.id();
  const size_t share = count * elementBytes(dtype), bytes = share * static_cast<size_t>(n);
  Buffers window, plain;
  ULYSSES_TRY(window.open(run, run.comm, bytes, true));
  ULYSSES_TRY(plain.open(run, run.comm, bytes, false));
  FlatCollective toWindow(kind, count, dtype, n, id, run.comm, window.in.data(), window.out.data());
  FlatCollective toPlain(kind, count, dtype, n, id, run.comm, plain.in.data(), plain.out.data());
  OtherWay mpi(toPlain, [&] { return mpiFlat(kind, plain.in.data(), plain.out.data(), share); });
  const auto copyAll = [&] {
    plainCopy(run.device, plain.out.data(), plain.in.data(), bytes);
    return Status();
  };
  OtherWay copy(toPlain, copyAll, nullptr, /*checked=*/false);
  std::unique_ptr<Nccl> nccl;
  if (run.device) ULYSSES_TRY(openNccl(run, &nccl));
  OtherWay ncclWay(toPlain, [&]() -> Status {
    return kind == FlatKind::AllGather ? nccl->allGather(plain.in.data(), plain.out.data(), share)
                                       : nccl->allToAll(plain.in.data(), plain.out.data(), share);
  });

  std::vector<Way> ways{{"window", true, &toWindow}, {"plain output", true, &toPlain}};
  Buffers libWindow;
  std::optional<FlatCollective> lib;
  if (run.lib) {
    ULYSSES_TRY(libWindow.open(run, *run.lib, bytes, true));
    lib.emplace(kind, count, dtype, n, id, *run.lib, libWindow.in.data(), libWindow.out.data());
    ways.push_back({"window, --lib", false, &*lib});
  }
  if (run.rank.isMpiProcess() && !run.device) {
    ways.push_back({kind == FlatKind::AllGather ? "MPI_Allgather" : "MPI_Alltoall", false, &mpi});
  }
  if (nccl) ways.push_back({kind == FlatKind::AllGather ? "ncclAllGather" : "ncclAlltoAll", false, &ncclWay});
  ways.push_back({"plain copy", false, &copy});
  return compareInTurns(run, ways, rounds);
}

Status runAll(Run& run, FlatKind kind, const FlatOptions& options) {
  const int n = run.rank.count(), id = run.rank.id();
  const auto sizes = options.common.sizes();
  const auto dtypes = options.common.datatypes();
  const auto dtypeOf = [&](size_t row) { return dtypes[row / sizes.size()]; };
  const auto countOf = [&](size_t row) { return flatCount(sizes[row % sizes.size()], n, dtypeOf(row)); };
  const size_t rows = dtypes.size() * sizes.size();

  const auto comms = run.comms();
  std::vector<Buffers> buffers(comms.size());
  std::vector<RowMaker> builds;
  for (size_t b = 0; b < comms.size(); ++b) {
    const size_t bytes = alignUp(sizes.back() + options.common.unalignBytes(ulyssesFloat64), 256);
    const size_t copies = Turns::copiesFor(run.device, options.common.cold, 2 * bytes);
    ULYSSES_TRY(buffers[b].open(run, *comms[b], bytes * copies, options.common.out == "window"));
    builds.push_back([&, b, bytes, copies](size_t row) -> Result<std::unique_ptr<Collective>> {
      const size_t late = options.common.unalignBytes(dtypeOf(row));
      return std::unique_ptr<Collective>(std::make_unique<FlatCollective>(
          kind, countOf(row), dtypeOf(row), n, id, *comms[b], Turns(buffers[b].in.data() + late, bytes, copies),
          Turns(buffers[b].out.data() + late, bytes, copies)));
    });
  }
  ULYSSES_TRY(runTable(run, rows, builds));
  for (size_t row = 0; row < rows && options.baseline; ++row) {
    ULYSSES_TRY(compare(run, kind, countOf(row), dtypeOf(row), options.rounds));
  }
  return {};
}

}  // namespace

int runFlatPerf(FlatKind kind, const std::string& name, int argc, char** argv) {
  CLI::App app("A flat collective, measured and checked as nccl-tests does.", name);
  FlatOptions options;
  options.common.addTo(app);
  options.common.addTableTo(app);
  options.common.addBuffersTo(app);
  app.add_flag("--baseline", options.baseline, "then compare with a plain copy and, under mpirun, with MPI, in turns");
  app.add_option("--rounds", options.rounds, "rounds of --baseline")->check(CLI::PositiveNumber)->capture_default_str();
  if (const auto code = parseArguments(app, argc, argv, [&]() -> Status {
        ULYSSES_TRY(options.common.validate());
        return options.common.chooseMemory();
      }))
    return *code;
  const Subject subject{"out " + options.common.out, [&](int) -> SizeRange {
                          return {options.common.firstBytes(), options.common.lastBytes()};
                        }};
  return runProgram(name, argc, argv, options.common, subject, [&](Run& run) { return runAll(run, kind, options); });
}

}  // namespace ulysses::perf
