// How a block's bytes are copied by many lanes at once, over a Memory that does the accesses: 16 bytes wherever source,
// destination and sizes allow it; elsewhere 16-byte stores fed by shifted 16-byte loads, with narrow accesses at the
// edges of rows alone.
//
// A Memory has load(address) and store(address, Word) for aligned 16 bytes, and copyNarrow(dst, src, bytes) for at most
// 16 bytes anywhere.
#pragma once

#include "device/work.h"

namespace ulysses::device {

struct alignas(16) Word {
  uint64_t low, high;
};

// The 16 bytes that start `bytes` (1..15) into low:high.
ULYSSES_HD Word shiftWords(const Word& low, const Word& high, uint32_t bytes) {
  const uint64_t first = bytes < 8 ? low.low : low.high, second = bytes < 8 ? low.high : high.low,
                 third = bytes < 8 ? high.low : high.high;
  const uint32_t right = bytes % 8 * 8;
  if (right == 0) return {first, second};
  return {first >> right | second << (64 - right), second >> right | third << (64 - right)};
}

// The next n <= kInFlight units of a walk, all loads before the first store.
template <int kInFlight, class Memory>
ULYSSES_HD void copyUnits(uint64_t src, uint64_t dst, Walk& walk, const Gait& gait, uint32_t n) {
  Word words[kInFlight];
  uint32_t to[kInFlight];
  ULYSSES_UNROLL
  for (uint32_t i = 0; i < kInFlight; ++i) {
    if (i < n) {
      words[i] = Memory::load(src + walk.src * kUnit);
      to[i] = walk.dst;
      advance(walk, gait);
    }
  }
  ULYSSES_UNROLL
  for (uint32_t i = 0; i < kInFlight; ++i) {
    if (i < n) Memory::store(dst + to[i] * kUnit, words[i]);
  }
}

// Units [first, last) of a block whose addresses, pitches, row and range are multiples of 16; this lane takes every
// `lanes`-th.
template <int kInFlight, class Memory>
ULYSSES_HD void copyAligned(const Block& block, const Side& src, const Side& dst, uint32_t first, uint32_t last,
                            uint32_t lane, uint32_t lanes) {
  if (lane >= last - first) return;
  uint32_t left = (last - first - lane - 1) / lanes + 1;
  Walk walk = startWalk(block, src, dst, first + lane);
  const Gait gait = gaitOf(block, src, dst, lanes);
  for (; left >= kInFlight; left -= kInFlight)
    copyUnits<kInFlight, Memory>(src.offset, dst.offset, walk, gait, kInFlight);
  copyUnits<kInFlight, Memory>(src.offset, dst.offset, walk, gait, left);
}

// Rows of any length and alignment, seldom met and so kept out of line: columns [column, column + bytes) of `lines`
// rows from `firstLine` on. A unit is a 16-byte granule of the destination that the row touches.
template <int kInFlight, class Memory>
ULYSSES_HD_CALL void copyAnyRows(const Block& block, Side src, Side dst, uint64_t firstLine, uint64_t lines,
                                 uint64_t column, uint64_t bytes, uint32_t lane, uint32_t lanes) {
  const uint64_t unitsPerRow = (bytes + 2 * (kUnit - 1)) / kUnit;
  const uint64_t units = lines * unitsPerRow;
  for (uint64_t at = lane; at < units; at += uint64_t{kInFlight} * lanes) {
    Word words[kInFlight];
    uint64_t to[kInFlight];
    ULYSSES_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      to[i] = 0;
      const uint64_t index = at + uint64_t{lanes} * i;
      if (index >= units) continue;
      const uint64_t line = firstLine + index / unitsPerRow;
      const uint64_t count = line / block.rows, row = line % block.rows;
      const uint64_t srcRow = src.offset + count * src.step + row * src.pitch + column;
      const uint64_t dstRow = dst.offset + count * dst.step + row * dst.pitch + column;
      const uint64_t granule = dstRow / kUnit * kUnit + index % unitsPerRow * kUnit;
      const uint64_t begin = granule < dstRow ? dstRow : granule;
      const uint64_t end = granule + kUnit < dstRow + bytes ? granule + kUnit : dstRow + bytes;
      if (begin >= end) continue;
      const uint64_t from = srcRow + (begin - dstRow);
      const uint64_t low = from / kUnit * kUnit, skew = from % kUnit;
      // A shifted load reads two whole granules: only where both lie inside the source row.
      if (end - begin == kUnit && skew == 0) {
        words[i] = Memory::load(from);
        to[i] = granule;
      } else if (end - begin == kUnit && low >= srcRow && low + 2 * kUnit <= srcRow + bytes) {
        words[i] = shiftWords(Memory::load(low), Memory::load(low + kUnit), static_cast<uint32_t>(skew));
        to[i] = granule;
      } else {
        Memory::copyNarrow(begin, from, static_cast<uint32_t>(end - begin));
      }
    }
    ULYSSES_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      if (to[i] != 0) Memory::store(to[i], words[i]);
    }
  }
}

