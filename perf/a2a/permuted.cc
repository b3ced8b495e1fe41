#include "a2a/permuted.h"

#include <algorithm>

#include "base/datatype.h"

namespace ulysses::perf {
namespace {

constexpr size_t kUnit = 16;

size_t tokenBytes(const Geometry& g, size_t heads) {
  return heads * g.headDim * elementBytes(g.dtype);
}

}  // namespace

bool PermutedExchange::possible(int nranks, const Geometry& g) {
  const auto n = static_cast<size_t>(nranks);
  return g.seq % n == 0 && g.heads % n == 0 && tokenBytes(g, g.heads / n) % kUnit == 0;
}

PermutedExchange::PermutedExchange(int nranks, Device& device, const Geometry& g, std::byte* in, std::byte* out,
                                   std::byte* scratch, Move move)
    : device_(device),
      scatter_(g.direction == ulyssesScatterHeads),
      planes_(g.batch),
      tokens_(g.seq / static_cast<size_t>(nranks)),
      peers_(static_cast<size_t>(nranks)),
      units_(tokenBytes(g, g.heads / static_cast<size_t>(nranks)) / kUnit),
      in_(in),
      out_(out),
      scratch_(scratch),
      move_(std::move(move)) {}

// A plane of one rank is peers * tokens * units, on either side: [peer][token][unit] when packed.
Status PermutedExchange::run() {
  const size_t part = tokens_ * units_ * kUnit, plane = part * peers_;
  if (scatter_) {
    // [token][peer][unit] packed by peer; what arrives, by sender, is the sequence in order.
    for (size_t p = 0; p < planes_; ++p)
      device_.permute(scratch_ + p * plane, in_ + p * plane, tokens_, peers_, units_, false);
    ULYSSES_TRY(move_(scratch_, out_, planes_, part));
  } else {
    ULYSSES_TRY(move_(in_, scratch_, planes_, part));
    for (size_t p = 0; p < planes_; ++p)
      device_.permute(out_ + p * plane, scratch_ + p * plane, tokens_, peers_, units_, true);
  }
  return device_.finish();
}

PermutedExchange::Move copiesToPeers(Rank& rank, Device& device, const std::vector<std::byte*>& targets) {
  device.reachPeers();
  const auto all = rank.allgather(targets.data(), targets.size());
  return [&rank, &device, targets, all](const std::byte* from, std::byte* to, size_t planes, size_t bytes) {
    const size_t which = static_cast<size_t>(std::find(targets.begin(), targets.end(), to) - targets.begin());
    const auto me = static_cast<size_t>(rank.id()), peers = static_cast<size_t>(rank.count());
    for (size_t step = 0; step < peers; ++step) {
      const size_t peer = (me + step) % peers;
      std::byte* const theirs = all[peer * targets.size() + which];
      for (size_t plane = 0; plane < planes; ++plane)
        device.copy(theirs + (plane * peers + me) * bytes, from + (plane * peers + peer) * bytes, bytes);
    }
    const Status status = device.finish();
    rank.barrier();  // all that peers write has landed
    return status;
  };
}

}  // namespace ulysses::perf
