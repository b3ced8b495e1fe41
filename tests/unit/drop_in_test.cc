// Which of NCCL's calls libulysses-nccl takes.
#include "drop_in/eligible.h"
#include "support/catch.h"

namespace ulysses::drop_in {

TEST_CASE("calls of NCCL's are taken by what all ranks know alike", "[unit]") {
  const CallFacts good{1000, 7, 4, size_t{1} << 20};
  CHECK(whyPassed(good) == "");
  for (int type = 0; type < 12; ++type) {
    const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    CHECK(elementBytes(type) == bytes[type]);
  }
  for (const int type : {-1, 12, 99}) {
    CallFacts f = good;
    f.type = type;
    CHECK(elementBytes(type) == 0);
    CHECK(whyPassed(f) == "data type " + std::to_string(type) + " is not known");
  }
  CallFacts f = good;
  f.count = 0;
  CHECK(whyPassed(f) == "nothing to move");
  // The larger buffer counts: 4 ranks, 4 bytes each.
  for (const auto& [count, taken] : {std::pair<size_t, bool>{65536, true}, {65537, false}, {SIZE_MAX / 2, false}, {SIZE_MAX, false}}) {
    f.count = count;
    CHECK((whyPassed(f) == "") == taken);
  }
  CHECK(whyPassed(f) == "more than 1048576 bytes a rank (ULYSSES_NCCL_MAX_BYTES)");
}

}  // namespace ulysses::drop_in
