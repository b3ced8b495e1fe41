#include "unit/layout_reference.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/catch.h"

namespace layout_test {
namespace {

constexpr size_t kFence = 64;
constexpr uint8_t kCanary = 0xEE;

View contiguous(const LocalShape&) {
  return {};
}
View paddedBatch(const LocalShape& s) {
  return {{s.seq * s.heads * s.headDim + 5, s.heads * s.headDim, s.headDim}, 3};
}
View paddedSeq(const LocalShape& s) {
  const size_t row = s.heads * s.headDim + 2;
  return {{s.seq * row, row, s.headDim}, 0};
}
View paddedHead(const LocalShape& s) {
  const size_t head = s.headDim + 1;
  return {{s.seq * s.heads * head, s.heads * head, head}, 1};
}
View headsBeforeTokens(const LocalShape& s) {
  return {{s.heads * s.seq * s.headDim, s.headDim, s.seq * s.headDim}, 0};
}
View tokensBeforeBatch(const LocalShape& s) {
  return {{s.heads * s.headDim, s.batch * s.heads * s.headDim, s.headDim}, 0};
}
View batchInnermost(const LocalShape& s) {
  return {{s.headDim, s.heads * s.batch * s.headDim, s.batch * s.headDim}, 0};
}
// The second of three tensors side by side in one row.
View packedRow(const LocalShape& s) {
  const size_t row = 3 * s.heads * s.headDim;
  return {{s.seq * row, row, s.headDim}, s.heads * s.headDim};
}

void put(uint8_t* to, uint64_t bits, size_t bytes) {
  std::memcpy(to, &bits, bytes);
}  // little-endian hosts

template <class Visit>
void forEachElement(const LocalShape& s, Visit&& visit) {
  for (size_t b = 0; b < s.batch; ++b)
    for (size_t t = 0; t < s.seq; ++t)
      for (size_t h = 0; h < s.heads; ++h)
        for (size_t d = 0; d < s.headDim; ++d) visit(b, t, h, d);
}

// Makes copies and counts how often each byte of the destination was written.
class Mover {
 public:
  explicit Mover(size_t bytes) : writes_(bytes, 0) {}

  // False for a copy of nothing or one that leaves [0, size) of either buffer.
  bool move(const BlockCopy& c, const uint8_t* src, size_t srcBytes, uint8_t* dst, size_t dstBytes) {
    if (c.bytes() == 0) return false;
    if (c.rows == 1 && (c.srcPitch != c.rowBytes || c.dstPitch != c.rowBytes)) return false;
    for (size_t row = 0; row < c.rows; ++row) {
      const size_t from = c.srcOffset + row * c.srcPitch, to = c.dstOffset + row * c.dstPitch;
      if (from + c.rowBytes > srcBytes || to + c.rowBytes > dstBytes) return false;
      std::memcpy(dst + to, src + from, c.rowBytes);
      if (counting_) {
        for (size_t i = 0; i < c.rowBytes; ++i) ++writes_[to + i];
      }
    }
    return true;
  }
  void counting(bool on) { counting_ = on; }
  const std::vector<uint8_t>& writes() const { return writes_; }

