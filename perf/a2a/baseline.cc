#include "a2a/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "a2a/exchange.h"
#include "a2a/mpi_exchange.h"
#include "a2a/permuted.h"
#include "common/buffer.h"
#include "common/comparison.h"
#include "device/nccl.h"

namespace ulysses::perf {

Status runBaseline(Run& run, const Geometry& geometry, int rounds) {
  Rank& rank = run.rank;
  const int n = rank.count();
  const size_t inBytes = inputBlock(geometry, n, rank.id()).bytes();
  const size_t outBytes = outputBlock(geometry, n, rank.id()).bytes();

  std::unique_ptr<MpiExchange> mpi;
  Status status;
  if (rank.isMpiProcess() && !run.device) {
    auto made = makeMpiExchange(geometry, n, rank.id());
    if (made.ok()) {
      mpi = made.take();
    } else {
      status = made.status();
    }
  }
  ULYSSES_TRY(rank.agree(status));

  Buffer in, plain, scratch, window;
  ULYSSES_TRY(rank.agree(Buffer::allocate(in, inBytes, run.device)));
  ULYSSES_TRY(rank.agree(Buffer::allocate(plain, std::max(inBytes, outBytes), run.device)));
  ULYSSES_TRY(rank.agree(Buffer::allocate(scratch, mpi ? mpi->packedScratchBytes() : 0)));
  std::optional<PermutedExchange> permuted, permutedNccl;
  std::unique_ptr<Nccl> nccl;
  Buffer permuteScratch;
  if (run.device) ULYSSES_TRY(openNccl(run, &nccl));
  if (run.device && PermutedExchange::possible(n, geometry)) {
    ULYSSES_TRY(rank.agree(Buffer::allocate(permuteScratch, std::max(inBytes, outBytes), run.device)));
    const auto by = [&](std::optional<PermutedExchange>& way, PermutedExchange::Move move) {
      way.emplace(n, *run.device, geometry, in.data(), plain.data(), permuteScratch.data(), std::move(move));
    };
    if (!rank.severalProcesses()) by(permuted, copiesToPeers(rank, *run.device, {plain.data(), permuteScratch.data()}));
    if (nccl) {
      by(permutedNccl, [&nccl](const std::byte* from, std::byte* to, size_t planes, size_t bytes) {
        return nccl->allToAll(from, to, bytes, planes);
      });
    }
  }
  ULYSSES_TRY(rank.agree(Buffer::allocateWindow(window, outputBlock(geometry, n, 0).bytes(), run.comm)));

  Exchange direct(geometry, n, rank.id(), run.comm, in.data(), window.data());
  Exchange staged(geometry, n, rank.id(), run.comm, in.data(), plain.data());
  OtherWay alltoallw(staged, [&] { return mpi->alltoallw(in.data(), plain.data()); });
  OtherWay packed(
      staged, [&] { return mpi->packed(in.data(), plain.data(), scratch.data()); }, &scratch);
  const auto copyAll = [&] {
    plainCopy(run.device, plain.data(), in.data(), inBytes);
    return Status();
  };
  OtherWay permutedWay(staged, [&] { return permuted->run(); });
  OtherWay permutedNcclWay(staged, [&] { return permutedNccl->run(); });
  OtherWay copy(staged, copyAll, nullptr, /*checked=*/false);
  // The transfer without the layout change, which is the caller's then: a floor for NCCL.
  const size_t part = inBytes / static_cast<size_t>(n) / 16 * 16;
  OtherWay ncclAlone(
      staged,
      [&]() -> Status {
        ULYSSES_TRY(nccl->allToAll(in.data(), plain.data(), part));
        return run.device->finish();
      },
      nullptr, /*checked=*/false);

  std::vector<Way> ways{{"direct", true, &direct}, {"staged", true, &staged}};
  Buffer libWindow;
  std::optional<Exchange> lib;
  if (run.lib) {
    ULYSSES_TRY(rank.agree(Buffer::allocateWindow(libWindow, outputBlock(geometry, n, 0).bytes(), *run.lib)));
    lib.emplace(geometry, n, rank.id(), *run.lib, in.data(), libWindow.data());
    ways.push_back({"direct, --lib", false, &*lib});
  }
  if (mpi) {
    ways.push_back({"MPI_Alltoallw", false, &alltoallw});
    ways.push_back({"pack + MPI_Alltoall", false, &packed});
  }
  if (permuted) ways.push_back({"permute + copies", false, &permutedWay});
  if (permutedNccl) ways.push_back({"permute + ncclAlltoAll", false, &permutedNcclWay});
  if (nccl) ways.push_back({"ncclAlltoAll alone", false, &ncclAlone});
  ways.push_back({"plain copy", false, &copy});
  if (run.report)
    run.report->line(fmt::format("# exchange batch {} seq {} heads {} headDim {}", geometry.batch, geometry.seq,
                                 geometry.heads, geometry.headDim));
  return compareInTurns(run, ways, rounds);
}

}  // namespace ulysses::perf
