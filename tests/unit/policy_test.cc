#include "plan/policy.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/datatype.h"
#include "plan/desc_record.h"
#include "plan/launch_shape.h"
#include "plan/policy_facts.h"
#include "plan/tuning.h"
#include "support/catch.h"
#include "support/policy_table.h"

namespace {

using ulysses::LongTraining;
using ulysses::plan::choosePolicy;
using ulysses::plan::kLongTrainingPlaneBytes;
using ulysses::plan::PolicyChoice;
using ulysses::plan::PolicyFacts;
using ulysses::testing::PolicyCase;
using ulysses::testing::readPolicyTable;

constexpr size_t kCap = size_t{1} << 30;

// What holds of every choice.
void checkSound(const PolicyFacts& facts, const PolicyChoice& choice) {
  CHECK(choice.maxWindowBytes <= facts.capBytes);
  CHECK(choice.stagingBytes() <= choice.maxWindowBytes);
  CHECK_FALSE((choice.tuned && choice.original));
  CHECK_FALSE(choice.reason.empty());
  CHECK(choice.reason.size() < sizeof(ulyssesCommInfo_t::lastReason));
  if (!choice.fused) {
    CHECK_FALSE((choice.tuned || choice.original));
    CHECK(choice.ctas == 0);
    CHECK(choice.maxWindowBytes == 0);
  } else {
    CHECK(choice.ctas > 0);
    CHECK((choice.stagingBytes() == 0) == facts.outputsInWindows);
  }
  if (choice.original && !facts.outputsInWindows) CHECK(choice.stagingBytes() == facts.packBytes);
}

PolicyFacts gb200(size_t planeBytes, size_t planes) {
  PolicyFacts facts;
  facts.gpu = "GB200";
  facts.ranks = 4;
  facts.heads = 56;
  facts.headDim = 128;
  facts.planes = planes;
  facts.seq = planeBytes / 3584;
  facts.capBytes = kCap;
  facts.planeBytes = planeBytes;
  facts.packBytes = planes * planeBytes;
  return facts;
}

PolicyFacts gradTracked(PolicyFacts facts) {
  facts.gradTracked = true;
  return facts;
}

}  // namespace

TEST_CASE("policy: every row of the table") {
  const std::vector<PolicyCase> cases = readPolicyTable();
  CHECK(cases.size() == 80);
  for (const PolicyCase& c : cases) {
    INFO(c.line);
    // The table's own arithmetic: a rank's share of a plane, and of the pack.
    CHECK(c.facts.planeBytes == c.facts.seq * c.facts.heads * c.facts.headDim * ulysses::elementBytes(c.facts.dtype) /
                                    static_cast<size_t>(c.facts.ranks));
    CHECK(c.facts.packBytes == c.facts.planes * c.facts.planeBytes);

    const PolicyChoice choice = choosePolicy(c.facts);
    INFO(choice.reason);
    CHECK((choice.fused ? "fused" : "nccl") == c.path);
    CHECK(choice.tuned == c.tuned);
    CHECK(choice.original == c.original);
    CHECK(choice.maxWindowBytes == c.maxWindowBytes);
    if (c.tuned) CHECK(choice.ctas == 144);
    if (c.tuned) CHECK(choice.chunkBytes <= c.facts.planeBytes);
    if (c.original) CHECK(choice.ctas == 36);
    checkSound(c.facts, choice);
  }
}

