// Known values: checksums and elements of particular exchanges.
#include <cstdint>
#include <cstring>

#include "support/catch.h"
#include "unit/layout_reference.h"

namespace layout_test {
namespace {

uint64_t number(size_t g) {
  return g;
}

Ownership balanced(const Operand& o) {
  return {owned(o.seq, o.nranks()), owned(o.heads, o.nranks())};
}

std::vector<uint32_t> crcs(const std::vector<std::vector<uint8_t>>& tensors) {
  std::vector<uint32_t> result;
  for (const auto& tensor : tensors) result.push_back(crc32(tensor));
  return result;
}

std::vector<uint32_t> scatterCrcs(size_t batch, size_t seq, size_t heads, size_t headDim, size_t bytes, int nranks) {
  const Operand operand = resolved(request(batch, seq, heads, headDim, bytes), nranks);
  return crcs(runExchange(operand, balanced(operand), number));
}

// The element of `to`'s contiguous output at a byte, found through the copies: the rank it comes from and its byte in
// that rank's contiguous input.
struct Source {
  int from = -1;
  size_t byte = 0;
};
Source sourceOf(const Operand& operand, int to, size_t byte) {
  Source found;
  for (int from = 0; from < operand.nranks(); ++from) {
    for (const BlockCopy& c : blockCopies(operand, from, to, {}, {})) {
      if (byte < c.dstOffset) continue;
      const size_t row = (byte - c.dstOffset) / c.dstPitch, column = (byte - c.dstOffset) % c.dstPitch;
      if (row < c.rows && column < c.rowBytes) found = {from, c.srcOffset + row * c.srcPitch + column};
    }
  }
  return found;
}

using Crcs = std::vector<uint32_t>;

}  // namespace

TEST_CASE("layout: checksums of known exchanges") {
  CHECK(crc32({'1', '2', '3', '4', '5', '6', '7', '8', '9'}) == 0xCBF43926);
  CHECK(scatterCrcs(2, 4, 4, 3, 4, 2) == Crcs{0xebeffc76, 0x4cf9e012});
  CHECK(scatterCrcs(3, 8, 8, 5, 4, 4) == Crcs{0x0ef4354e, 0x34787612, 0xa85b4901, 0x26fe5647});
  CHECK(scatterCrcs(2, 8, 8, 1, 2, 8) ==
        Crcs{0xe66fea68, 0x301409a9, 0x91e92bab, 0x4792c86a, 0x096269ee, 0xdf198a2f, 0x7ee4a82d, 0xa89f4bec});
  CHECK(scatterCrcs(2, 6, 6, 1, 2, 3) == Crcs{0x027d9f49, 0x64adf51e, 0xe6019256});
}

TEST_CASE("layout: rank counts that are no power of two, and one rank") {
  const Operand five = resolved(request(1, 10, 5, 3, 4), 5);
  CHECK(checkExchange(five, balanced(five), viewFamilies()[0].view, viewFamilies()[0].view, Way::Direct) == "");
  const Operand one = resolved(request(2, 4, 4, 3, 4), 1);
  CHECK(runExchange(one, balanced(one), number)[0] == filled(one, balanced(one), 0, Side::In, {}, number).dense());
}

TEST_CASE("layout: splits over four ranks that do not divide") {
  const auto exact = [](const OperandRequest& r) {
    const Operand operand = resolved(r, 4);
    const Ownership ownership{owned(r.seq, 4, r.seqSplits), owned(r.heads, 4, r.headSplits)};
    const auto forward = runExchange(operand, ownership, scrambled);
    const auto back = runExchange(inverse(operand), forward);
    bool same = true;
    for (int rank = 0; rank < 4; ++rank) {
      const auto at = static_cast<size_t>(rank);
      same = same && forward[at] == filled(operand, ownership, rank, Side::Out, {}, scrambled).dense() &&
             back[at] == filled(operand, ownership, rank, Side::In, {}, scrambled).dense();
    }
    return same;
  };
  CHECK(exact(request(2, 8, 6, 3, 4)));
  CHECK(exact(request(2, 10, 8, 3, 4)));
  CHECK(exact(request(2, 2, 8, 3, 4)));  // two ranks hold nothing
  OperandRequest uneven = request(2, 11, 8, 3, 4);
  uneven.seqSplits = {3, 3, 3, 2};
  CHECK(exact(uneven));
}

TEST_CASE("layout: packed planes equal separate ones") {
  for (const int nranks : {2, 4}) {
    const Operand packed = resolved(request(6, 8, 8, 3, 4), nranks), single = resolved(request(2, 8, 8, 3, 4), nranks);
    // Planes q, k and v of one buffer, with their own numbers.
    const size_t elements = 2 * 8 * 8 * 3;
    const auto together =
        runExchange(packed, balanced(packed), [&](size_t g) { return g % elements + g / elements * 100000; });
    const auto back = runExchange(inverse(packed), together);
    std::vector<std::vector<uint8_t>> apart(together.size()), apartBack(together.size());
    for (size_t plane = 0; plane < 3; ++plane) {
      const auto outputs = runExchange(single, balanced(single), [&](size_t g) { return g + plane * 100000; });
      const auto inputs = runExchange(inverse(single), outputs);
      for (size_t r = 0; r < outputs.size(); ++r) {
        apart[r].insert(apart[r].end(), outputs[r].begin(), outputs[r].end());
        apartBack[r].insert(apartBack[r].end(), inputs[r].begin(), inputs[r].end());
      }
    }
    CHECK(together == apart);
    CHECK(back == apartBack);
  }
}

TEST_CASE("layout: grouped query attention out of one projection") {
  // Rows of (8 + 4 + 4) heads; q, k and v are views into them.
  const size_t batch = 2, seq = 8, headDim = 3, rowHeads = 16;
  const size_t heads[] = {8, 4, 4}, firstHead[] = {0, 8, 12};
  for (const int nranks : {2, 4}) {
    const size_t row = rowHeads * headDim, tokens = seq / static_cast<size_t>(nranks);
    const Strides view{tokens * row, row, headDim};
    for (size_t i = 0; i < 3; ++i) {
      const Operand operand = resolved(request(batch, seq, heads[i], headDim, 4), nranks);
      for (int to = 0; to < nranks; ++to) {
        const Buffer expected = filled(operand, balanced(operand), to, Side::Out, {}, number);
        Buffer output = makeBuffer(expected.shape, {});
        for (int from = 0; from < nranks; ++from) {
          std::vector<uint32_t> projection(batch * tokens * row, 0xEEEEEEEE);
          const Buffer input = filled(operand, balanced(operand), from, Side::In, {}, number);
          for (size_t b = 0; b < batch; ++b)
            for (size_t s = 0; s < tokens; ++s)
              std::memcpy(&projection[b * view.batch + s * view.seq + firstHead[i] * headDim],
                          input.data() + input.at(b, s, 0, 0), heads[i] * headDim * 4);
          const auto* base = reinterpret_cast<const uint8_t*>(&projection[firstHead[i] * headDim]);
          const auto copies = blockCopies(operand, from, to, view, {});
          CHECK(copies.size() == batch);
          for (const BlockCopy& c : copies)
            for (size_t k = 0; k < c.rows; ++k)
              std::memcpy(output.data() + c.dstOffset + k * c.dstPitch, base + c.srcOffset + k * c.srcPitch,
                          c.rowBytes);
        }
        CHECK(output.bytes == expected.bytes);
      }
    }
  }
}

TEST_CASE("layout: query heads meet their key-value head") {
  OperandRequest query = request(1, 8, 28, 4, 2), keyValue = request(1, 8, 4, 4, 2);
  query.headGroups = 4;
  keyValue.replicateHeads = true;
  const Operand q = resolved(query, 8), kv = resolved(keyValue, 8);
  for (size_t rank = 0; rank < 8; ++rank) {
    REQUIRE(kv.headsOf[rank].count == 1);
    const Range heads = q.headsOf[rank];
    CHECK(heads.count == (rank % 2 == 0 ? 4 : 3));
    for (size_t h = heads.begin; h < heads.begin + heads.count; ++h) CHECK(h / 7 == kv.headsOf[rank].begin);
  }
}

TEST_CASE("layout: round trips restore the input") {
  const Operand operand = resolved(request(3, 8, 8, 5, 4), 4);
  const auto back = runExchange(inverse(operand), runExchange(operand, balanced(operand), number));
  CHECK(crcs(back) == Crcs{0x53da0bdd, 0xc4842932, 0x5ade8f93, 0xed064933});

  const Operand small = resolved(request(2, 4, 2, 1, 1), 2);
  const auto outputs = runExchange(small, balanced(small), number);
  CHECK(outputs[0] == std::vector<uint8_t>{0, 2, 4, 6, 8, 10, 12, 14});
  CHECK(outputs[1] == std::vector<uint8_t>{1, 3, 5, 7, 9, 11, 13, 15});
}

TEST_CASE("layout: empty tensors move nothing") {
  for (size_t empty = 0; empty < 4; ++empty)
    for (const auto direction : {ulyssesScatterHeads, ulyssesGatherHeads})
      for (const bool replicate : {false, true}) {
        size_t sizes[4] = {2, 4, 4, 3};
        sizes[empty] = 0;
        OperandRequest r = request(sizes[0], sizes[1], sizes[2], sizes[3], 4, direction);
        r.replicateHeads = replicate;
        const Operand operand = resolved(r, 8);
        CHECK(operand.empty());
        CHECK(inverse(operand).empty());
        for (int from = 0; from < 8; ++from) {
          CHECK(dataBytes(localShape(operand, from, Side::In)) == 0);
          CHECK(checkStrides(localShape(operand, from, Side::Out), {}, Side::Out).ok());
          for (int to = 0; to < 8; ++to) {
            CHECK(blockCopies(operand, from, to, {}, {}).empty());
            CHECK(payloadBytes(operand, from, to) == 0);
            CHECK(PayloadMap(packCopies(operand, from, to, {})).bytes() == 0);
          }
        }
      }
}

TEST_CASE("layout: offsets beyond 32 bits") {
  const size_t seq = 131072, heads = 48, headDim = 128, half = seq / 2;
  const Operand operand = resolved(request(6, seq, heads, headDim, 2), 2);
  // The value g mod 65521 that lands on `to` at [b, s, h, d], by way of the copies.
  const auto value = [&](int to, size_t b, size_t s, size_t h, size_t d) {
    const Source source = sourceOf(operand, to, (((b * seq + s) * (heads / 2) + h) * headDim + d) * 2);
    REQUIRE(source.from >= 0);
    const size_t element = source.byte / 2, row = heads * headDim;
    const size_t token = element / row % half + static_cast<size_t>(source.from) * half;
    return ((element / row / half * seq + token) * row + element % row) % 65521;
  };
  CHECK(value(1, 5, 131071, 23, 127) == 57583);
  CHECK(value(0, 2, 87381, 5, 64) == 31529);
  CHECK(value(1, 3, 0, 0, 0) == 31864);
  const auto copies = blockCopies(operand, 1, 1, {}, {});
  REQUIRE(copies.size() == 6);
  CHECK(copies[5] == BlockCopy{65536, 6144, 4026537984, 12288, 4429185024, 6144});
  CHECK(copies[5].srcOffset + 65535 * copies[5].srcPitch > UINT32_MAX);
}

}  // namespace layout_test
