// The exchange of Ulysses sequence parallelism, measured and checked as nccl-tests does.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "a2a/baseline.h"
#include "a2a/exchange.h"
#include "a2a/latency.h"
#include "a2a/options.h"
#include "base/checked.h"
#include "common/buffer.h"
#include "common/program.h"

namespace ulysses::perf {
namespace {

constexpr const char* kName = "ulysses_a2a_perf";
constexpr int kLatencyCalls = 1000, kAgreementCalls = 10000;

Status runExchanges(Run& run, const A2AOptions& options) {
  const int n = run.rank.count(), id = run.rank.id();
  const auto geometries = options.geometries(n);
  size_t inBytes = 0, outBytes = 0;
  for (const Geometry& geometry : geometries) {
    ULYSSES_TRY(checkGeometry(geometry));
    // Rank 0's blocks are the largest; a window has one size on all ranks.
    inBytes = std::max(inBytes, inputBlock(geometry, n, 0).bytes());
    outBytes = std::max(outBytes, outputBlock(geometry, n, 0).bytes());
  }
  inBytes = alignUp(inBytes + options.common.unalignBytes(ulyssesFloat64), 256);
  outBytes = alignUp(outBytes + options.common.unalignBytes(ulyssesFloat64), 256);
  const size_t copies = Turns::copiesFor(run.device, options.common.cold, inBytes + outBytes);
  Buffer in;
  ULYSSES_TRY(run.rank.agree(Buffer::allocate(in, inBytes * copies, run.device)));
  const auto comms = run.comms();
  std::vector<Buffer> outs(comms.size());
  std::vector<RowMaker> builds;
  for (size_t b = 0; b < comms.size(); ++b) {
    ULYSSES_TRY(run.rank.agree(options.common.out == "window" ? Buffer::allocateWindow(outs[b], outBytes * copies, *comms[b])
                                                              : Buffer::allocate(outs[b], outBytes * copies, run.device)));
    builds.push_back([&, b](size_t row) -> Result<std::unique_ptr<Collective>> {
      const size_t late = options.common.unalignBytes(geometries[row].dtype);
      return std::unique_ptr<Collective>(
          std::make_unique<Exchange>(geometries[row], n, id, *comms[b], Turns(in.data() + late, inBytes, copies),
                                     Turns(outs[b].data() + late, outBytes, copies)));
    });
  }
  return runTable(run, geometries.size(), builds);
}

Status runAll(Run& run, const A2AOptions& options) {
  const Geometry small = options.smallGeometry(run.rank.count());
  if (options.latency) return runLatency(run, small, options.rounds, options.calls ? options.calls : kLatencyCalls);
  if (options.agreement) return runAgreement(run, small, options.calls ? options.calls : kAgreementCalls);
  ULYSSES_TRY(runExchanges(run, options));
  if (!options.baseline) return {};
  for (const Geometry& geometry : options.geometries(run.rank.count())) {
    ULYSSES_TRY(runBaseline(run, geometry, options.rounds));
  }
  return {};
}

}  // namespace
}  // namespace ulysses::perf

int main(int argc, char** argv) {
  using namespace ulysses::perf;
  CLI::App app("The exchange of Ulysses sequence parallelism, measured and checked as nccl-tests does.", kName);
  A2AOptions options;
  options.addTo(app);
  if (const auto code = parseArguments(app, argc, argv, [&] { return options.validate(); })) return *code;
  const Subject subject{options.describe(), [&](int nranks) { return options.sizeRange(nranks); }};
  return runProgram(kName, argc, argv, options.common, subject, [&](Run& run) { return runAll(run, options); });
}
