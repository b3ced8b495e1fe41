// The arithmetic of the device kernels, run on the host: all CTAs, chunks and lanes of every rank, over real memory.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/copy.h"
#include "device/ledger.h"
#include "device/work_table.h"
#include "layout/operand.h"
#include "support/catch.h"

namespace {

using namespace ulysses;
using device::Block;
using device::Place;
using device::Side;
using device::Stream;
using device::Tile;
using device::Word;
using device::WorkTable;

// Counts what it stores, so that a byte written twice shows, and refuses unaligned 16-byte accesses.
struct HostMemory {
  static inline std::vector<unsigned char>* counted = nullptr;
  static inline std::vector<unsigned char> writes;
  static inline bool misaligned = false;

  static Word load(uint64_t address) {
    misaligned |= address % 16 != 0;
    Word word;
    std::memcpy(&word, reinterpret_cast<const void*>(address), 16);
    return word;
  }
  static void store(uint64_t address, const Word& word) {
    misaligned |= address % 16 != 0;
    std::memcpy(reinterpret_cast<void*>(address), &word, 16);
    count(address, 16);
  }
  static void copyNarrow(uint64_t dst, uint64_t src, uint32_t bytes) {
    std::memcpy(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    count(dst, bytes);
  }
  static void watch(std::vector<unsigned char>& output) {
    counted = &output;
    writes.assign(output.size(), 0);
    misaligned = false;
  }

 private:
  static void count(uint64_t address, uint32_t bytes) {
    const uint64_t at = address - reinterpret_cast<uint64_t>(counted->data());
    if (at >= counted->size()) return;
    for (uint32_t i = 0; i < bytes; ++i) ++writes.at(at + i);
  }
};

struct Launch {
  uint32_t ctas, threads;
  uint64_t tileBytes;
};

// One operand, one rank's buffers at an offset from 16-byte alignment, with canaries on both sides.
struct Buffer {
  static constexpr size_t kFence = 64;
  std::vector<unsigned char> bytes;
  size_t start = 0;

