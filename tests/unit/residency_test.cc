// Persistent parameters, the pure parts: which groups stay, which slot is taken, the cast of a shard, how a group lies.
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "param/cast.h"
#include "param/group.h"
#include "param/residency.h"
#include "plan/contract.h"
#include "support/catch.h"

namespace ulysses::testing {
namespace {

ulyssesParamDesc_t desc(size_t count, ulyssesDataType_t type, const void* shard = nullptr) {
  ulyssesParamDesc_t d = ULYSSES_PARAM_DESC_INITIALIZER;
  d.count = count;
  d.shardType = d.gatherType = type;
  d.shard = shard;
  return d;
}

bool holds(const Status& status, ulyssesResult_t code, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (status.message().find(word) == std::string::npos) return false;
  return status.code() == code;
}

// The nearest of all values of a narrow type, ties to the even one: by search, not by bits.
template <int kExponentBits, int kMantissaBits>
double valueOf(uint16_t bits) {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  const int exponent = bits >> kMantissaBits & ((1 << kExponentBits) - 1), mantissa = bits & ((1 << kMantissaBits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - kBias - kMantissaBits);
  return std::ldexp((1 << kMantissaBits) + mantissa,
                    exponent - kBias - kMantissaBits);  // the largest one: as if finite
}

template <int kExponentBits, int kMantissaBits>
uint16_t nearest(float value) {
  constexpr uint16_t kInfinity = ((1 << kExponentBits) - 1) << kMantissaBits;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | kInfinity);
  uint16_t low = 0, high = kInfinity;  // valueOf(low) <= magnitude < valueOf(high), unless beyond
  if (magnitude >= valueOf<kExponentBits, kMantissaBits>(kInfinity)) return static_cast<uint16_t>(sign | kInfinity);
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (valueOf<kExponentBits, kMantissaBits>(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - valueOf<kExponentBits, kMantissaBits>(low);
  const double above = valueOf<kExponentBits, kMantissaBits>(high) - magnitude;
  const bool up = above < below || (above == below && low % 2 != 0);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

}  // namespace

TEST_CASE("residency: a prefix that fits is pinned, the others share a ring", "[unit]") {
  const std::vector<size_t> groups{100, 50, 200, 10};
  const auto plan = [&](ulyssesResidency_t kind, size_t budget, size_t depth) {
    return planResidency(groups, {kind, budget, depth});
  };
  CHECK(plan(ulyssesResidencyPersistent, 0, 3) == ResidencyPlan{4, 360, 0, 0});
  CHECK(plan(ulyssesResidencyTransient, 1000, 0) == ResidencyPlan{0, 0, 1, 200});
  CHECK(plan(ulyssesResidencyTransient, 0, SIZE_MAX) == ResidencyPlan{0, 0, 4, 200});
  CHECK(plan(ulyssesResidencyBudget, 160, 1) == ResidencyPlan{2, 150, 2, 200});  // no gaps: 10 would fit, 200 is before
  CHECK(plan(ulyssesResidencyBudget, 359, 5) == ResidencyPlan{3, 350, 1, 10});
  CHECK(planResidency({}, {ulyssesResidencyBudget, 0, 1}) == ResidencyPlan{});

  // For every budget: as many as fit, never more, and the next one would not.
  std::vector<size_t> many(7);
  std::iota(many.begin(), many.end(), size_t{0});
  for (size_t budget = 0; budget <= 22; ++budget)
    for (size_t depth = 0; depth < 9; ++depth) {
      const ResidencyPlan p = planResidency(many, {ulyssesResidencyBudget, budget, depth});
      const size_t fit = std::accumulate(many.begin(), many.begin() + static_cast<long>(p.pinned), size_t{0});
      CHECK(p.pinnedBytes == fit);
      CHECK(fit <= budget);
      if (p.pinned == many.size()) CHECK(p.slots == 0);
      if (p.pinned < many.size()) CHECK(fit + many[p.pinned] > budget);
      if (p.pinned < many.size()) CHECK(p.slots == std::min(depth + 1, many.size() - p.pinned));
      if (p.pinned < many.size()) CHECK(p.slotBytes == 6);
    }
}

TEST_CASE("residency: the environment goes over the configuration", "[unit]") {
  const Residency configured{ulyssesResidencyBudget, 77, 2};
  CHECK(overridden(configured, "").kind == ulyssesResidencyBudget);
  CHECK(overridden(configured, "").budgetBytes == 77);
  CHECK(overridden(configured, "persistent").kind == ulyssesResidencyPersistent);
  CHECK(overridden(configured, "transient").kind == ulyssesResidencyTransient);
  CHECK(overridden({}, "budget:3M").kind == ulyssesResidencyBudget);
  CHECK(overridden(configured, "budget:3M").budgetBytes == 3u << 20);
  CHECK(overridden(configured, "budget:3M").prefetchDepth == 2);
}

TEST_CASE("residency: the slot that was filled longest ago gives way, held ones never do", "[unit]") {
  std::vector<SlotUse> slots{{false, false, 5}, {true, false, 1}, {false, true, 2}, {false, false, 4}};
  CHECK(chooseSlot(slots, false) == 3);
  CHECK(chooseSlot(slots, true) == 3);
  slots[0].held = slots[3].held = true;
  CHECK(chooseSlot(slots, false) == -1);
  CHECK(chooseSlot(slots, true) == 2);
  slots[2].held = true;
  CHECK(chooseSlot(slots, true) == -1);
  CHECK(chooseSlot({}, true) == -1);
  slots[3] = {};
  CHECK(chooseSlot(slots, false) == 3);
}

TEST_CASE("cast: to nearest even in every exponent, around every tie, in the denormals", "[unit]") {
  size_t wrong = 0;
  const auto check = [&](uint32_t bits) {
    const auto value = std::bit_cast<float>(bits);
    const bool nan = std::isnan(value);
    const uint16_t expectedB = nan ? 0x7fc0 : nearest<8, 7>(value), expectedF = nan ? 0x7e00 : nearest<5, 10>(value);
    wrong += toBfloat16(value) != expectedB;
    wrong += toFloat16(value) != expectedF;
  };
  for (uint32_t sign : {0u, 0x80000000u})
    for (uint32_t exponent = 0; exponent < 256; ++exponent)
      for (uint32_t bit = 0; bit <= 23; ++bit)
        for (uint32_t high : {0u, 1u, 2u, 3u, 0x3ffu})  // what is kept just above the tie, odd and even
          for (int near = -2; near <= 2; ++near)
            check(sign | exponent << 23 |
                  ((((high << bit << 1) | (1u << bit)) + static_cast<uint32_t>(near)) & 0x7fffffu));
  for (uint32_t bits = 1; bits != 0 && bits < 0xffff0000u; bits += 0x3fff) check(bits);  // all over
  CHECK(wrong == 0);

  CHECK(toBfloat16(1.0f) == 0x3f80);
  CHECK(toBfloat16(std::bit_cast<float>(0x7f7fffffu)) == 0x7f80);  // overflow
  CHECK(toFloat16(65519.996f) == 0x7bff);
  CHECK(toFloat16(65520.0f) == 0x7c00);
  CHECK(toFloat16(-1e30f) == 0xfc00);
  CHECK(toFloat16(5.9604645e-8f) == 1);  // 2^-24
  CHECK(toFloat16(2.9802322e-8f) == 0);  // half of it: to even
  CHECK(toFloat16(2.9802326e-8f) == 1);
  CHECK(toFloat16(-0.0f) == 0x8000);
  const float shard[] = {1.0f, -2.0f, std::bit_cast<float>(0xffc12345u)};
  uint16_t out[3];
  castShard(shard, out, 3, ulyssesFloat16);
  CHECK((out[0] == 0x3c00 && out[1] == 0xc000 && out[2] == 0x7e00));
}

TEST_CASE("a group lies parameter by parameter, aligned, and every rank sends its rows", "[unit]") {
  const float shard[8] = {};
  std::vector<ulyssesParamDesc_t> descs{desc(5, ulyssesFloat32, shard), desc(3, ulyssesBfloat16, shard),
                                        desc(1, ulyssesUint8, shard), desc(2, ulyssesFloat32, shard)};
  descs[3].alignment = 64;
  descs[3].gatherType = ulyssesFloat16;
  const Result<ParamGroup> made = makeGroup(descs, 1, 4);
  REQUIRE(made.ok());
  const ParamGroup& g = made.value();
  CHECK(g.parameters[1].offset == 20);
  CHECK(g.parameters[2].offset == 26);
  CHECK(g.parameters[3].offset == 64);
  CHECK(g.bytes == 68);
  CHECK(g.alignment == 64);
  CHECK(g.gathered == 31);
  CHECK(g.castBytes == 2);
  REQUIRE(g.parts.size() == 1);
  const Schedule& s = g.parts[0].schedule;
  CHECK(s.sendBytes == std::vector<size_t>{8, 8, 8, 8});  // 1 float32, 1 bfloat16, no uint8, 1 float16
  CHECK(s.recvBytes == std::vector<size_t>{13, 8, 6, 4});
  CHECK(s.largestPayload == 13);
  CHECK(s.largestSend == 52);
  CHECK(s.shares[2][0].direct.copies().front().dstOffset == 8);
  CHECK(s.shares[0][2].direct.copies().empty());
  CHECK(s.shares[0][2].unpack.bytes() == 1);

  const Result<ParamGroup> large = makeGroup(std::vector(2 * kMaxOperands + 1, desc(4, ulyssesInt8, shard)), 0, 2);
  REQUIRE(large.ok());
  CHECK(large.value().parts.size() == 3);
  CHECK(large.value().parts[2].first == 2 * kMaxOperands);
  CHECK(large.value().parts[2].schedule.operands == 1);
}

TEST_CASE("a wrong descriptor is named by parameter and field", "[unit]") {
  const float shard[8] = {};
  const size_t wrongSplits[] = {3, 4}, hugeSplits[] = {SIZE_MAX, 9};
  const auto add = [&](const ulyssesParamDesc_t& d) {
    const ulyssesParamDesc_t both[] = {desc(8, ulyssesFloat32, shard), d};
    return makeGroup(both, 0, 2).status();
  };
  ulyssesParamDesc_t d = desc(8, ulyssesFloat32, shard);
  CHECK(add(d).ok());
  d.splits = wrongSplits;
  CHECK(holds(add(d), ulyssesInvalidArgument, {"parameter 1", "splits", "3,4", "8"}));
  d.splits = hugeSplits;
  CHECK(holds(add(d), ulyssesInvalidArgument, {"parameter 1", "splits"}));
  d = desc(8, ulyssesFloat32, nullptr);
  CHECK(holds(add(d), ulyssesInvalidArgument, {"shard is NULL"}));
  d.count = 0;
  CHECK(add(d).ok());
  d = desc(8, ulyssesFloat32, reinterpret_cast<const char*>(shard) + 1);
  CHECK(holds(add(d), ulyssesInvalidArgument, {"not aligned"}));
  d = desc(8, ulyssesFloat32, shard);
  d.alignment = 48;
  CHECK(holds(add(d), ulyssesInvalidArgument, {"alignment", "48"}));
  d = desc(8, ulyssesFloat64, shard);
  d.gatherType = ulyssesFloat32;
  CHECK(holds(add(d), ulyssesInvalidArgument, {"float64", "float32"}));
  d = desc(8, static_cast<ulyssesDataType_t>(99), shard);
  CHECK(holds(add(d), ulyssesInvalidArgument, {"shardType", "99"}));
  d = desc(SIZE_MAX / 4, ulyssesFloat32, shard);
  CHECK(holds(add(d), ulyssesInvalidArgument, {"62 bits"}));
  d = desc(SIZE_MAX / 16, ulyssesFloat32, shard);
  CHECK(makeGroup(std::vector{d}, 0, 2).ok());
  CHECK(holds(makeGroup(std::vector{d, d}, 0, 2).status(), ulyssesInvalidArgument, {"parameter 1", "62 bits"}));
  d = desc(8, ulyssesFloat32, shard);
  d.magic = 0;
  CHECK(holds(add(d), ulyssesInvalidArgument, {"INITIALIZER"}));
  CHECK(holds(makeGroup({}, 0, 2).status(), ulyssesInvalidArgument, {"not 0"}));
}

TEST_CASE("groups that differ are named by group, parameter, field and both values", "[unit]") {
  const float shard[32] = {};
  const auto agree = [&](const std::vector<ulyssesParamDesc_t>& a, const std::vector<ulyssesParamDesc_t>& b) {
    return agreeGroup(7, {encodeGroup(makeGroup(a, 0, 3).value()), encodeGroup(makeGroup(a, 1, 3).value()),
                          encodeGroup(makeGroup(b, 2, 3).value())});
  };
  const size_t splits[] = {3, 2, 3}, balanced[] = {3, 3, 2};
  ulyssesParamDesc_t d = desc(8, ulyssesFloat32, shard), other = d;
  CHECK(agree({d, d}, {d, d}).ok());
  other.splits = balanced;
  CHECK(agree({d, d}, {d, other}).ok());
  other.splits = splits;
  CHECK(holds(agree({d, d}, {d, other}), ulyssesMismatch,
              {"group 7, parameter 1", "splits", "3,3,2", "3,2,3", "rank 2"}));
  CHECK(holds(agree({d}, {desc(16, ulyssesBfloat16, shard)}), ulyssesMismatch,
              {"group 7, parameter 0", "shardType", "rank 0 has float32", "rank 2 has bfloat16"}));
  CHECK(holds(agree({d}, {desc(9, ulyssesFloat32, shard)}), ulyssesMismatch, {"count", "8", "9"}));
  CHECK(holds(agree({d}, {d, d}), ulyssesMismatch, {"number of parameters", "1", "2"}));
  other = d;
  other.alignment = 128;
  CHECK(holds(agree({d}, {other}), ulyssesMismatch, {"alignment", "4", "128"}));
  other = d;
  other.gatherType = ulyssesBfloat16;
  CHECK(holds(agree({d}, {other}), ulyssesMismatch, {"gatherType", "float32", "bfloat16"}));
  // What no rank of this library sends must do no harm either.
  CHECK_FALSE(agreeGroup(7, {Bytes(), encodeGroup(makeGroup(std::vector{d}, 1, 3).value()), Bytes(5)}).ok());
}

}  // namespace ulysses::testing
