#include "plan/copy_engine.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked.h"
#include "base/format.h"
#include "device/exchange.h"
#include "device/work_table.h"

namespace ulysses::plan {
namespace {

using layout::BlockCopy;
using Do = EngineStep::Do;
using On = EngineStep::On;

// From here on it is chosen by itself. What a call costs the host, and what short rows cost the engine, is known from
// one GPU alone: to be measured where there are several.
constexpr size_t kLeastPayload = size_t{4} << 20;
constexpr size_t kLeastRowBytes = size_t{1} << 10;
constexpr size_t kLeastBytesPerCall = size_t{256} << 10;

struct Loop {
  size_t count, src, dst;
};

// Rows of `rowBytes` in two loops; those that continue each other, or the row, have become one.
struct Nest {
  size_t rowBytes;
  Loop inner, outer;
};

Nest nestOf(const device::Block& block) {
  Nest nest{
      block.rowBytes, {block.rows, block.src.pitch, block.dst.pitch}, {block.count, block.src.step, block.dst.step}};
  const auto fold = [&](Loop& loop) {
    if (loop.src != nest.rowBytes || loop.dst != nest.rowBytes) return;
    nest.rowBytes *= loop.count;
    loop = {1, 0, 0};
  };
  const auto join = [](Loop& a, Loop& b) {
    if (b.count == 1 || b.src != a.count * a.src || b.dst != a.count * a.dst) return;
    a.count *= b.count;
    b = {1, 0, 0};
  };
  for (int i = 0; i < 2; ++i) {  // the second may continue the row only behind the first
    fold(nest.inner);
    fold(nest.outer);
  }
  if (nest.inner.count > 1) join(nest.inner, nest.outer);
  if (nest.outer.count > 1) join(nest.outer, nest.inner);
  // A single loop is the inner one.
  if (nest.inner.count == 1) std::swap(nest.inner, nest.outer);
  return nest;
}

bool fitsPitch(const Loop& loop, size_t rowBytes) {
  const auto fits = [&](size_t pitch) { return pitch >= rowBytes && pitch <= kMaxPitch; };
  return fits(loop.src) && fits(loop.dst);
}

// Whether a call can take both loops: slices are counted in rows.
bool fitsSlices(const Loop& rows, const Loop& slices, size_t rowBytes) {
  const auto fits = [&](size_t pitch, size_t step) { return step % pitch == 0 && step / pitch >= rows.count; };
  return fitsPitch(rows, rowBytes) && fits(rows.src, slices.src) && fits(rows.dst, slices.dst);
}

void addRows(size_t rowBytes, const Loop& rows, size_t src, size_t dst, std::vector<PitchedCopy>& calls) {
  if (rows.count == 1 || fitsPitch(rows, rowBytes)) {
    PitchedCopy call{rowBytes, rows.count, 1, {src, rows.src, rows.count}, {dst, rows.dst, rows.count}};
    if (rows.count == 1) call.src.pitch = call.dst.pitch = rowBytes;
    calls.push_back(call);
    return;
  }
  for (size_t i = 0; i < rows.count; ++i) addRows(rowBytes, {1, 0, 0}, src + i * rows.src, dst + i * rows.dst, calls);
}

void addBlock(const device::Block& block, std::vector<PitchedCopy>& calls) {
  const Nest nest = nestOf(block);
  const auto& [rowBytes, inner, outer] = nest;
  const size_t src = block.src.offset, dst = block.dst.offset;
  if (outer.count == 1) return addRows(rowBytes, inner, src, dst, calls);
  for (const auto& [rows, slices] : {std::pair(inner, outer), std::pair(outer, inner)}) {
    if (!fitsSlices(rows, slices, rowBytes)) continue;
    calls.push_back({rowBytes,
                     rows.count,
                     slices.count,
                     {src, rows.src, slices.src / rows.src},
                     {dst, rows.dst, slices.dst / rows.dst}});
    return;
  }
  // A call for each turn of one loop: the shorter one, if the other can be the rows of a call.
  const bool asGiven = fitsPitch(inner, rowBytes) && (outer.count <= inner.count || !fitsPitch(outer, rowBytes));
  const Loop &rows = asGiven ? inner : outer, &turns = asGiven ? outer : inner;
  for (size_t i = 0; i < turns.count; ++i) addRows(rowBytes, rows, src + i * turns.src, dst + i * turns.dst, calls);
}

// Merges copies that follow each other.
class Calls {
 public:
  void add(const BlockCopy& copy) { builder_.add(copy, 0); }
  std::vector<PitchedCopy> take() {
    std::vector<device::Block> blocks;
    builder_.finish(blocks);
    std::vector<PitchedCopy> calls;
    for (const device::Block& block : blocks) addBlock(block, calls);
    return calls;
  }