  Buffer(size_t size, size_t misalignment, unsigned char fill) : bytes(size + 2 * kFence + 32, fill) {
    start = kFence + (16 - reinterpret_cast<uint64_t>(bytes.data()) % 16) % 16 + misalignment;
  }
  uint64_t address() { return reinterpret_cast<uint64_t>(bytes.data() + start); }
};

const Block* blocksOf(const std::vector<unsigned char>& table, const Stream& stream) {
  return reinterpret_cast<const WorkTable*>(table.data())->blocks() + stream.firstBlock;
}

// Sends everything `from` has for `to`, directly or through slots, and returns what came of the output.
void exchangePair(const std::vector<unsigned char>& sender, const std::vector<unsigned char>& receiver, int from,
                  int to, const std::vector<uint64_t>& in, const std::vector<uint64_t>& out, const Launch& launch,
                  bool staged) {
  const Stream send = reinterpret_cast<const WorkTable*>(sender.data())->send[to];
  if (!staged) {
    for (uint64_t lane = 0; lane < launch.ctas * launch.threads; ++lane) {
      device::copyTile<4, HostMemory>(blocksOf(sender, send), send.blocks, {0, send.bytes}, device::placeOf(in.data()),
                                      device::placeOf(out.data()), lane, launch.ctas * launch.threads);
    }
    return;
  }
  const Stream recv = reinterpret_cast<const WorkTable*>(receiver.data())->recv[from];
  REQUIRE(recv.bytes == send.bytes);
  std::vector<unsigned char> staging(device::stagingBytes(2, launch.ctas, launch.tileBytes) + 16);
  const uint64_t base = (reinterpret_cast<uint64_t>(staging.data()) + 15) / 16 * 16;
  for (uint32_t cta = 0; cta < launch.ctas; ++cta) {
    for (uint64_t k = 0; k < device::chunksOf(send.bytes, launch.tileBytes, cta, launch.ctas); ++k) {
      const Tile tile = device::tileOf(send.bytes, launch.tileBytes, k, cta, launch.ctas);
      const Place slot =
          device::slotPlace(base + device::slotOffset(0, 1, cta, launch.ctas, k, launch.tileBytes), tile.begin);
      for (uint64_t lane = 0; lane < launch.threads; ++lane) {
        device::copyTile<4, HostMemory>(blocksOf(sender, send), send.blocks, tile, device::placeOf(in.data()), slot,
                                        lane, launch.threads);
      }
      for (uint64_t lane = 0; lane < launch.threads; ++lane) {
        device::copyTile<4, HostMemory>(blocksOf(receiver, recv), recv.blocks, tile, slot, device::placeOf(out.data()),
                                        lane, launch.threads);
      }
    }
  }
}

struct Shape {
  int nranks;
  layout::OperandRequest request;
};

layout::OperandRequest request(ulyssesDirection_t direction, size_t batch, size_t seq, size_t heads, size_t headDim,
                               size_t elementBytes) {
  layout::OperandRequest r;
  r.direction = direction;
  r.batch = batch;
  r.seq = seq;
  r.heads = heads;
  r.headDim = headDim;
  r.elementBytes = elementBytes;
  return r;
}

// Element (b, s, h, d) of the global tensor, as a byte that depends on all its bytes' place.
unsigned char valueAt(size_t index, size_t byte) {
  return static_cast<unsigned char>((index * 31 + byte * 7) % 251);
}

// Fills inputs, exchanges between all pairs and checks every byte of every output against the definition.
void checkExchange(const Shape& shape, const Launch& launch, size_t inSkew, size_t outSkew, bool padded, bool staged) {
  const auto resolved = layout::resolve(shape.request, shape.nranks);
  REQUIRE(resolved.ok());
  const layout::Operand operand = resolved.value();
  const size_t elementBytes = operand.elementBytes;
  const auto strides = [&](int rank, layout::Side side) {
    const layout::LocalShape local = layout::localShape(operand, rank, side);
    layout::Strides s = layout::definiteStrides(local, {});
    if (padded) {  // a head and a token of room between
      s.head += 1;
      s.seq = s.head * (local.heads + 1);
      s.batch = s.seq * (local.seq + 1);
    }
    return s;
  };
  const auto copies = [&](int from, int to, int) {
    return layout::blockCopies(operand, from, to, strides(from, layout::Side::In), strides(to, layout::Side::Out));
  };
  const auto global = [&](int rank, layout::Side side, size_t s, size_t h) {
    const bool sequenceLocal = (operand.direction == ulyssesScatterHeads) == (side == layout::Side::In);
    return sequenceLocal ? std::pair{s + operand.seqOf[rank].begin, h} : std::pair{s, h + operand.headsOf[rank].begin};
  };
  const auto forEach = [&](int rank, layout::Side side, const auto& visit) {
    const layout::LocalShape local = layout::localShape(operand, rank, side);
    const layout::Strides st = strides(rank, side);
    for (size_t b = 0; b < local.batch; ++b) {
      for (size_t s = 0; s < local.seq; ++s) {
        for (size_t h = 0; h < local.heads; ++h) {
          for (size_t d = 0; d < local.headDim; ++d) {
            const auto [gs, gh] = global(rank, side, s, h);
            const size_t index = ((b * operand.seq + gs) * operand.heads + gh) * operand.headDim + d;
            visit((b * st.batch + s * st.seq + h * st.head + d) * elementBytes, index);
          }
        }
      }
    }
  };

  std::vector<std::vector<unsigned char>> tables;
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < shape.nranks; ++rank) {
    tables.push_back(device::makeWorkTable(rank, shape.nranks, 1, copies));
    const auto extent =
        layout::extentBytes(layout::localShape(operand, rank, layout::Side::In), strides(rank, layout::Side::In));
    inputs.emplace_back(*extent, inSkew * elementBytes, 0xcd);
    forEach(rank, layout::Side::In, [&](size_t at, size_t index) {
      for (size_t i = 0; i < elementBytes; ++i) inputs[rank].bytes[inputs[rank].start + at + i] = valueAt(index, i);
    });
  }
  for (int to = 0; to < shape.nranks; ++to) {
    const auto extent =
        layout::extentBytes(layout::localShape(operand, to, layout::Side::Out), strides(to, layout::Side::Out));
    Buffer output(*extent, outSkew * elementBytes, 0xee);
    HostMemory::watch(output.bytes);
    for (int from = 0; from < shape.nranks; ++from) {
      exchangePair(tables[from], tables[to], from, to, {inputs[from].address()}, {output.address()}, launch,
                   staged && from != to);
    }
    std::vector<unsigned char> expected(output.bytes.size(), 0xee), written(output.bytes.size(), 0);
    forEach(to, layout::Side::Out, [&](size_t at, size_t index) {
      for (size_t i = 0; i < elementBytes; ++i) {
        expected[output.start + at + i] = valueAt(index, i);
        written[output.start + at + i] = 1;
      }
    });
    CHECK(output.bytes == expected);
    CHECK(HostMemory::writes == written);
    CHECK_FALSE(HostMemory::misaligned);
  }
}

TEST_CASE("every byte of an exchange is moved exactly once over all CTAs, chunks and lanes", "[device]") {
  const std::vector<Launch> launches = {{1, 32, 16}, {3, 7, 48}, {2, 5, 160}, {5, 32, 4096}};
  for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads}) {
    for (const size_t elementBytes : {1, 2, 4, 8}) {
      const std::vector<Shape> shapes = {
          {1, request(direction, 1, 3, 2, 5, elementBytes)},   {2, request(direction, 2, 8, 8, 3, elementBytes)},
          {2, request(direction, 1, 6, 4, 16, elementBytes)},  {3, request(direction, 2, 6, 6, 1, elementBytes)},
          {4, request(direction, 1, 10, 6, 32, elementBytes)}, {4, request(direction, 3, 2, 8, 5, elementBytes)},
          {5, request(direction, 1, 10, 5, 3, elementBytes)},  {8, request(direction, 2, 9, 12, 16, elementBytes)},
      };
      for (const Shape& shape : shapes) {
        for (const Launch& launch : launches) {
          for (const bool staged : {false, true}) {
            for (const bool padded : {false, true}) {
              checkExchange(shape, launch, 0, 0, padded, staged);
              checkExchange(shape, launch, 0, 1, padded, staged);
            }
            checkExchange(shape, launch, 1, 0, false, staged);
            checkExchange(shape, launch, 3, 1, false, staged);
          }
        }
      }
    }
  }
}

