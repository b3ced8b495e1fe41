#include "plan/launch_shape.h"

#include "base/checked.h"
#include "device/work.h"
#include "support/catch.h"

namespace {

using namespace ulysses;

constexpr size_t kTile = size_t{128} << 10;

LaunchFacts large(int nranks, uint32_t mostCtas) {
  LaunchFacts f;
  f.largestPayload = size_t{100} << 20;
  f.nranks = nranks;
  f.ctas = 36;
  f.mostCtas = mostCtas;
  f.inFlightBytes = kTile * 36 * device::kSlots;
  f.stagingLimit = size_t{64} << 20;
  f.smallBytes = size_t{16} << 10;
  return f;
}

}  // namespace

TEST_CASE("a GPU of its own: as many CTAs as the policy says, tiles for what it wants in flight") {
  const LaunchShape shape = launchShape(large(4, 132));
  CHECK(shape.ctas == 36);
  CHECK(shape.tileBytes == kTile);
  CHECK_FALSE(shape.small);
}

TEST_CASE("a launch has no more CTAs than it may have") {
  for (const uint32_t most : {0u, 1u, 8u, 33u, 1000u}) {
    const LaunchShape shape = launchShape(large(4, most));
    INFO("most " << most);
    CHECK(shape.ctas == std::clamp(most, 1u, 36u));
    CHECK(shape.stagingBytes <= large(4, most).stagingLimit);
  }
}

TEST_CASE("staging stays within its limit, with little of it there are fewer CTAs before tiles get small") {
  for (const int ranks : {2, 4, 8})
    for (const size_t limit : {size_t{200} << 10, size_t{1} << 20, size_t{8} << 20, size_t{64} << 20}) {
      LaunchFacts f = large(ranks, 132);
      f.stagingLimit = limit;
      const LaunchShape shape = launchShape(f);
      INFO("P=" << ranks << " limit=" << limit);
      CHECK(shape.stagingBytes <= limit);
      CHECK(shape.stagingBytes == static_cast<size_t>(ranks - 1) * shape.ctas * device::kSlots * shape.tileBytes);
      CHECK(shape.tileBytes % device::kUnit == 0);
      CHECK((shape.ctas == 1 || shape.tileBytes >= size_t{8} << 10));
      CHECK(shape.tileBytes > 0);
    }
  LaunchFacts f = large(4, 132);
  f.stagingLimit = 100;
  CHECK(launchShape(f).tileBytes == 0);
}

TEST_CASE("what each pair sends decides the path and the number of CTAs") {
  LaunchFacts f = large(4, 132);
  f.largestPayload = f.smallBytes;
  CHECK(launchShape(f).small);
  CHECK(launchShape(f).stagingBytes == 0);
  f.largestPayload = f.smallBytes + 1;
  const LaunchShape little = launchShape(f);
  CHECK_FALSE(little.small);
  CHECK(little.ctas < 36);
  uint32_t before = 0;
  for (f.largestPayload = 1; f.largestPayload < size_t{1} << 30; f.largestPayload *= 2) {
    const uint32_t ctas = launchShape(f).ctas;
    CHECK(ctas >= before);
    before = ctas;
  }
  CHECK(before == 36);
}

TEST_CASE("plain outputs for which there are lines need no slots") {
  LaunchFacts f = large(4, 132);
  f.lineBytes = size_t{256} << 10;
  for (const size_t payload : {f.smallBytes, f.smallBytes + 1, f.lineBytes, f.lineBytes + 1}) {
    f.largestPayload = payload;
    const LaunchShape shape = launchShape(f);
    INFO("payload " << payload);
    CHECK(shape.small == (payload <= f.smallBytes));
    CHECK(shape.lines == (payload <= f.lineBytes));
    CHECK((shape.stagingBytes == 0) == (payload <= f.lineBytes));
    CHECK((shape.tileBytes == 0) == (payload <= f.lineBytes));
  }
  f.stagingLimit = 0;
  f.largestPayload = f.lineBytes;
  CHECK(launchShape(f).ctas == 36);
}