 private:
  device::StreamBuilder builder_;
};

// Puts the steps of one rank together.
class Steps {
 public:
  Steps(const Schedule& schedule, std::span<const std::vector<Location>> outputs, size_t chunkBytes)
      : s_(schedule), outputs_(outputs), chunkBytes_(chunkBytes) {
    for (int r = 0; r < s_.nranks; ++r) staged_.push_back(isStaged(s_, r, outputs_[at(r)]));
  }

  std::vector<EngineStep> take() {
    add(Do::Enter, On::Caller);
    add(Do::Fork, On::Caller);
    // In rounds over the chunks, pushes before copy-outs: what a step waits for comes of an earlier round, or of this
    // one's pushes, on every rank. So nobody waits in a circle.
    size_t rounds = 1;
    for (int peer = 0; peer < s_.nranks; ++peer) {
      if (peer == s_.rank) continue;
      rounds = std::max({rounds, pushes(peer), copyOuts(peer)});
    }
    for (size_t k = 0; k < rounds; ++k) {
      for (int i = 1; i < s_.nranks; ++i) push((s_.rank + i) % s_.nranks, k);
      if (k == 0) copyOwnShare();
      for (int i = 1; i < s_.nranks; ++i) copyOut((s_.rank + s_.nranks - i) % s_.nranks, k);
    }
    add(Do::Join, On::Caller);
    add(Do::Leave, On::Caller);
    return std::move(steps_);
  }

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  size_t chunksOf(size_t bytes) const { return bytes == 0 ? 0 : ceilDiv(bytes, chunkBytes_); }
  size_t pushes(int peer) const { return staged_[at(peer)] ? chunksOf(s_.sendBytes[at(peer)]) : 0; }
  size_t copyOuts(int peer) const { return staged_[at(s_.rank)] ? chunksOf(s_.recvBytes[at(peer)]) : 0; }

  EngineStep& add(Do what, On stream, int peer = -1, size_t count = 0) {
    EngineStep step;
    step.what = what;
    step.stream = stream;
    step.peer = peer;
    step.count = static_cast<uint32_t>(count);
    return steps_.emplace_back(step);
  }
  void addCopies(Calls& calls, On stream, int peer, const Place& from, size_t fromBase, const Place& to,
                 size_t toBase) {
    for (PitchedCopy& call : calls.take()) {
      call.src.offset += fromBase;
      call.dst.offset += toBase;
      EngineStep& step = add(Do::Copy, stream, peer);
      step.from = from;
      step.to = to;
      step.copy = call;
    }
  }

  void push(int peer, size_t round) {
    if (staged_[at(peer)]) return pushChunk(peer, round);
    if (round != 0) return;
    for (size_t i = 0; i < s_.operands; ++i) {
      const Location& to = outputs_[at(peer)][i];
      Calls calls;
      for (const BlockCopy& copy : s_.copies(s_.rank, peer, i)) calls.add(copy);
      addCopies(calls, On::Copies, peer, input(i), 0, {Place::In::Window, peer, to.window}, to.offset);
    }
    add(Do::Announce, On::Copies, peer, device::kAllLanded);
  }

  void pushChunk(int peer, size_t k) {
    const size_t n = pushes(peer);
    if (k >= std::max<size_t>(n, 1)) return;  // where there is nothing to send, even that is announced
    if (k >= device::kSlots) add(Do::AwaitCredit, On::Copies, peer, k - device::kSlots + 1);
    const size_t slot = slotOf(peer, s_.rank, k);
    forEachOperand(peer, k, s_.sendBytes, &Share::pack,
                   [&](size_t i, const layout::PayloadMap& map, size_t begin, size_t end, size_t inChunk) {
                     Calls calls;
                     map.forEachPiece(begin, end, [&](BlockCopy piece) {
                       piece.dstOffset -= begin;
                       calls.add(piece);
                     });
                     addCopies(calls, On::Copies, peer, input(i), 0, {Place::In::Staging, peer, 0}, slot + inChunk);
                   });
    add(Do::Announce, On::Copies, peer, k + 1 < n ? k + 1 : device::kAllLanded);
  }

  void copyOut(int peer, size_t k) {
    const size_t n = copyOuts(peer);
    if (k >= n) return;
    add(Do::AwaitChunks, On::Caller, peer, k + 1);
    const size_t slot = slotOf(s_.rank, peer, k);
    forEachOperand(peer, k, s_.recvBytes, &Share::unpack,
                   [&](size_t i, const layout::PayloadMap& map, size_t begin, size_t end, size_t inChunk) {
                     Calls calls;
                     map.forEachPiece(begin, end, [&](BlockCopy piece) {
                       piece.srcOffset -= begin;
                       calls.add(piece);
                     });
                     addCopies(calls, On::Caller, peer, {Place::In::Staging, s_.rank, 0}, slot + inChunk, output(i), 0);
                   });
    if (k + device::kSlots < n) add(Do::GiveCredit, On::Caller, peer, k + 1);
  }