// The same table by the way a plan takes: descriptors of all ranks, agreed, to facts, choice and launches.
TEST_CASE("policy: every row of the table through a plan's descriptors, down to its launches") {
  for (const PolicyCase& c : readPolicyTable()) {
    INFO(c.line);
    const int P = c.facts.ranks;
    ulyssesA2ADesc_t desc = ULYSSES_A2A_DESC_INITIALIZER;
    desc.batch = c.facts.planes, desc.seq = c.facts.seq, desc.heads = c.facts.heads, desc.headDim = c.facts.headDim;
    desc.dtype = c.facts.dtype, desc.direction = c.facts.direction, desc.gradTracked = c.facts.gradTracked;
    if (!c.facts.contiguous) {  // a view of longer rows, on the last rank alone
      const size_t row = (desc.direction == ulyssesScatterHeads ? desc.heads : desc.heads / static_cast<size_t>(P)) * desc.headDim;
      const size_t rows = desc.direction == ulyssesScatterHeads ? desc.seq / static_cast<size_t>(P) : desc.seq;
      desc.inStride[0] = rows * 2 * row, desc.inStride[1] = 2 * row, desc.inStride[2] = desc.headDim;
    }
    std::vector<ulysses::Bytes> records;
    std::vector<ulysses::layout::Operand> operands;
    for (int r = 0; r < P; ++r) {
      ulyssesA2ADesc_t mine = desc;
      if (r != P - 1) std::fill(mine.inStride, mine.inStride + 3, size_t{0});
      operands.clear();
      REQUIRE(ulysses::resolveDescs(std::span(&mine, 1), r, P, &operands).ok());
      records.push_back(ulysses::encodeDescs(std::span(&mine, 1), P));
    }
    std::vector<ulysses::OperandStrides> strides;
    REQUIRE(ulysses::agreeDescs(records, &strides).ok());

    PolicyFacts common;
    common.gpu = c.facts.gpu;
    common.ranks = P;
    common.longTraining = c.facts.longTraining;
    common.capBytes = c.facts.capBytes;
    const PolicyFacts facts = ulysses::plan::policyFacts(common, desc.dtype, operands, strides, {desc.gradTracked != 0});
    CHECK(facts.planeBytes == c.facts.planeBytes);
    CHECK(facts.packBytes == c.facts.packBytes);
    CHECK(facts.planes == c.facts.planes);
    CHECK(facts.contiguous == c.facts.contiguous);
    CHECK(facts.direction == c.facts.direction);
    const PolicyChoice choice = choosePolicy(facts);
    CHECK((choice.fused ? "fused" : "nccl") == c.path);
    CHECK(choice.tuned == c.tuned);
    CHECK(choice.original == c.original);
    CHECK(choice.maxWindowBytes == c.maxWindowBytes);
    // The backward was agreed with its forward and goes the same way.
    const ulysses::layout::Operand back = ulysses::layout::inverse(operands[0]);
    const ulysses::OperandStrides backStrides{strides[0].out, strides[0].in};
    const PolicyFacts backFacts =
        ulysses::plan::policyFacts(common, desc.dtype, std::span(&back, 1), std::span(&backStrides, 1), {desc.gradTracked != 0});
    CHECK(choosePolicy(backFacts).reason == choice.reason);

    const ulysses::Schedule schedule = ulysses::exchangeSchedule(operands, strides, 0);
    constexpr size_t kFlags = size_t{300} << 10, kRecorded = size_t{64} << 20;
    const ulysses::LaunchRoom room{148, c.facts.capBytes - kFlags, kFlags + kRecorded, kRecorded, kRecorded, 16384};
    const ulysses::Launches launches = launchesOf(facts, choice, schedule.largestPayload, room);
    const size_t registered = launches.eager.stagingBytes + launches.recorded.stagingBytes;
    CHECK(launches.eager.stagingBytes <= c.maxWindowBytes);
    CHECK(registered + 2 * kFlags <= c.facts.capBytes);
    CHECK((launches.eager.stagingBytes != 0) == choice.fused);
    CHECK((launches.recorded.stagingBytes != 0) == choice.fused);
    CHECK(launches.eager.ctas == (c.tuned ? 144u : c.original || c.facts.gpu != "GB200" ? 36u : launches.eager.ctas));
    CHECK(launches.recorded.ctas == launches.eager.ctas);
    const size_t inSlots = size_t{launches.eager.ctas} * 3 * launches.eager.tileBytes;
    // The original launch holds the whole pack, the tuned one a plane at most (but that tiles are rounded up), the library's
    // own less than either.
    if (c.original && registered < c.facts.capBytes / 2) CHECK(inSlots >= schedule.largestPayload);
    if (c.tuned) CHECK(inSlots <= ulysses::ceilDiv(facts.planeBytes, static_cast<size_t>(P)) + 144 * 3 * ulysses::kTileAlignment);
    if (choice.fused && !c.tuned && !c.original) CHECK(registered <= size_t{128} << 20);
  }
}