 private:
  std::vector<uint8_t> writes_;
  bool counting_ = true;
};

size_t sizeOf(const Buffer& b) {
  return b.bytes.size() - kFence - b.begin;
}

std::string moveChunks(const Operand& operand, int from, int to, const Buffer& in, Buffer& out, size_t chunk,
                       Mover& mover) {
  const PayloadMap pack(packCopies(operand, from, to, in.strides)),
      unpack(unpackCopies(operand, from, to, out.strides));
  const size_t bytes = payloadBytes(operand, from, to);
  if (pack.bytes() != bytes || unpack.bytes() != bytes) return "pack and unpack do not cover the payload";
  for (size_t begin = 0; begin < bytes; begin += chunk) {
    const size_t end = std::min(bytes, begin + chunk);
    std::vector<uint8_t> slot(end - begin, kCanary);
    size_t at = begin;
    bool good = true;
    mover.counting(false);
    pack.forEachPiece(begin, end, [&](const BlockCopy& piece) {
      good = good && piece.dstOffset == at && piece.dstPitch == piece.rowBytes;
      at += piece.bytes();
      BlockCopy local = piece;
      local.dstOffset -= begin;
      good = good && mover.move(local, in.data(), sizeOf(in), slot.data(), slot.size());
    });
    if (!good || at != end) return "the pieces of the pack do not cover the chunk in order";
    at = begin;
    mover.counting(true);
    unpack.forEachPiece(begin, end, [&](const BlockCopy& piece) {
      good = good && piece.srcOffset == at && piece.srcPitch == piece.rowBytes;
      at += piece.bytes();
      BlockCopy local = piece;
      local.srcOffset -= begin;
      good = good && mover.move(local, slot.data(), slot.size(), out.data(), sizeOf(out));
    });
    if (!good || at != end) return "the pieces of the unpack do not cover the chunk in order";
  }
  return "";
}

}  // namespace

std::vector<std::vector<size_t>> owned(size_t n, int nranks, const std::vector<size_t>& sizes) {
  std::vector<size_t> counts = sizes;
  if (counts.empty()) {
    counts.resize(static_cast<size_t>(nranks));
    for (size_t i = 0; i < n; ++i) ++counts[i % counts.size()];
  }
  std::vector<std::vector<size_t>> items(counts.size());
  size_t next = 0;
  for (size_t r = 0; r < counts.size(); ++r)
    for (size_t i = 0; i < counts[r]; ++i) items[r].push_back(next++);
  return items;
}

const std::vector<NamedFamily>& viewFamilies() {
  static const std::vector<NamedFamily> families{
      {"contiguous", contiguous},    {"padded batch", paddedBatch},    {"padded seq", paddedSeq},
      {"padded head", paddedHead},   {"[B,H,S,D]", headsBeforeTokens}, {"[S,B,H,D]", tokensBeforeBatch},
      {"[S,H,B,D]", batchInnermost}, {"packed row", packedRow},
  };
  return families;
}

uint64_t scrambled(size_t g) {
  uint64_t x = (g + 1) * 0x9E3779B97F4A7C15u;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 32);
}

size_t Buffer::at(size_t b, size_t s, size_t h, size_t d) const {
  return (b * strides.batch + s * strides.seq + h * strides.head + d) * shape.elementBytes;
}

std::vector<uint8_t> Buffer::dense() const {
  std::vector<uint8_t> result;
  forEachElement(shape, [&](size_t b, size_t s, size_t h, size_t d) {
    const uint8_t* element = data() + at(b, s, h, d);
    result.insert(result.end(), element, element + shape.elementBytes);
  });
  return result;
}

Buffer makeBuffer(const LocalShape& shape, const View& view) {
  Buffer buffer;
  buffer.shape = shape;
  buffer.strides = definiteStrides(shape, view.strides);
  buffer.begin = kFence + view.offset * shape.elementBytes;
  size_t end = 0;
  forEachElement(shape, [&](size_t b, size_t s, size_t h, size_t d) {
    end = std::max(end, buffer.at(b, s, h, d) + shape.elementBytes);
  });
  buffer.bytes.assign(buffer.begin + end + kFence, kCanary);
  return buffer;
}

Buffer filled(const Operand& operand, const Ownership& ownership, int rank, Side side, const View& view,
              const Values& values) {
  const auto r = static_cast<size_t>(rank);
  const bool byTokens = (side == Side::In) == (operand.direction == ulyssesScatterHeads);
  LocalShape shape{operand.batch, operand.seq, operand.heads, operand.headDim, operand.elementBytes};
  if (byTokens) shape.seq = ownership.tokens[r].size();
  if (!byTokens) shape.heads = ownership.heads[r].size();
  Buffer buffer = makeBuffer(shape, view);
  forEachElement(shape, [&](size_t b, size_t s, size_t h, size_t d) {
    const size_t token = byTokens ? ownership.tokens[r][s] : s;
    const size_t head = byTokens ? h : ownership.heads[r][h];
    const size_t g = ((b * operand.seq + token) * operand.heads + head) * operand.headDim + d;
    put(buffer.data() + buffer.at(b, s, h, d), values(g), shape.elementBytes);
  });
  return buffer;
}

