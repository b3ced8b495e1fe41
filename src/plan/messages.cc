#include "plan/messages.h"

#include <algorithm>

#include "base/checked.h"
#include "device/work_table.h"

namespace ulysses {
namespace {

using device::Block;
using device::Side;
using device::Stream;

constexpr uint64_t kMostRuns = 64;                  // of a pair, each a message of its own: beyond, packing costs less
constexpr uint64_t kLongRun = uint64_t{256} << 10;  // a message of its own costs less than packing it

// How many bytes of a block's payload lie together on one side.
uint64_t runBytes(const Block& block, const Side& side) {
  if (block.rows != 1 && side.pitch != block.rowBytes) return block.rowBytes;
  const uint64_t repetition = block.rows * block.rowBytes;
  return block.count != 1 && side.step != repetition ? repetition : block.bytes();
}

// What one rank has for another.
struct Pair {
  std::vector<Block> blocks;
  Stream stream{};
  bool packed = false, unpacked = false;  // through staging at the sender, at the receiver

  Pair(const Schedule& schedule, int from, int to) {
    device::StreamBuilder builder;
    for (size_t i = 0; i < schedule.operands; ++i)
      for (const layout::BlockCopy& copy : schedule.copies(from, to, i)) builder.add(copy, static_cast<uint32_t>(i));
    stream = builder.finish(blocks);
    uint64_t srcRuns = 0, dstRuns = 0;
    for (const Block& b : blocks) {
      srcRuns += b.bytes() / runBytes(b, b.src);
      dstRuns += b.bytes() / runBytes(b, b.dst);
    }
    const auto direct = [&](uint64_t runs) {
      return runs <= kMostRuns && (runs == std::min(srcRuns, dstRuns) || stream.bytes / runs >= kLongRun);
    };
    packed = !direct(srcRuns);
    unpacked = !direct(dstRuns);
  }

  // Calls visit(block or null, begin, end) for the stream's bytes in order, cut so that each part lies together on
  // every side that is not staged.
  template <class Visit>
  void forEachRun(Visit&& visit) const {
    if (packed && unpacked) {
      if (stream.bytes != 0) visit(nullptr, uint64_t{0}, stream.bytes);
      return;
    }
    for (const Block& b : blocks) {
      uint64_t run = b.bytes();
      if (!packed) run = std::min(run, runBytes(b, b.src));
      if (!unpacked) run = std::min(run, runBytes(b, b.dst));
      for (uint64_t at = 0; at < b.bytes(); at += run) visit(&b, b.begin + at, b.begin + at + run);
    }
  }
};

uint64_t aligned(uint64_t bytes) {
  return alignUp(bytes, uint64_t{256});
}

// Bytes of each pair that one round moves: the same for all pairs on all ranks.
uint64_t roundBytes(const std::vector<std::vector<Pair>>& pairs, size_t limit) {
  uint64_t largest = 0, mostStaged = 0, mostEnds = 0;
  for (size_t r = 0; r < pairs.size(); ++r) {
    uint64_t staged = 0, ends = 0;
    const auto count = [&](const Pair& pair, bool through) {
      largest = std::max(largest, pair.stream.bytes);
      if (!through || pair.stream.bytes == 0) return;
      staged += aligned(pair.stream.bytes);
      ++ends;
    };
    for (size_t p = 0; p < pairs.size(); ++p) {
      if (p == r) continue;
      count(pairs[r][p], pairs[r][p].packed);
      count(pairs[p][r], pairs[p][r].unpacked);
    }
    mostStaged = std::max(mostStaged, staged);
    mostEnds = std::max(mostEnds, ends);
  }
  if (mostStaged <= limit) return aligned(largest);
  return std::max(kLeastPart, limit / mostEnds / kLeastPart * kLeastPart);
}

}  // namespace

Messages makeMessages(const Schedule& schedule, size_t stagingLimit) {
  const int nranks = schedule.nranks, rank = schedule.rank;
  const auto me = static_cast<size_t>(rank);
  std::vector<std::vector<Pair>> pairs(static_cast<size_t>(nranks));
  uint64_t largest = 0;
  for (int from = 0; from < nranks; ++from) {
    for (int to = 0; to < nranks; ++to) {
      pairs[static_cast<size_t>(from)].emplace_back(schedule, from, to);
      if (from != to) largest = std::max(largest, pairs[static_cast<size_t>(from)].back().stream.bytes);
    }
  }

  Messages m;
  const auto keep = [&m](const Pair& pair, std::vector<Stream>& streams) {
    streams.push_back(pair.stream);
    streams.back().firstBlock = static_cast<uint32_t>(m.blocks.size());
    m.blocks.insert(m.blocks.end(), pair.blocks.begin(), pair.blocks.end());
  };
  for (size_t p = 0; p < pairs.size(); ++p) {
    keep(pairs[me][p], m.sends);
    keep(pairs[p][me], m.recvs);
  }

  const uint64_t round = roundBytes(pairs, stagingLimit);
  for (uint64_t begin = 0; begin < largest; begin += round) {
    Messages::Round& r = m.rounds.emplace_back();
    uint64_t staging = 0;
    // Ranks later in the circle first: not everybody sends to the same one.
    for (int step = 1; step < nranks; ++step) {
      for (const bool sending : {true, false}) {
        const int peer = (rank + (sending ? step : nranks - step)) % nranks;
        const Pair& pair = sending ? pairs[me][static_cast<size_t>(peer)] : pairs[static_cast<size_t>(peer)][me];
        const uint64_t end = std::min(begin + round, pair.stream.bytes);
        if (begin >= end) continue;
        const bool staged = sending ? pair.packed : pair.unpacked;
        pair.forEachRun([&](const Block* block, uint64_t runBegin, uint64_t runEnd) {
          const uint64_t first = std::max(begin, runBegin), last = std::min(end, runEnd);
          if (first >= last) return;
          Messages::End place{staged, 0, staging + first - begin};
          if (!staged && block != nullptr)
            place = {false, block->operand,
                     addressOf(*block, sending ? block->src : block->dst, 0, first - block->begin)};
          (sending ? r.sends : r.recvs).push_back({peer, place, last - first});
        });
        if (!staged) continue;
        (sending ? r.pack : r.unpack).push_back({peer, begin, end, staging});
        staging += aligned(end - begin);
      }
    }
    m.stagingBytes = std::max(m.stagingBytes, staging);
  }
  return m;
}

}  // namespace ulysses