TEST_CASE("a walk visits what the plain index says, at any stride", "[device]") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 500; ++trial) {
    Block block{};
    block.count = 1 + random() % 4;
    block.rows = 1 + random() % 9;
    block.rowBytes = 16 * (1 + random() % 7);
    const auto side = [&] {
      Side s{16 * (random() % 5), block.rowBytes + 16 * (random() % 3), 0};
      s.step = block.rows * s.pitch + 16 * (random() % 4);
      return s;
    };
    block.src = side();
    block.dst = side();
    const uint64_t stride = 1 + random() % 200, first = random() % 50;
    device::Walk walk = device::startWalk(block, block.src, block.dst, first);
    const device::Gait gait = device::gaitOf(block, block.src, block.dst, stride);
    for (uint64_t unit = first; unit < block.bytes() / 16; unit += stride) {
      CHECK(block.src.offset + walk.src * 16 == device::addressOf(block, block.src, 0, unit * 16));
      CHECK(block.dst.offset + walk.dst * 16 == device::addressOf(block, block.dst, 0, unit * 16));
      device::advance(walk, gait);
    }
  }
}

TEST_CASE("tiles of all CTAs cover a stream once, and slots do not meet", "[device]") {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{47}, uint64_t{48}, uint64_t{1000}}) {
    for (const uint32_t ctas : {1u, 2u, 7u}) {
      std::vector<int> covered(bytes, 0);
      for (uint32_t cta = 0; cta < ctas; ++cta) {
        for (uint64_t k = 0; k < device::chunksOf(bytes, 48, cta, ctas); ++k) {
          const Tile tile = device::tileOf(bytes, 48, k, cta, ctas);
          CHECK(tile.begin < tile.end);
          CHECK(tile.end - tile.begin <= 48);
          for (uint64_t at = tile.begin; at < tile.end; ++at) ++covered.at(at);
        }
      }
      CHECK(covered == std::vector<int>(bytes, 1));
    }
  }
  std::vector<int> used(device::stagingBytes(4, 3, 32) / 32, 0);
  for (const int sender : {0, 1, 3}) {
    for (uint32_t cta = 0; cta < 3; ++cta) {
      for (uint64_t slot = 0; slot < device::kSlots; ++slot)
        ++used.at(device::slotOffset(2, sender, cta, 3, slot, 32) / 32);
      CHECK(device::slotOffset(2, sender, cta, 3, 3, 32) == device::slotOffset(2, sender, cta, 3, 0, 32));
    }
  }
  CHECK(used == std::vector<int>(used.size(), 1));
}

