// The work of an exchange in the form kernels take it, and its index arithmetic: the same on host and device, so that
// the host tests run what the kernels run. Addresses are plain 64-bit numbers here.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define ULYSSES_HD __host__ __device__ __forceinline__
#define ULYSSES_HD_CALL __host__ __device__ __noinline__
#else
#define ULYSSES_HD inline
#define ULYSSES_HD_CALL inline
#endif
#if defined(__CUDA_ARCH__)
#define ULYSSES_UNROLL _Pragma("unroll")
#else
#define ULYSSES_UNROLL
#endif

namespace ulysses::device {

constexpr int kMaxRanks = 8;
constexpr int kMaxOperands = 16;
constexpr int kSlots = 3;           // staging slots per (sender, CTA)
constexpr uint64_t kUnit = 16;      // bytes of the widest access
constexpr uint64_t kLineBytes = 8;  // payload of one line

// One side of a block: `offset` from the operand's start, rows `pitch` apart, repetitions `step` apart. In bytes.
struct Side {
  uint64_t offset, pitch, step;
};

// `count` repetitions of a 2-D block copy: what consecutive BlockCopies that differ only in their offsets amount to.
struct Block {
  uint64_t count, rows, rowBytes;
  Side src, dst;
  uint64_t begin;  // where its payload starts in the stream of its pair: a multiple of kUnit
  uint32_t operand, reserved;

  ULYSSES_HD uint64_t bytes() const { return count * rows * rowBytes; }
};

// Everything one rank sends another: its blocks' payloads one after the other, each starting at a multiple of kUnit.
struct Stream {
  uint32_t firstBlock, blocks;
  uint64_t bytes;  // where the last block's payload ends
};

// What one rank's kernels do for a plan. The blocks follow it in memory. send[own rank] is the rank's own share.
struct WorkTable {
  Stream send[kMaxRanks], recv[kMaxRanks];

  ULYSSES_HD const Block* blocks() const { return reinterpret_cast<const Block*>(this + 1); }
};

// The part of a stream that goes through one slot of one CTA. Tiles are dealt to CTAs in turn, so that all CTAs work on
// neighbouring memory: the CTA's chunk k is tile k * ctas + cta.
struct Tile {
  uint64_t begin, end;
};
ULYSSES_HD uint64_t chunksOf(uint64_t streamBytes, uint64_t tileBytes, uint32_t cta, uint32_t ctas) {
  const uint64_t tiles = (streamBytes + tileBytes - 1) / tileBytes;
  return tiles / ctas + (cta < tiles % ctas ? 1 : 0);
}
ULYSSES_HD Tile tileOf(uint64_t streamBytes, uint64_t tileBytes, uint64_t chunk, uint32_t cta, uint32_t ctas) {
  const uint64_t begin = (chunk * ctas + cta) * tileBytes;
  const uint64_t end = begin + tileBytes;
  return {begin, end < streamBytes ? end : streamBytes};
}

// Where in a rank's staging the slot of (sender, CTA, chunk) lies: no room for the rank's own share.
ULYSSES_HD uint64_t slotOffset(int receiver, int sender, uint32_t cta, uint32_t ctas, uint64_t chunk,
                               uint64_t tileBytes) {
  const uint64_t peer = sender < receiver ? sender : sender - 1;
  return ((peer * ctas + cta) * kSlots + chunk % kSlots) * tileBytes;
}
ULYSSES_HD uint64_t stagingBytes(int nranks, uint32_t ctas, uint64_t tileBytes) {
  return static_cast<uint64_t>(nranks - 1) * ctas * kSlots * tileBytes;
}

// Lines that a stream takes.
ULYSSES_HD uint64_t linesOf(uint64_t streamBytes) {
  return (streamBytes + kLineBytes - 1) / kLineBytes;
}

// The address of byte `at` of a block's payload on one side whose operand starts at `base`.
ULYSSES_HD uint64_t addressOf(const Block& block, const Side& side, uint64_t base, uint64_t at) {
  const uint64_t line = at / block.rowBytes;
  return base + side.offset + line / block.rows * side.step + line % block.rows * side.pitch + at % block.rowBytes;
}

// The first block of a stream that ends behind `at`.
ULYSSES_HD uint32_t blockAt(const Block* blocks, uint32_t n, uint64_t at) {
  uint32_t low = 0, high = n;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (blocks[middle].begin + blocks[middle].bytes() > at)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// A lane's way through the 16-byte units of a block: it starts at one unit and goes on by a fixed number of units, with
// additions alone. Everything counts units from the block's first, in 32 bits: the table's maker cuts what is larger.
struct Walk {
  uint32_t src, dst;
  uint32_t unit, row;
};
struct Gait {
  uint32_t src, dst;            // one stride without the turns below
  uint32_t srcRow, dstRow;      // from one row's end to the next row
  uint32_t srcCount, dstCount;  // from one repetition's end to the next
  uint32_t unit, row;
  uint32_t units, rows;  // per row, per repetition
};

ULYSSES_HD uint32_t inUnits(uint64_t bytes) {
  return static_cast<uint32_t>(bytes / kUnit);
}

ULYSSES_HD Walk startWalk(const Block& block, const Side& src, const Side& dst, uint32_t firstUnit) {
  const uint32_t units = inUnits(block.rowBytes), rows = static_cast<uint32_t>(block.rows);
  const uint32_t line = firstUnit / units, unit = firstUnit % units, count = line / rows, row = line % rows;
  return {count * inUnits(src.step) + row * inUnits(src.pitch) + unit,
          count * inUnits(dst.step) + row * inUnits(dst.pitch) + unit, unit, row};
}

ULYSSES_HD Gait gaitOf(const Block& block, const Side& src, const Side& dst, uint32_t strideUnits) {
  const uint32_t units = inUnits(block.rowBytes), rows = static_cast<uint32_t>(block.rows);
  const uint32_t srcPitch = inUnits(src.pitch), dstPitch = inUnits(dst.pitch);
  const Walk stride = startWalk(block, src, dst, strideUnits);
  return {stride.src,
          stride.dst,
          srcPitch - units,
          dstPitch - units,
          inUnits(src.step) - rows * srcPitch,
          inUnits(dst.step) - rows * dstPitch,
          stride.unit,
          stride.row,
          units,
          rows};
}

ULYSSES_HD void advance(Walk& w, const Gait& g) {
  w.src += g.src;
  w.dst += g.dst;
  w.unit += g.unit;
  w.row += g.row;
  if (w.unit >= g.units) {
    w.unit -= g.units;
    w.row += 1;
    w.src += g.srcRow;
    w.dst += g.dstRow;
  }
  if (w.row >= g.rows) {
    w.row -= g.rows;
    w.src += g.srcCount;
    w.dst += g.dstCount;
  }
}

}  // namespace ulysses::device
