// Parts of a stretch of memory against a map of who has which unit.
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "window/arena.h"

namespace {

using namespace ulysses;

constexpr size_t kUnit = Arena::kAlignment;

// Which unit is taken; first fit by looking at all places.
struct Model {
  std::vector<bool> taken;
  std::optional<size_t> take(size_t bytes) {
    const size_t units = (bytes + kUnit - 1) / kUnit;
    for (size_t at = 0; at + units <= taken.size(); ++at) {
      size_t n = 0;
      while (n < units && !taken[at + n]) ++n;
      if (n < units) continue;
      for (size_t i = 0; i < units; ++i) taken[at + i] = true;
      return at * kUnit;
    }
    return std::nullopt;
  }
  void giveBack(size_t offset, size_t bytes) {
    for (size_t i = 0; i * kUnit < bytes; ++i) taken[offset / kUnit + i] = false;
  }
};

}  // namespace

TEST_CASE("parts of a window's memory: the first place that has room, and again what was given back") {
  std::mt19937 random(1);
  Arena arena(24 * kUnit);
  Model model{std::vector<bool>(24)};
  std::vector<std::pair<size_t, size_t>> held;
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 && !held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      arena.giveBack(held.back().first);
      model.giveBack(held.back().first, held.back().second);
      held.pop_back();
      continue;
    }
    const size_t bytes = 1 + random() % (9 * kUnit);
    const std::optional<size_t> offset = arena.take(bytes);
    REQUIRE(offset == model.take(bytes));
    if (offset) held.emplace_back(*offset, bytes);
    refused += !offset;
  }
  CHECK(refused > 100);
}

TEST_CASE("parts of a window's memory: its end, and sizes beyond all memory") {
  Arena arena(kUnit + 5);
  CHECK_FALSE(arena.take(kUnit + 6));
  CHECK_FALSE(arena.take(SIZE_MAX));
  CHECK(arena.take(1) == size_t{0});
  CHECK_FALSE(arena.take(6));
  CHECK(arena.take(5) == kUnit);
  CHECK_FALSE(arena.take(1));
  arena.giveBack(0);
  CHECK(arena.take(kUnit) == size_t{0});
}