TEST_CASE("copies that differ by a constant offset become one block, long ones are cut", "[device]") {
  std::vector<Block> blocks;
  device::StreamBuilder builder;
  for (size_t plane = 0; plane < 3; ++plane) builder.add({4, 32, plane * 1000, 64, plane * 128, 32}, 0);
  builder.add({4, 32, 3000, 64, 400, 32}, 0);
  builder.add({1, 5, 0, 5, 0, 5}, 1);
  builder.add({1, 16, 0, 16, 0, 16}, 2);
  const Stream stream = builder.finish(blocks);
  REQUIRE(stream.blocks == 4);
  CHECK(blocks[0].count == 3);
  CHECK(blocks[0].src.step == 1000);
  CHECK(blocks[1].begin == 384);
  CHECK(blocks[2].begin == 512);
  CHECK(blocks[3].begin == 528);
  CHECK(stream.bytes == 544);

  const uint64_t row = device::kMaxReach + 48;
  builder.add({2, row, 0, 3 * row, 0, row}, 0);
  blocks.clear();
  const Stream cut = builder.finish(blocks);
  uint64_t bytes = 0;
  for (const Block& block : blocks) {
    CHECK(block.rowBytes <= device::kMaxReach);
    CHECK(device::addressOf(block, block.src, 0, 0) == block.src.offset);
    bytes += block.bytes();
  }
  CHECK(bytes == 2 * row);
  CHECK(cut.bytes == 2 * row);

  // Rows far apart: one block may not reach further than kernels can count.
  const uint64_t pitch = device::kMaxReach / 4;
  for (size_t plane = 0; plane < 3; ++plane) builder.add({6, 32, plane * 6 * pitch, pitch, plane * 192, 32}, 0);
  blocks.clear();
  builder.finish(blocks);
  bytes = 0;
  for (const Block& block : blocks) {
    CHECK(device::addressOf(block, block.src, 0, block.bytes() - 1) - block.src.offset < device::kMaxReach);
    bytes += block.bytes();
  }
  CHECK(bytes == 3 * 6 * 32);
}

TEST_CASE("a ledger grants what fits and takes it back", "[device]") {
  std::atomic<uint32_t> used{0};
  device::CtaLedger ledger(used), other(used);
  CHECK(ledger.reserve(60, 100));
  CHECK_FALSE(other.reserve(41, 100));
  CHECK(other.reserve(40, 100));
  CHECK(ledger.used() == 100);
  ledger.giveBack(60);
  CHECK(other.used() == 40);
  CHECK_FALSE(ledger.reserve(10, 45));  // parties may know of different capacities
  other.giveBack(40);
  CHECK(ledger.used() == 0);
  CHECK_FALSE(ledger.reserve(101, 100));
}

}  // namespace
