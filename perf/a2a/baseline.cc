#include "a2a/baseline.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "a2a/exchange.h"
#include "a2a/mpi_exchange.h"
#include "common/buffer.h"
#include "common/comparison.h"

namespace ulysses::perf {

Status runBaseline(Run& run, const Geometry& geometry, int rounds) {
  Rank& rank = run.rank;
  const int n = rank.count();
  const size_t inBytes = inputBlock(geometry, n, rank.id()).bytes();
  const size_t outBytes = outputBlock(geometry, n, rank.id()).bytes();

  std::unique_ptr<MpiExchange> mpi;
  Status status;
  if (rank.isMpiProcess()) {
    auto made = makeMpiExchange(geometry, n, rank.id());
    if (made.ok()) {
      mpi = made.take();
    } else {
      status = made.status();
    }
  }
  ULYSSES_TRY(rank.agree(status));

  Buffer in, plain, scratch, window;
  ULYSSES_TRY(rank.agree(Buffer::allocate(in, inBytes)));
  ULYSSES_TRY(rank.agree(Buffer::allocate(plain, std::max(inBytes, outBytes))));
  ULYSSES_TRY(rank.agree(Buffer::allocate(scratch, mpi ? mpi->packedScratchBytes() : 0)));
  ULYSSES_TRY(rank.agree(Buffer::allocateWindow(window, outputBlock(geometry, n, 0).bytes(), run.comm)));

  Exchange direct(geometry, n, rank.id(), run.comm, in.data(), window.data());
  Exchange staged(geometry, n, rank.id(), run.comm, in.data(), plain.data());
  OtherWay alltoallw(staged, [&] { return mpi->alltoallw(in.data(), plain.data()); });
  OtherWay packed(
      staged, [&] { return mpi->packed(in.data(), plain.data(), scratch.data()); }, &scratch);
  const auto copyAll = [&] {
    streamingCopy(plain.data(), in.data(), inBytes);
    return Status();
  };
  OtherWay copy(staged, copyAll, nullptr, /*checked=*/false);

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
  ways.push_back({"plain copy", false, &copy});
  return compareInTurns(run, ways, rounds);
}

}  // namespace ulysses::perf
