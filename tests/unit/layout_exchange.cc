// Block copies against the definition of the exchange, element by element, over small geometries.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "unit/layout_reference.h"

namespace layout_test {
namespace {

constexpr size_t kElementBytes[] = {1, 2, 4, 8};
constexpr ulyssesDirection_t kDirections[] = {ulyssesScatterHeads, ulyssesGatherHeads};

std::string describe(const OperandRequest& r, int nranks) {
  return "[" + std::to_string(r.batch) + "," + std::to_string(r.seq) + "," + std::to_string(r.heads) + "," +
         std::to_string(r.headDim) + "] x " + std::to_string(r.elementBytes) + " bytes, direction " +
         std::to_string(r.direction) + ", " + std::to_string(nranks) + " ranks";
}

// Uneven parts of n with zeros among them: rank r's weight is r * 5 mod 4, so 0, 1, 2, 3, 0, ...
std::vector<size_t> unevenSizes(size_t n, int nranks) {
  std::vector<size_t> sizes(static_cast<size_t>(nranks), 0);
  size_t left = n;
  for (size_t turn = 0; left > 0; ++turn) {
    const size_t r = turn % sizes.size();
    const size_t part = sizes.size() == 1 ? left : std::min(left, r * 5 % 4);
    sizes[r] += part;
    left -= part;
  }
  return sizes;
}

std::string check(const OperandRequest& r, int nranks, ViewFamily in, ViewFamily out, Way way, size_t chunk = 0) {
  const Ownership ownership{owned(r.seq, nranks, r.seqSplits), owned(r.heads, nranks, r.headSplits)};
  const std::string problem = checkExchange(resolved(r, nranks), ownership, in, out, way, chunk);
  return problem.empty() ? problem : problem + ": " + describe(r, nranks);
}

// What a chunked transfer must stand: every odd size up to the payload's, then the whole in one.
std::string checkAllChunks(const Operand& operand, const Ownership& ownership, ViewFamily in, ViewFamily out) {
  size_t longest = 1;
  for (int from = 0; from < operand.nranks(); ++from)
    for (int to = 0; to < operand.nranks(); ++to) longest = std::max(longest, payloadBytes(operand, from, to));
  for (size_t chunk = 1; chunk < longest + 2; chunk += 2) {
    const std::string problem = checkExchange(operand, ownership, in, out, Way::Chunks, chunk);
    if (!problem.empty()) return problem + ", chunks of " + std::to_string(chunk);
  }
  return "";
}

}  // namespace

TEST_CASE("layout: contiguous exchanges of every small geometry") {
  const ViewFamily contiguous = viewFamilies()[0].view;
  for (int nranks = 1; nranks <= 8; ++nranks)
    for (const size_t batch : {1, 2, 3})
      for (const size_t seq : {1, 2, 3, 5, 8, 9, 11})
        for (const size_t heads : {1, 2, 3, 5, 7, 8, 9})
          for (const size_t headDim : {1, 3, 5})
            for (const size_t bytes : kElementBytes)
              for (const auto direction : kDirections) {
                OperandRequest r = request(batch, seq, heads, headDim, bytes, direction);
                CHECK(check(r, nranks, contiguous, contiguous, Way::Direct) == "");
                r.seqSplits = unevenSizes(seq, nranks);
                CHECK(check(r, nranks, contiguous, contiguous, Way::Direct) == "");
                r.headSplits = unevenSizes(heads, nranks);
                CHECK(check(r, nranks, contiguous, contiguous, Way::Direct) == "");
              }
}

TEST_CASE("layout: strided exchanges, every pair of layouts") {
  for (int nranks = 1; nranks <= 8; ++nranks)
    for (const auto direction : kDirections)
      for (const bool uneven : {false, true}) {
        OperandRequest r = request(2, 5, 9, 3, 2, direction);
        if (uneven) r.seqSplits = unevenSizes(r.seq, nranks);
        if (uneven) r.headSplits = unevenSizes(r.heads, nranks);
        for (const NamedFamily& in : viewFamilies())
          for (const NamedFamily& out : viewFamilies()) {
            INFO("from " << in.name << " to " << out.name);
            CHECK(check(r, nranks, in.view, out.view, Way::Direct) == "");
            CHECK(check(r, nranks, in.view, out.view, Way::DirectFewest) == "");
          }
      }
}

TEST_CASE("layout: strided exchanges of every element size") {
  for (const int nranks : {1, 2, 3, 4, 7, 8})
    for (const size_t bytes : kElementBytes)
      for (const size_t headDim : {1, 4, 7})
        for (const auto direction : kDirections)
          for (const NamedFamily& family : viewFamilies()) {
            INFO(family.name);
            const OperandRequest r = request(3, 7, 4, headDim, bytes, direction);
            CHECK(check(r, nranks, family.view, viewFamilies()[0].view, Way::Direct) == "");
            CHECK(check(r, nranks, viewFamilies()[0].view, family.view, Way::Direct) == "");
            CHECK(check(r, nranks, family.view, family.view, Way::Chunks, 3 * bytes + 1) == "");
          }
}

TEST_CASE("layout: payloads packed, cut at every odd size and unpacked") {
  for (int nranks = 1; nranks <= 8; ++nranks)
    for (const auto direction : kDirections)
      for (const bool uneven : {false, true}) {
        OperandRequest r = request(2, 5, 4, 3, 2, direction);
        if (uneven) r.seqSplits = unevenSizes(r.seq, nranks);
        if (uneven) r.headSplits = unevenSizes(r.heads, nranks);
        const Operand operand = resolved(r, nranks);
        const Ownership ownership{owned(r.seq, nranks, r.seqSplits), owned(r.heads, nranks, r.headSplits)};
        for (size_t i = 0; i < viewFamilies().size(); ++i) {
          const NamedFamily &in = viewFamilies()[i], &out = viewFamilies()[(i * 3 + 1) % viewFamilies().size()];
          INFO("from " << in.name << " to " << out.name << ": " << describe(r, nranks));
          CHECK(checkAllChunks(operand, ownership, in.view, out.view) == "");
        }
      }
}

TEST_CASE("layout: replicated heads and their inverse") {
  const std::vector<std::pair<size_t, int>> headsAndRanks{{1, 2}, {1, 3}, {2, 4}, {1, 8}, {2, 8}, {4, 8}, {3, 6}};
  for (const auto& [heads, nranks] : headsAndRanks)
    for (const size_t bytes : kElementBytes)
      for (const NamedFamily& family : viewFamilies()) {
        INFO(heads << " heads over " << nranks << " ranks, " << family.name);
        OperandRequest r = request(2, 5, heads, 3, bytes);
        r.replicateHeads = true;
        const auto ranks = static_cast<size_t>(nranks);
        Ownership ownership{owned(r.seq, nranks), {}};
        for (size_t rank = 0; rank < ranks; ++rank) ownership.heads.push_back({rank * heads / ranks});
        const Operand forward = resolved(r, nranks);
        CHECK(checkExchange(forward, ownership, family.view, family.view, Way::Direct) == "");
        CHECK(checkExchange(forward, ownership, family.view, family.view, Way::DirectFewest) == "");
        CHECK(checkExchange(forward, ownership, family.view, family.view, Way::Chunks, 7) == "");

        // Backwards every replica is a head of its own, in the order of the ranks.
        ownership.heads = owned(ranks, nranks);
        const Operand backward = inverse(forward);
        CHECK(checkExchange(backward, ownership, family.view, family.view, Way::Direct) == "");
        CHECK(checkExchange(backward, ownership, family.view, family.view, Way::Chunks, 7) == "");
        r.direction = ulyssesGatherHeads;
        CHECK(resolved(r, nranks) == backward);
      }
}

TEST_CASE("layout: head groups exchange like the splits they stand for") {
  for (const int nranks : {1, 2, 4, 8})
    for (const size_t groups : {1, 2, 4, 8, 16})
      for (const auto direction : kDirections) {
        OperandRequest r = request(2, 5, 3 * groups, 3, 2, direction);
        r.headGroups = groups;
        const Operand operand = resolved(r, nranks);
        std::vector<size_t> sizes;
        for (const Range& part : operand.headsOf) sizes.push_back(part.count);
        const Ownership ownership{owned(r.seq, nranks), owned(r.heads, nranks, sizes)};
        INFO(groups << " groups, " << describe(r, nranks));
        CHECK(checkExchange(operand, ownership, viewFamilies()[0].view, viewFamilies()[2].view, Way::Direct) == "");
        CHECK(checkExchange(operand, ownership, viewFamilies()[7].view, viewFamilies()[0].view, Way::Chunks, 11) == "");
      }
}

TEST_CASE("layout: copies are few and long") {
  const Operand scatter = resolved(request(2, 16, 12, 4, 2), 4);  // shares of 2 planes, 4 tokens, 3 heads of 8 bytes
  SECTION("contiguous: one copy a plane, one row a token") {
    const auto there = blockCopies(scatter, 1, 2, {}, {});
    REQUIRE(there.size() == 2);
    CHECK(there[1] == BlockCopy{4, 24, 432, 96, 480, 24});
    const auto back = blockCopies(inverse(scatter), 2, 1, {}, {});
    REQUIRE(back.size() == 2);
    CHECK(back[1] == BlockCopy{4, 24, 480, 24, 432, 96});
    CHECK(blockCopies(scatter, 1, 2, {}, {}, CopyOrder::Fewest) == there);
  }
  SECTION("one rank: one row of everything") {
    const auto copies = blockCopies(resolved(request(2, 16, 12, 4, 2), 1), 0, 0, {}, {});
    REQUIRE(copies.size() == 1);
    CHECK(copies[0] == BlockCopy{1, 3072, 0, 3072, 0, 3072});
  }
  SECTION("[B,H,S,D] on both sides: one row a head once order is free") {
    const Strides in{192, 4, 16}, out{192, 4, 64};
    CHECK(blockCopies(scatter, 1, 2, in, out).size() == 8);
    const auto copies = blockCopies(scatter, 1, 2, in, out, CopyOrder::Fewest);
    REQUIRE(copies.size() == 2);
    CHECK(copies[0] == BlockCopy{3, 32, 192, 32, 32, 128});
  }
  SECTION("one head a rank: its stride does not break up the tokens") {
    const auto copies = blockCopies(resolved(request(2, 16, 4, 4, 2), 4), 1, 2, {80, 20, 5}, {});
    REQUIRE(copies.size() == 2);
    CHECK(copies[0] == BlockCopy{4, 8, 20, 40, 32, 8});
  }
  SECTION("a batch stride that means nothing") {
    const Operand single = resolved(request(1, 16, 12, 4, 2), 4);
    const Strides odd{size_t{1} << 63, 48, 4};
    CHECK(checkStrides(localShape(single, 1, Side::In), odd, Side::In).ok());
    CHECK(blockCopies(single, 1, 2, odd, {}) == blockCopies(single, 1, 2, {}, {}));
  }
  SECTION("one element read for a whole dimension") {
    const Operand shared = resolved(request(2, 16, 12, 4, 2), 4);
    const Strides in{0, 48, 4};
    CHECK(checkStrides(localShape(shared, 1, Side::In), in, Side::In).ok());
    const auto copies = blockCopies(shared, 1, 2, in, {});
    REQUIRE(copies.size() == 2);
    CHECK(copies[0].srcOffset == copies[1].srcOffset);
    CHECK(copies[0].dstOffset + 384 == copies[1].dstOffset);
  }
  SECTION("whole rows of a chunk are one piece") {
    const PayloadMap map(packCopies(scatter, 1, 2, {200, 48, 4}));
    REQUIRE(map.bytes() == 192);
    CHECK(map.copies().size() == 2);
    std::vector<BlockCopy> pieces;
    map.forEachPiece(8, 180, [&](const BlockCopy& piece) { pieces.push_back(piece); });
    const std::vector<BlockCopy> expected{
        {1, 16, 56, 16, 8, 16}, {3, 24, 144, 96, 24, 24}, {3, 24, 448, 96, 96, 24}, {1, 12, 736, 12, 168, 12}};
    CHECK(pieces == expected);
    map.forEachPiece(192, 192, [&](const BlockCopy&) { CHECK(false); });
  }
}

TEST_CASE("layout: flat collectives") {
  CHECK(allGatherCopy(10, 3) == BlockCopy{1, 10, 0, 10, 30, 10});
  CHECK(allToAllCopy(10, 3, 2) == BlockCopy{1, 10, 20, 10, 30, 10});
  CHECK(allGatherCopy(0, 3).bytes() == 0);
}

}  // namespace layout_test
