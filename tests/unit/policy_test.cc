#include "plan/policy.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/datatype.h"
#include "plan/tuning.h"
#include "support/catch.h"

namespace {

using ulysses::LongTraining;
using ulysses::plan::choosePolicy;
using ulysses::plan::kLongTrainingPlaneBytes;
using ulysses::plan::PolicyChoice;
using ulysses::plan::PolicyFacts;

constexpr size_t kCap = size_t{1} << 30;

std::vector<std::string> fieldsOf(const std::string& line) {
  std::vector<std::string> fields;
  std::stringstream in(line);
  for (std::string field; std::getline(in, field, ',');) fields.push_back(field);
  return fields;
}

size_t number(const std::string& text) {
  char* end = nullptr;
  const size_t value = std::strtoull(text.c_str(), &end, 10);
  INFO(text);
  REQUIRE((!text.empty() && *end == '\0'));
  return value;
}

ulyssesDataType_t dtypeNamed(const std::string& name) {
  for (int dtype = ulyssesInt8; dtype <= ulyssesFloat8e5m2; ++dtype)
    if (ulysses::dataTypeFacts(dtype).name == name) return static_cast<ulyssesDataType_t>(dtype);
  FAIL("no data type " << name);
  return ulyssesInt8;
}

struct PolicyCase {
  std::string line, path;
  PolicyFacts facts;
  bool tuned = false, original = false;
  size_t maxWindowBytes = 0;
};

std::vector<PolicyCase> readCases() {
  std::ifstream in(ULYSSES_DATA_DIR "/policy.csv");
  REQUIRE(in.good());
  std::vector<PolicyCase> cases;
  bool header = true;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (header) {
      CHECK(line ==
            "gpu,ranks,dtype,contiguous,planes,seq,heads,headDim,direction,gradTracked,longTraining,capBytes,"
            "planeBytes,packBytes,path,tuned,original,maxWindowBytes");
      header = false;
      continue;
    }
    const std::vector<std::string> f = fieldsOf(line);
    INFO(line);
    REQUIRE(f.size() == 18);
    PolicyCase c;
    c.line = line;
    c.facts.gpu = f[0];
    c.facts.ranks = static_cast<int>(number(f[1]));
    c.facts.dtype = dtypeNamed(f[2]);
    c.facts.contiguous = number(f[3]) == 1;
    c.facts.planes = number(f[4]);
    c.facts.seq = number(f[5]);
    c.facts.heads = number(f[6]);
    c.facts.headDim = number(f[7]);
    REQUIRE((f[8] == "scatter" || f[8] == "gather"));
    c.facts.direction = f[8] == "scatter" ? ulyssesScatterHeads : ulyssesGatherHeads;
    c.facts.gradTracked = number(f[9]) == 1;
    REQUIRE((f[10] == "auto" || f[10] == "chunked"));
    c.facts.longTraining = f[10] == "auto" ? LongTraining::Auto : LongTraining::Chunked;
    c.facts.capBytes = number(f[11]);
    c.facts.planeBytes = number(f[12]);
    c.facts.packBytes = number(f[13]);
    c.path = f[14];
    c.tuned = number(f[15]) == 1;
    c.original = number(f[16]) == 1;
    c.maxWindowBytes = number(f[17]);
    cases.push_back(c);
  }
  return cases;
}

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
  const std::vector<PolicyCase> cases = readCases();
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