// Payload bytes [first, last) of a block; src and dst carry whole addresses in `offset`.
template <int kInFlight, class Memory>
ULYSSES_HD void copyBlock(const Block& block, const Side& src, const Side& dst, uint64_t first, uint64_t last,
                          uint32_t lane, uint32_t lanes) {
  const uint64_t all =
      src.offset | src.pitch | src.step | dst.offset | dst.pitch | dst.step | block.rowBytes | first | last;
  if (all % kUnit == 0) {
    copyAligned<kInFlight, Memory>(block, src, dst, inUnits(first), inUnits(last), lane, lanes);
    return;
  }
  // A cut row at either end, whole rows between.
  while (first < last) {
    const uint64_t column = first % block.rowBytes, left = last - first;
    const bool whole = column == 0 && left >= block.rowBytes;
    const uint64_t lines = whole ? left / block.rowBytes : 1;
    const uint64_t restOfRow = block.rowBytes - column;
    const uint64_t bytes = whole || left > restOfRow ? restOfRow : left;
    copyAnyRows<kInFlight, Memory>(block, src, dst, first / block.rowBytes, lines, column, bytes, lane, lanes);
    first += lines * bytes;
  }
}

// Where one end of a stream lies: its operands' buffers, or a staging slot that holds the payload as it is, one byte
// after the other, the stream's byte `begin` first.
struct Place {
  const uint64_t* operands;  // nullptr: a slot
  uint64_t slot, begin;
};
ULYSSES_HD Place placeOf(const uint64_t* operands) {
  return {operands, 0, 0};
}
ULYSSES_HD Place slotPlace(uint64_t slot, uint64_t begin) {
  return {nullptr, slot, begin};
}

ULYSSES_HD Side sideAt(const Place& place, const Block& block, const Side& side) {
  if (place.operands != nullptr) return {place.operands[block.operand] + side.offset, side.pitch, side.step};
  return {place.slot + block.begin - place.begin, block.rowBytes, block.rows * block.rowBytes};
}

// The part of a stream in `tile`, block by block.
template <int kInFlight, class Memory>
ULYSSES_HD void copyTile(const Block* blocks, uint32_t n, Tile tile, Place src, Place dst, uint32_t lane,
                         uint32_t lanes) {
  for (uint32_t i = blockAt(blocks, n, tile.begin); i < n && blocks[i].begin < tile.end; ++i) {
    const Block& block = blocks[i];
    const uint64_t end = block.begin + block.bytes();
    const uint64_t first = tile.begin > block.begin ? tile.begin - block.begin : 0;
    const uint64_t last = (tile.end < end ? tile.end : end) - block.begin;
    if (first >= last) continue;
    copyBlock<kInFlight, Memory>(block, sideAt(src, block, block.src), sideAt(dst, block, block.dst), first, last, lane,
                                 lanes);
  }
}

}  // namespace ulysses::device
