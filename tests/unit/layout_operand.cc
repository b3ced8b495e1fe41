// Splits, requests that must be refused, shapes, strides.
#include <cstdint>
#include <cstring>
#include <random>

#include "support/catch.h"
#include "unit/layout_reference.h"

namespace layout_test {
namespace {

std::vector<size_t> counts(const std::vector<Range>& parts) {
  std::vector<size_t> result;
  for (const Range& part : parts) result.push_back(part.count);
  return result;
}

using Sizes = std::vector<size_t>;

// Refused with a text that holds `value`.
bool refused(const OperandRequest& r, int nranks, const std::string& value) {
  const Result<Operand> result = resolve(r, nranks);
  INFO(result.status().message());
  CHECK(result.status().message().find(value) != std::string::npos);
  return !result.ok() && result.status().code() == ulyssesInvalidArgument;
}

// Marks every element of the tensor; true when one is marked twice.
bool overlapsByCounting(const LocalShape& shape, const Strides& strides) {
  std::vector<bool> taken;
  for (size_t b = 0; b < shape.batch; ++b)
    for (size_t s = 0; s < shape.seq; ++s)
      for (size_t h = 0; h < shape.heads; ++h)
        for (size_t d = 0; d < shape.headDim; ++d) {
          const size_t at = b * strides.batch + s * strides.seq + h * strides.head + d;
          if (at >= taken.size()) taken.resize(at + 1);
          if (taken[at]) return true;
          taken[at] = true;
        }
  return false;
}

}  // namespace

TEST_CASE("layout: balanced splits give the first ranks one more") {
  CHECK(balancedSplit(10, 4) == std::vector<Range>{{0, 3}, {3, 3}, {6, 2}, {8, 2}});
  CHECK(balancedSplit(2, 4) == std::vector<Range>{{0, 1}, {1, 1}, {2, 0}, {2, 0}});
  CHECK(balancedSplit(0, 2) == std::vector<Range>{{0, 0}, {0, 0}});
  CHECK(balancedSplit(SIZE_MAX, 2) == std::vector<Range>{{0, SIZE_MAX / 2 + 1}, {SIZE_MAX / 2 + 1, SIZE_MAX / 2}});
}

TEST_CASE("layout: head groups stay together") {
  OperandRequest r = request(1, 8, 28, 128, 2);
  r.headGroups = 4;
  CHECK(counts(resolved(r, 8).headsOf) == Sizes{4, 3, 4, 3, 4, 3, 4, 3});
  CHECK(counts(resolved(r, 4).headsOf) == Sizes{7, 7, 7, 7});
  CHECK(counts(resolved(r, 3).headsOf) == Sizes{14, 7, 7});  // whole groups, 2 1 1
  CHECK(resolved(r, 3).headsOf[2] == Range{21, 7});
  CHECK(counts(resolved(r, 1).headsOf) == Sizes{28});
  CHECK(refused(r, 6, "6 ranks cannot share 4 head groups"));
  r.headGroups = 5;
  CHECK(refused(r, 4, "28 heads do not form 5"));
  r.headGroups = 4;
  r.headSplits = {7, 7, 7, 7};
  CHECK(refused(r, 4, "choose one"));
}

TEST_CASE("layout: replication gives each head to neighbouring ranks") {
  OperandRequest r = request(1, 8, 4, 128, 2);
  r.replicateHeads = true;
  CHECK(resolved(r, 8).headsOf == std::vector<Range>{{0, 1}, {0, 1}, {1, 1}, {1, 1}, {2, 1}, {2, 1}, {3, 1}, {3, 1}});
  CHECK(resolved(r, 8).heads == 4);
  CHECK(inverse(resolved(r, 8)).heads == 8);
  CHECK(inverse(resolved(r, 8)).headsOf == balancedSplit(8, 8));
  CHECK(refused(r, 6, "4 heads cannot be replicated evenly over 6"));

  OperandRequest plain = r;
  plain.replicateHeads = false;
  for (const int nranks : {1, 2, 3, 4}) CHECK(resolved(r, nranks) == resolved(plain, nranks));

  r.headGroups = 2;  // heads in order are groups in order
  plain = r;
  plain.headGroups = 0;
  CHECK(resolved(r, 8) == resolved(plain, 8));
  r.headGroups = 0;
  r.headSplits = {1, 1, 1, 1, 0, 0, 0, 0};
  CHECK(refused(r, 8, "headSplits"));
}

TEST_CASE("layout: the inverse of the inverse is the operand") {
  for (const auto direction : {ulyssesScatterHeads, ulyssesGatherHeads})
    for (int nranks = 1; nranks <= 8; ++nranks)
      for (const size_t heads : {0, 1, 5, 8, 11}) {
        const Operand operand = resolved(request(2, 7, heads, 3, 2, direction), nranks);
        const Operand back = inverse(operand);
        CHECK(back.direction != operand.direction);
        CHECK(back.headsOf == operand.headsOf);
        CHECK(inverse(back) == operand);
      }
}

TEST_CASE("layout: requests that are refused, with the values") {
  OperandRequest r = request(2, 11, 8, 3, 2);
  SECTION("splits") {
    r.seqSplits = {3, 3, 3, 2};
    CHECK(counts(resolved(r, 4).seqOf) == Sizes{3, 3, 3, 2});
    CHECK(refused(r, 3, "4 seq splits for 3 ranks"));
    r.seqSplits = {3, 3, 3, 3};
    CHECK(refused(r, 4, "add up to 12, but seq is 11"));
    r.seqSplits = {SIZE_MAX, 12, 0, 0};  // 11 in 64 bits
    CHECK(refused(r, 4, "overflow"));
    r.seqSplits.clear();
    r.headSplits = {8, 1};
    CHECK(refused(r, 2, "add up to 9, but heads is 8"));
  }
  SECTION("splits of an empty tensor must add up as well") {
    r.batch = 0;
    r.seqSplits = {3, 3};
    CHECK(refused(r, 2, "add up to 6"));
  }
  SECTION("what no caller may ask") {
    CHECK(refused(r, 0, "0 ranks"));
    CHECK(refused(r, -1, "-1 ranks"));
    const int neither = 2;
    std::memcpy(&r.direction, &neither, sizeof neither);
    CHECK(refused(r, 2, "direction 2"));
    r.direction = ulyssesScatterHeads;
    r.elementBytes = 0;
    CHECK(refused(r, 2, "0 bytes"));
  }
  SECTION("sizes") {
    const size_t big = size_t{1} << 32;
    CHECK(refused(request(big, big, 8, 128, 2), 2, "4294967296, 4294967296, 8, 128"));
    CHECK(refused(request(big, big >> 2, 1, 1, 2), 2, "63 bits"));
    CHECK(resolve(request(big, (big >> 2) - 1, 1, 1, 2), 2).ok());
    OperandRequest replicated = request(big, big >> 4, 1, 1, 1);
    CHECK(resolve(replicated, 8).ok());
    replicated.replicateHeads = true;  // eight heads come back
    CHECK(refused(replicated, 8, "63 bits"));
  }
}

TEST_CASE("layout: strides of zero mean contiguous") {
  const LocalShape shape{2, 5, 3, 4, 2};
  CHECK(definiteStrides(shape, {}) == Strides{60, 12, 4});
  CHECK(definiteStrides(shape, {0, 12, 4}) == Strides{0, 12, 4});
  CHECK(extentBytes(shape, {}) == dataBytes(shape));
  CHECK(extentBytes(shape, {100, 12, 4}) == (100 + 60) * 2);
  CHECK(extentBytes(LocalShape{2, 0, 3, 4, 2}, {SIZE_MAX, SIZE_MAX, SIZE_MAX}) == size_t{0});
}

TEST_CASE("layout: strides beyond 63 bits are refused on either side") {
  const LocalShape shape{2, 5, 3, 4, 2};
  for (const Side side : {Side::In, Side::Out})
    for (const Strides& strides : {Strides{SIZE_MAX, 12, 4}, Strides{60, SIZE_MAX / 2, 4},
                                   Strides{60, 12, SIZE_MAX / 2}, Strides{size_t{1} << 62, 12, 4}}) {
      CHECK_FALSE(extentBytes(shape, strides).has_value());
      const Status status = checkStrides(shape, strides, side);
      CHECK(status.code() == ulyssesInvalidArgument);
      CHECK(status.message().find(side == Side::In ? "input" : "output") == 0);
    }
  // A dimension of one has no stride to speak of.
  CHECK(checkStrides(LocalShape{1, 5, 3, 4, 2}, {SIZE_MAX, 12, 4}, Side::Out).ok());
}

TEST_CASE("layout: outputs that overlap are refused, and no others") {
  std::mt19937 random(7);
  const auto upTo = [&](size_t n) { return static_cast<size_t>(random() % (n + 1)); };
  int overlapping = 0;
  for (int i = 0; i < 40000; ++i) {
    const LocalShape shape{1 + upTo(3), 1 + upTo(4), 1 + upTo(3), 1 + upTo(2), 2};
    const Strides strides{upTo(24), upTo(24), 1 + upTo(24)};
    const bool expected = overlapsByCounting(shape, strides);
    const Status status = checkStrides(shape, strides, Side::Out);
    if (status.ok() == expected) {
      INFO(shape.batch << " " << shape.seq << " " << shape.heads << " " << shape.headDim << ", strides "
                       << strides.batch << " " << strides.seq << " " << strides.head);
      CHECK(status.ok() != expected);
    }
    CHECK(checkStrides(shape, strides, Side::In).ok());
    overlapping += expected;
  }
  CHECK(overlapping > 1000);
  CHECK(overlapping < 39000);
  // Neither dimension steps over the other, and yet 0, 2, 3, 5 are four places.
  CHECK(checkStrides(LocalShape{2, 2, 1, 1, 2}, {3, 2, 1}, Side::Out).ok());
  // Found out at once also where a search would take hours.
  const size_t many = size_t{1} << 20;
  const Status status = checkStrides(LocalShape{many, many, many, 1, 1}, {3, 2, many}, Side::Out);
  CHECK(status.message().find("too large to be searched") != std::string::npos);
}

}  // namespace layout_test
