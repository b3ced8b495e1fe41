// The table of what the policy must decide, tests/data/policy.csv.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/datatype.h"
#include "plan/policy.h"
#include "support/catch.h"

namespace ulysses::testing {

inline std::vector<std::string> fieldsOf(const std::string& line) {
  std::vector<std::string> fields;
  std::stringstream in(line);
  for (std::string field; std::getline(in, field, ',');) fields.push_back(field);
  return fields;
}

inline size_t number(const std::string& text) {
  char* end = nullptr;
  const size_t value = std::strtoull(text.c_str(), &end, 10);
  INFO(text);
  REQUIRE((!text.empty() && *end == '\0'));
  return value;
}

inline ulyssesDataType_t dtypeNamed(const std::string& name) {
  for (int dtype = ulyssesInt8; dtype <= ulyssesFloat8e5m2; ++dtype)
    if (dataTypeFacts(dtype).name == name) return static_cast<ulyssesDataType_t>(dtype);
  FAIL("no data type " << name);
  return ulyssesInt8;
}

struct PolicyCase {
  std::string line, path;
  plan::PolicyFacts facts;
  bool tuned = false, original = false;
  size_t maxWindowBytes = 0;
};

inline std::vector<PolicyCase> readPolicyTable() {
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

}  // namespace ulysses::testing