TEST_CASE("tiles are small enough that no CTA of a staged exchange idles, where that leaves enough for each") {
  for (const int ranks : {2, 4, 8})
    for (size_t payload = size_t{17} << 10; payload < size_t{1} << 30; payload = payload * 3 / 2) {
      LaunchFacts f = large(ranks, 33);
      f.largestPayload = payload;
      const LaunchShape shape = launchShape(f);
      const size_t tiles = ceilDiv(payload, shape.tileBytes);
      INFO("P=" << ranks << " payload " << payload << " ctas " << shape.ctas << " tile " << shape.tileBytes);
      CHECK((tiles >= shape.ctas || shape.tileBytes <= size_t{8} << 10));
      CHECK(shape.tileBytes <= alignUp(ceilDiv(payload, 1), 16));
    }
  // 0.9 MB a rank at P = 4: 28 tiles for each pair, where tiles of 128 KiB were two.
  LaunchFacts f = large(4, 33);
  f.largestPayload = 229376;
  CHECK(ceilDiv(f.largestPayload, launchShape(f).tileBytes) == 28);
}

TEST_CASE("the whole payload in flight: every chunk has a slot of its own") {
  for (const int ranks : {2, 3, 4, 8})
    for (const size_t payload : {size_t{17} << 10, size_t{1} << 20, size_t{224000001}}) {
      LaunchFacts f = large(ranks, 36);
      f.largestPayload = f.inFlightBytes = payload;
      f.stagingLimit = payload * static_cast<size_t>(ranks) + (size_t{1} << 20);
      const LaunchShape shape = launchShape(f);
      for (uint32_t cta = 0; cta < shape.ctas; ++cta)
        CHECK(device::chunksOf(payload, shape.tileBytes, cta, shape.ctas) <= device::kSlots);
    }
}

TEST_CASE("one rank stages nothing, nor does what is not to be staged") {
  CHECK(launchShape(large(1, 36)).stagingBytes == 0);
  LaunchFacts f = large(4, 36);
  f.inFlightBytes = f.stagingLimit = 0;
  CHECK(launchShape(f).stagingBytes == 0);
  CHECK(launchShape(f).ctas == 36);
}

TEST_CASE("CTAs: who takes a modest share leaves some for many others") {
  CHECK(modestShare(132) == 16);
  CHECK(modestShare(33) == 8);  // four ranks on one GPU of 132
  CHECK(modestShare(4) == 1);
  CHECK(modestShare(3) == 0);
  int communicators = 0;
  for (uint32_t left = 132; modestShare(left) != 0; ++communicators) {
    const CtaShare share = shareCtas(modestShare(left), 0, 0, left);
    CHECK(share == CtaShare{modestShare(left), modestShare(left), modestShare(left)});  // for graphs as well
    left -= share.moreEager + share.moreRecorded;
  }
  CHECK(communicators == 9);
}

TEST_CASE("CTAs out of the ledger: those wanted, or what is left, for calls first and then for graphs") {
  CHECK(shareCtas(36, 0, 0, 132) == CtaShare{36, 36, 36});
  CHECK(shareCtas(33, 0, 0, 33) == CtaShare{33, 33, 0});    // four ranks on one GPU of 132
  CHECK(shareCtas(36, 0, 0, 60) == CtaShare{36, 36, 0});    // graphs get all or nothing
  CHECK(shareCtas(36, 0, 0, 10) == CtaShare{10, 10, 0});
  CHECK(shareCtas(36, 0, 0, 0) == CtaShare{36, 0, 0});      // nothing left: not resident
  CHECK(shareCtas(8, 36, 36, 0) == CtaShare{8, 0, 0});      // held already
  CHECK(shareCtas(144, 36, 36, 60) == CtaShare{96, 60, 0});
  CHECK(shareCtas(36, 36, 0, 36) == CtaShare{36, 0, 36});   // room for graphs came later
  // Whatever is held and left, no more is taken than there is, and a launch fits what is held then.
  for (uint32_t wanted : {1u, 7u, 36u, 144u})
    for (uint32_t eager : {0u, 7u, 36u})
      for (uint32_t recorded : {0u, 7u, 36u})
        for (uint32_t available : {0u, 1u, 29u, 132u}) {
          if (recorded > eager) continue;
          const CtaShare share = shareCtas(wanted, eager, recorded, available);
          CHECK(share.ctas >= 1);
          CHECK(share.ctas <= wanted);
          CHECK(share.moreEager + share.moreRecorded <= available);
          CHECK((share.ctas <= eager + share.moreEager || eager + available == 0));
        }
}