std::string checkExchange(const Operand& operand, const Ownership& ownership, ViewFamily in, ViewFamily out, Way way,
                          size_t chunk) {
  const int nranks = operand.nranks();
  std::vector<Buffer> inputs;
  for (int r = 0; r < nranks; ++r) {
    const LocalShape shape = localShape(operand, r, Side::In);
    inputs.push_back(filled(operand, ownership, r, Side::In, in(shape), scrambled));
    if (inputs.back().shape != shape) return "localShape of the input is wrong";
  }
  for (int to = 0; to < nranks; ++to) {
    const LocalShape shape = localShape(operand, to, Side::Out);
    const Buffer expected = filled(operand, ownership, to, Side::Out, out(shape), scrambled);
    Buffer output = makeBuffer(shape, out(shape));
    if (expected.shape != shape) return "localShape of the output is wrong";
    if (!checkStrides(shape, out(shape).strides, Side::Out).ok()) return "output strides refused";
    if (extentBytes(shape, output.strides) != sizeOf(output)) return "extentBytes is wrong";
    Mover mover(sizeOf(output));
    size_t received = 0;
    for (int from = 0; from < nranks; ++from) {
      const Buffer& input = inputs[static_cast<size_t>(from)];
      std::string problem;
      if (way == Way::Chunks) {
        problem = moveChunks(operand, from, to, input, output, chunk, mover);
      } else {
        const auto order = way == Way::Direct ? CopyOrder::Payload : CopyOrder::Fewest;
        for (const BlockCopy& copy : blockCopies(operand, from, to, input.strides, output.strides, order)) {
          if (!mover.move(copy, input.data(), sizeOf(input), output.data(), sizeOf(output))) problem = "a bad copy";
        }
      }
      if (!problem.empty()) return problem + " from " + std::to_string(from) + " to " + std::to_string(to);
      received += payloadBytes(operand, from, to);
    }
    if (received != dataBytes(shape)) return "payloads do not add up to the output";
    if (output.bytes != expected.bytes) return "wrong bytes on rank " + std::to_string(to);
    size_t once = 0;
    for (const uint8_t n : mover.writes()) {
      if (n > 1) return "a byte written twice on rank " + std::to_string(to);
      once += n;
    }
    if (once != dataBytes(shape)) return "bytes outside the data written on rank " + std::to_string(to);
  }
  return "";
}

std::vector<std::vector<uint8_t>> runExchange(const Operand& operand, const Ownership& ownership,
                                              const Values& values) {
  std::vector<std::vector<uint8_t>> inputs;
  for (int r = 0; r < operand.nranks(); ++r) {
    inputs.push_back(filled(operand, ownership, r, Side::In, {}, values).dense());
  }
  return runExchange(operand, inputs);
}

std::vector<std::vector<uint8_t>> runExchange(const Operand& operand, const std::vector<std::vector<uint8_t>>& inputs) {
  std::vector<std::vector<uint8_t>> outputs;
  for (int to = 0; to < operand.nranks(); ++to) {
    std::vector<uint8_t> output(dataBytes(localShape(operand, to, Side::Out)), kCanary);
    Mover mover(output.size());
    for (int from = 0; from < operand.nranks(); ++from) {
      const auto& input = inputs[static_cast<size_t>(from)];
      for (const BlockCopy& copy : blockCopies(operand, from, to, {}, {})) {
        REQUIRE(mover.move(copy, input.data(), input.size(), output.data(), output.size()));
      }
    }
    outputs.push_back(std::move(output));
  }
  return outputs;
}

uint32_t crc32(const std::vector<uint8_t>& bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

Operand resolved(const OperandRequest& request, int nranks) {
  Result<Operand> result = resolve(request, nranks);
  INFO(result.status().message());
  REQUIRE(result.ok());
  return result.take();
}

OperandRequest request(size_t batch, size_t seq, size_t heads, size_t headDim, size_t elementBytes,
                       ulyssesDirection_t direction) {
  OperandRequest r;
  r.direction = direction;
  r.batch = batch;
  r.seq = seq;
  r.heads = heads;
  r.headDim = headDim;
  r.elementBytes = elementBytes;
  return r;
}

}  // namespace layout_test
