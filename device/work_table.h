// Makes a rank's work table from the block copies of its operands. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "device/work.h"
#include "layout/block_copy.h"

namespace ulysses::device {

// What a block may reach over on either side: kernels count its 16-byte units in 32 bits. Beyond, it is cut.
constexpr uint64_t kMaxReach = uint64_t{1} << 35;

// Collects the copies of one stream, in the order of the payload, and merges those that differ by a constant offset.
class StreamBuilder {
 public:
  void add(const layout::BlockCopy& copy, uint32_t operand) {
    const uint64_t pitch = std::max(copy.srcPitch, copy.dstPitch);
    const uint64_t most = pitch == 0 ? copy.rows : std::max<uint64_t>(1, kMaxReach / pitch);
    if (copy.rowBytes > kMaxReach) return addCutRows(copy, operand);
    for (uint64_t row = 0; row < copy.rows; row += most) {
      addBlock(std::min<uint64_t>(copy.rows - row, most), copy.rowBytes, copy.srcOffset + row * copy.srcPitch,
               copy.srcPitch, copy.dstOffset + row * copy.dstPitch, copy.dstPitch, operand);
    }
  }

  // Places the payloads one after the other and gives the blocks up.
  Stream finish(std::vector<Block>& blocks) {
    Stream stream{static_cast<uint32_t>(blocks.size()), static_cast<uint32_t>(blocks_.size()), 0};
    for (Block& block : blocks_) {
      block.begin = (stream.bytes + kUnit - 1) / kUnit * kUnit;
      stream.bytes = block.begin + block.bytes();
      if (block.count == 1) block.src.step = block.dst.step = block.rows * block.rowBytes;
      blocks.push_back(block);
    }
    blocks_.clear();
    return stream;
  }

 private:
  void addCutRows(const layout::BlockCopy& copy, uint32_t operand) {
    for (uint64_t row = 0; row < copy.rows; ++row) {
      for (uint64_t at = 0; at < copy.rowBytes; at += kMaxReach) {
        const uint64_t bytes = std::min<uint64_t>(copy.rowBytes - at, kMaxReach);
        addBlock(1, bytes, copy.srcOffset + row * copy.srcPitch + at, bytes, copy.dstOffset + row * copy.dstPitch + at,
                 bytes, operand);
      }
    }
  }

  void addBlock(uint64_t rows, uint64_t rowBytes, uint64_t srcOffset, uint64_t srcPitch, uint64_t dstOffset,
                uint64_t dstPitch, uint32_t operand) {
    if (rows == 1) srcPitch = dstPitch = rowBytes;
    if (!blocks_.empty()) {
      Block& b = blocks_.back();
      const bool same = b.operand == operand && b.rows == rows && b.rowBytes == rowBytes && b.src.pitch == srcPitch &&
                        b.dst.pitch == dstPitch;
      if (same && b.count == 1) {
        b.src.step = srcOffset - b.src.offset;
        b.dst.step = dstOffset - b.dst.offset;
      }
      const uint64_t reach =
          std::max(srcOffset - b.src.offset, dstOffset - b.dst.offset) + rows * std::max(srcPitch, dstPitch);
      if (same && reach <= kMaxReach && srcOffset == b.src.offset + b.count * b.src.step &&
          dstOffset == b.dst.offset + b.count * b.dst.step) {
        ++b.count;
        return;
      }
    }
    blocks_.push_back({1, rows, rowBytes, {srcOffset, srcPitch, 0}, {dstOffset, dstPitch, 0}, 0, operand, 0});
  }

  std::vector<Block> blocks_;
};

// copies(from, to, operand) gives the block copies of that pair; both ends of a pair must be given the same ones.
template <class Copies>
std::vector<unsigned char> makeWorkTable(int rank, int nranks, int operands, const Copies& copies) {
  WorkTable table{};
  std::vector<Block> blocks;
  const auto stream = [&](int from, int to) {
    StreamBuilder builder;
    for (int operand = 0; operand < operands; ++operand) {
      for (const layout::BlockCopy& copy : copies(from, to, operand)) {
        builder.add(copy, static_cast<uint32_t>(operand));
      }
    }
    return builder.finish(blocks);
  };
  for (int peer = 0; peer < nranks; ++peer) {
    table.send[peer] = stream(rank, peer);
    if (peer != rank) table.recv[peer] = stream(peer, rank);
  }
  std::vector<unsigned char> bytes(sizeof(WorkTable) + blocks.size() * sizeof(Block));
  std::memcpy(bytes.data(), &table, sizeof(WorkTable));
  if (!blocks.empty()) std::memcpy(bytes.data() + sizeof(WorkTable), blocks.data(), blocks.size() * sizeof(Block));
  return bytes;
}

inline uint32_t blockCount(const std::vector<unsigned char>& table) {
  return static_cast<uint32_t>((table.size() - sizeof(WorkTable)) / sizeof(Block));
}

}  // namespace ulysses::device