TEST_CASE("policy: of several operands, only the tracked one's own planes count against the limit") {
  PolicyFacts common;
  common.ranks = 4;
  common.capBytes = kCap;
  const auto operand = [](size_t heads, size_t headDim) {
    ulysses::layout::OperandRequest request;
    request.batch = 1, request.seq = 250000, request.heads = heads, request.headDim = headDim, request.elementBytes = 2;
    return ulysses::layout::resolve(request, 4).take();
  };
  const std::vector<ulysses::layout::Operand> operands = {operand(56, 128), operand(8, 128)};
  const std::vector<ulysses::OperandStrides> strides(2, ulysses::contiguousStrides(4));
  const auto facts = [&](std::vector<bool> tracked) {
    return ulysses::plan::policyFacts(common, ulyssesBfloat16, operands, strides, tracked);
  };
  CHECK(facts({true, false}).gradTracked);
  CHECK_FALSE(facts({false, true}).gradTracked);
  CHECK_FALSE(facts({false, false}).gradTracked);
  const PolicyFacts both = facts({true, true});
  CHECK(both.planeBytes == 896'000'000);
  CHECK(both.packBytes == 896'000'000 + 128'000'000);
  CHECK(both.heads == 0);  // 56 and 8: no geometry of the tuning table
  CHECK(both.planes == 2);
}

TEST_CASE("policy: a flat collective is one plane without a geometry of the tuning table") {
  PolicyFacts common;
  common.gpu = "GB200";
  common.ranks = 4;
  common.capBytes = kCap;
  const PolicyFacts facts =
      ulysses::plan::policyFacts(common, ulyssesBfloat16, ulysses::allGatherSchedule(size_t{1} << 20, 2, 0, 4));
  CHECK(facts.packBytes == size_t{4} << 20);
  CHECK_FALSE(choosePolicy(facts).tuned);
  CHECK(choosePolicy(facts).fused);
}

TEST_CASE("policy: a grad-tracked plane of 512 MiB is chunked, one byte more keeps the original launch") {
  CHECK(choosePolicy(gradTracked(gb200(kLongTrainingPlaneBytes, 1))).tuned);
  CHECK(choosePolicy(gradTracked(gb200(kLongTrainingPlaneBytes + 1, 1))).original);
  CHECK(choosePolicy(gb200(kLongTrainingPlaneBytes + 1, 1)).tuned);

  PolicyFacts chunked = gradTracked(gb200(kLongTrainingPlaneBytes + 1, 4));
  CHECK_FALSE(choosePolicy(chunked).fused);
  CHECK(choosePolicy(chunked).reason.find("ULYSSES_A2A_LONG_TRAINING=chunked") != std::string::npos);
  chunked.longTraining = LongTraining::Chunked;
  CHECK(choosePolicy(chunked).tuned);
}

TEST_CASE("policy: the original launch takes a pack of exactly the cap, and not one byte more") {
  const size_t plane = kCap - 256;
  PolicyFacts facts = gradTracked(gb200(plane, 1));
  for (const size_t cap : {plane + 1, plane}) {
    facts.capBytes = cap;
    CHECK(choosePolicy(facts).original);
    CHECK(choosePolicy(facts).stagingBytes() == plane);
  }
  facts.capBytes = plane - 1;
  CHECK_FALSE(choosePolicy(facts).fused);
  checkSound(facts, choosePolicy(facts));
}