  void copyOwnShare() {
    for (size_t i = 0; i < s_.operands; ++i) {
      Calls calls;
      for (const BlockCopy& copy : s_.shares[at(s_.rank)][i].direct.copies()) calls.add(copy);
      addCopies(calls, On::Caller, s_.rank, input(i), 0, output(i), 0);
    }
  }

  // The operands' parts of chunk k of what goes between this rank and a peer: their payloads lie one behind the other.
  // Calls visit(operand, its payload, begin and end in it, where that begins in the chunk).
  template <class Visit>
  void forEachOperand(int peer, size_t k, const std::vector<size_t>& bytes, layout::PayloadMap Share::*side,
                      const Visit& visit) const {
    const size_t begin = k * chunkBytes_, end = std::min(begin + chunkBytes_, bytes[at(peer)]);
    size_t first = 0;
    for (size_t i = 0; i < s_.operands; ++i) {
      const layout::PayloadMap& map = s_.shares[at(peer)][i].*side;
      const size_t from = std::max(begin, first), to = std::min(end, first + map.bytes());
      if (from < to) visit(i, map, from - first, to - first, from - begin);
      first += map.bytes();
    }
  }

  size_t slotOf(int receiver, int sender, size_t k) const {
    return device::slotOffset(receiver, sender, 0, 1, k, chunkBytes_);
  }
  Place input(size_t i) const { return {Place::In::Input, s_.rank, static_cast<uint32_t>(i)}; }
  Place output(size_t i) const { return {Place::In::Output, s_.rank, static_cast<uint32_t>(i)}; }

  const Schedule& s_;
  const std::span<const std::vector<Location>> outputs_;
  const size_t chunkBytes_;
  std::vector<bool> staged_;  // [rank]
  std::vector<EngineStep> steps_;
};

}  // namespace

std::vector<PitchedCopy> pitchedCopies(std::span<const BlockCopy> copies) {
  Calls calls;
  for (const BlockCopy& copy : copies) calls.add(copy);
  return calls.take();
}

std::vector<EngineStep> engineSteps(const Schedule& schedule, std::span<const std::vector<Location>> outputs,
                                    size_t chunkBytes) {
  return Steps(schedule, outputs, chunkBytes).take();
}

bool isStaged(const Schedule& schedule, int rank, std::span<const Location> outputs) {
  for (size_t i = 0; i < schedule.operands; ++i) {
    if (!outputs[i].plain()) continue;
    for (int from = 0; from < schedule.nranks; ++from)
      if (from != rank && !schedule.copies(from, rank, i).empty()) return true;
  }
  return false;
}

size_t mostEngineCalls(const Schedule& schedule) {
  size_t most = 0;
  for (int from = 0; from < schedule.nranks; ++from) {
    for (int to = 0; to < schedule.nranks; ++to) {
      size_t calls = 0;
      for (size_t i = 0; i < schedule.operands && from != to; ++i)
        calls += pitchedCopies(schedule.copies(from, to, i)).size();
      most = std::max(most, calls);
    }
  }
  return most;
}

EngineUse engineUse(const std::string& path) {
  if (path == "copy-engine") return EngineUse::Forced;
  return path == "auto" ? EngineUse::Auto : EngineUse::Off;
}

EngineVerdict judgeEngine(const EngineFacts& f) {
  const auto refused = [](std::string why) { return EngineVerdict{false, "no copy engines: " + std::move(why)}; };
  if (f.use == EngineUse::Off) return refused("ULYSSES_PATH names another path on some rank");
  if (!f.distinctGpus) return refused("ranks share a GPU");
  if (f.largestPayload == 0) return refused("nothing goes between the ranks");
  const bool staged = f.outputs != EngineOutputs::Known;
  if (staged && f.chunkBytes == 0)
    return refused("there is no staging, and not all outputs are known to lie in windows");
  if (f.use == EngineUse::Forced) return {true, "ULYSSES_PATH names copy engines on every rank"};
  if (f.largestPayload < kLeastPayload)
    return refused(formatText("{} bytes for a peer are fewer than {}", f.largestPayload, kLeastPayload));
  if (f.shortestRow < kLeastRowBytes)
    return refused(formatText("rows of {} bytes are shorter than {}", f.shortestRow, kLeastRowBytes));
  if (f.largestPayload / std::max<size_t>(f.calls, 1) < kLeastBytesPerCall)
    return refused(formatText("{} copies for the {} bytes for a peer are too many", f.calls, f.largestPayload));
  // Kernels find on the device what can be written directly.
  if (f.outputs == EngineOutputs::Unknown) return refused("the hosts do not know where all outputs lie (boundOut)");
  if (staged && f.largestPayload > f.chunkBytes * device::kSlots)
    return refused(formatText("not all outputs lie in windows, and staging holds {} of the {} bytes for a peer",
                              f.chunkBytes * device::kSlots, f.largestPayload));
  return {true,
          formatText("{} bytes for a peer in {} copies, every rank with a GPU of its own", f.largestPayload, f.calls)};
}

}  // namespace ulysses::plan
