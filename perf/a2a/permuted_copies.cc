#include "a2a/permuted_copies.h"

#include "base/datatype.h"

namespace ulysses::perf {
namespace {

constexpr size_t kUnit = 16;

size_t tokenBytes(const Geometry& g, size_t heads) {
  return heads * g.headDim * elementBytes(g.dtype);
}

}  // namespace

bool PermutedCopies::possible(Rank& rank, const Geometry& g) {
  const auto n = static_cast<size_t>(rank.count());
  return !rank.severalProcesses() && g.seq % n == 0 && g.heads % n == 0 && tokenBytes(g, g.heads / n) % kUnit == 0;
}

PermutedCopies::PermutedCopies(Rank& rank, Device& device, const Geometry& g, std::byte* in, std::byte* out,
                               std::byte* scratch)
    : rank_(rank),
      device_(device),
      scatter_(g.direction == ulyssesScatterHeads),
      planes_(g.batch),
      tokens_(g.seq / static_cast<size_t>(rank.count())),
      peers_(static_cast<size_t>(rank.count())),
      units_(tokenBytes(g, g.heads / static_cast<size_t>(rank.count())) / kUnit),
      in_(in),
      out_(out),
      scratch_(scratch),
      outs_(rank.allgather(out)),
      scratches_(rank.allgather(scratch)) {}

// A plane of one rank is peers * tokens * units, on either side: [peer][token][unit] when packed.
void PermutedCopies::copyParts(const std::byte* from, const std::vector<std::byte*>& to) {
  const auto me = static_cast<size_t>(rank_.id());
  const size_t part = tokens_ * units_ * kUnit;
  for (size_t step = 0; step < peers_; ++step) {
    const size_t peer = (me + step) % peers_;
    for (size_t plane = 0; plane < planes_; ++plane)
      device_.copy(to[peer] + (plane * peers_ + me) * part, from + (plane * peers_ + peer) * part, part);
  }
}

Status PermutedCopies::run() {
  const size_t plane = tokens_ * peers_ * units_ * kUnit;
  if (scatter_) {
    // [token][peer][unit] packed by peer; what arrives, by sender, is the sequence in order.
    for (size_t p = 0; p < planes_; ++p)
      device_.permute(scratch_ + p * plane, in_ + p * plane, tokens_, peers_, units_, false);
    copyParts(scratch_, outs_);
  } else {
    copyParts(in_, scratches_);
  }
  Status status = device_.finish();
  rank_.barrier();  // all that peers write has landed
  if (scatter_ || !status.ok()) return status;
  for (size_t p = 0; p < planes_; ++p)
    device_.permute(out_ + p * plane, scratch_ + p * plane, tokens_, peers_, units_, true);
  return device_.finish();
}

}  // namespace ulysses::perf
