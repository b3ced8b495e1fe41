#include "plan/launch_shape.h"

#include "device/work.h"
#include "support/catch.h"

namespace {

using ulysses::kDefaultCtas;
using ulysses::kDefaultTileBytes;
using ulysses::LaunchFacts;
using ulysses::LaunchShape;
using ulysses::launchShape;

LaunchFacts large(int nranks, int ranksPerDevice) {
  LaunchFacts f;
  f.largestPayload = size_t{100} << 20;
  f.nranks = nranks;
  f.ranksPerDevice = ranksPerDevice;
  f.residentCtas = 132;
  f.stagingLimit = size_t{64} << 20;
  f.smallBytes = size_t{16} << 10;
  return f;
}

}  // namespace

TEST_CASE("a GPU of its own: the default launch") {
  const LaunchShape shape = launchShape(large(4, 1));
  CHECK(shape.ctas == kDefaultCtas);
  CHECK(shape.tileBytes == kDefaultTileBytes);
  CHECK_FALSE(shape.small);
}

TEST_CASE("ranks that share a GPU are resident together, whatever else is asked") {
  for (const int ranks : {2, 3, 4, 5, 8})
    for (const uint32_t maxCtas : {0u, 1u, 8u, 1000u}) {
      LaunchFacts f = large(ranks, ranks);
      f.maxCtas = maxCtas;
      const LaunchShape shape = launchShape(f);
      INFO("P=" << ranks << " maxCtas=" << maxCtas);
      CHECK(shape.ctas >= 1);
      CHECK(shape.ctas * static_cast<uint32_t>(ranks) <= f.residentCtas);
      CHECK((maxCtas == 0 || shape.ctas <= maxCtas));
    }
}

TEST_CASE("staging stays within its limit, with little of it there are fewer CTAs before tiles get small") {
  for (const int ranks : {2, 4, 8})
    for (const size_t limit : {size_t{200} << 10, size_t{1} << 20, size_t{8} << 20, size_t{64} << 20}) {
      LaunchFacts f = large(ranks, 1);
      f.stagingLimit = limit;
      const LaunchShape shape = launchShape(f);
      INFO("P=" << ranks << " limit=" << limit);
      CHECK(shape.stagingBytes <= limit);
      CHECK(shape.stagingBytes == static_cast<size_t>(ranks - 1) * shape.ctas * ulysses::device::kSlots * shape.tileBytes);
      CHECK(shape.tileBytes % ulysses::device::kUnit == 0);
      CHECK((shape.ctas == 1 || shape.tileBytes >= size_t{8} << 10));
      CHECK(shape.tileBytes > 0);
    }
  LaunchFacts f = large(4, 1);
  f.stagingLimit = 100;
  CHECK(launchShape(f).tileBytes == 0);
}

TEST_CASE("what each pair sends decides the path and the number of CTAs") {
  LaunchFacts f = large(4, 1);
  f.largestPayload = f.smallBytes;
  CHECK(launchShape(f).small);
  f.largestPayload = f.smallBytes + 1;
  const LaunchShape little = launchShape(f);
  CHECK_FALSE(little.small);
  CHECK(little.ctas < kDefaultCtas);
  uint32_t before = 0;
  for (f.largestPayload = 1; f.largestPayload < size_t{1} << 30; f.largestPayload *= 2) {
    const uint32_t ctas = launchShape(f).ctas;
    CHECK(ctas >= before);
    before = ctas;
  }
  CHECK(before == kDefaultCtas);
}

TEST_CASE("one rank stages nothing") {
  CHECK(launchShape(large(1, 1)).stagingBytes == 0);
}