TEST_CASE("policy: the tuned launch stages a plane of exactly the cap whole, a larger one in parts") {
  const size_t plane = 896'000'000;
  PolicyFacts facts = gb200(plane, 3);
  for (const size_t cap : {plane + 1, plane, plane - 1, size_t{4096}, size_t{256}}) {
    INFO(cap);
    facts.capBytes = cap;
    const PolicyChoice choice = choosePolicy(facts);
    CHECK(choice.tuned);
    CHECK(choice.chunkBytes == (cap >= plane ? plane : cap - cap % 256));
    CHECK(choice.slots == 1);
    checkSound(facts, choice);
  }
  facts.capBytes = 255;
  CHECK_FALSE(choosePolicy(facts).fused);
  checkSound(facts, choosePolicy(facts));
}

TEST_CASE("policy: kernel revision 1 stages the whole pack with 36 CTAs, whatever else holds") {
  for (const bool grad : {false, true}) {
    PolicyFacts facts = gb200(size_t{64} << 20, 4);
    facts.gradTracked = grad;
    facts.longTraining = LongTraining::Chunked;
    facts.kernelRevision = 1;
    const PolicyChoice choice = choosePolicy(facts);
    CHECK(choice.original);
    CHECK(choice.ctas == 36);
    CHECK(choice.stagingBytes() == facts.packBytes);
    facts.capBytes = facts.packBytes - 1;
    CHECK_FALSE(choosePolicy(facts).fused);
  }
}

TEST_CASE("policy: a direct output needs no staging, so neither its size nor the cap nor gradients matter") {
  for (const int revision : {1, 2}) {
    for (const bool grad : {false, true}) {
      for (const size_t plane : {size_t{4096}, kLongTrainingPlaneBytes + 1, 2 * kCap}) {
        for (const size_t cap : {size_t{0}, kCap}) {
          PolicyFacts facts = gb200(plane, 4);
          facts.kernelRevision = revision;
          facts.gradTracked = grad;
          facts.capBytes = cap;
          facts.outputsInWindows = true;
          const PolicyChoice choice = choosePolicy(facts);
          CHECK(choice.fused);
          CHECK(choice.maxWindowBytes == 0);
          CHECK(choice.ctas == (revision == 1 ? 36 : 144));
          checkSound(facts, choice);
        }
      }
    }
  }
}

TEST_CASE("policy: no choice exceeds the cap, and the direction never matters") {
  for (const char* gpu : {"GB200", "B200", "H200", "GB200 NVL", ""}) {
    for (const size_t plane : {size_t{2}, size_t{1000}, size_t{8} << 20, size_t{512} << 20, kCap, 3 * kCap}) {
      for (const size_t cap :
           {size_t{0}, size_t{255}, size_t{767}, size_t{768}, size_t{1} << 20, plane - 1, plane, plane + 1, kCap}) {
        for (const bool grad : {false, true}) {
          PolicyFacts facts = gb200(plane, 3);
          facts.gpu = gpu;
          facts.capBytes = cap;
          facts.gradTracked = grad;
          INFO(gpu << " plane " << plane << " cap " << cap << " grad " << grad);
          const PolicyChoice choice = choosePolicy(facts);
          checkSound(facts, choice);
          CHECK(choice.tuned == (choice.fused && !choice.original && facts.gpu == "GB200"));
          facts.direction = ulyssesGatherHeads;
          CHECK(choosePolicy(facts).reason == choice.reason);
        }
      }
    }
  }
}

TEST_CASE("policy: a GPU without a row of its own stages bounded chunks through three slots, far below the cap") {
  PolicyFacts facts = gb200(896'000'000, 4);
  facts.gpu = "H200";
  const PolicyChoice choice = choosePolicy(facts);
  CHECK(choice.slots == 3);
  CHECK(choice.stagingBytes() <= size_t{128} << 20);
  CHECK(choice.chunkBytes % 256 == 0);
  facts.capBytes = 767;
  CHECK_FALSE(choosePolicy(facts).fused);
  facts.capBytes = 768;
  CHECK(choosePolicy(facts).chunkBytes == 256);
}
