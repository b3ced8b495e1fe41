// NCCL as it is found, or is not: the table of a stand-in library, and the verdict over what the ranks have.
#include <dlfcn.h>

#include <string>
#include <vector>

#include "support/catch.h"
#include "topology/nccl_library.h"
#include "unit/rerun.h"

namespace {

using namespace ulysses;
using ulysses::test::rerunTestCase;

std::string refusal(const std::vector<NcclFacts>& ranks, int ranksPerDevice) {
  return ncclRefusal(ranks, ranksPerDevice);
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("nccl: the verdict names the rank, both versions, and what is missing") {
  const NcclFacts none{}, v228{22803, 0}, v230{23007, 0}, shares{23007, 1};
  CHECK(refusal({v228, v228}, 1) == "");
  CHECK(refusal({v230, v230, v230}, 1) == "");
  CHECK(has(refusal({v228, none}, 1), "rank 1 finds no libnccl"));
  CHECK(has(refusal({v228, v228, v230}, 1), "rank 0 has NCCL 2.28.3, rank 2 has 2.30.7"));
  CHECK(has(refusal({v228, v228}, 2), "from 2.30.0 on, and this is 2.28.3"));
  CHECK(has(refusal({shares, v230}, 2), "rank 1 has it not"));
  CHECK(refusal({shares, shares}, 2) == "");
}

TEST_CASE("nccl: versions read as NCCL writes them") {
  CHECK(ncclVersionText(22803) == "2.28.3");
  CHECK(ncclVersionText(2708) == "2.7.8");
  CHECK(ncclVersionText(23002) == "2.30.2");
}

TEST_CASE("nccl child finds the stand-in", "[.child]") {
  const std::optional<NcclLibrary> nccl = loadNccl();
  REQUIRE(nccl.has_value());
  CHECK(nccl->version == 22303);
  CHECK(nccl->ncclGetLastError == nullptr);
  CHECK(nccl->textOf(5) == "stand-in error");
  ncclComm* comm = nullptr;
  CHECK(nccl->ncclCommInitRank(&comm, 2, {}, 0) == 5);
}

TEST_CASE("nccl child finds one without send", "[.child]") {
  CHECK_FALSE(loadNccl().has_value());
}

TEST_CASE("case 14: an NCCL is taken by its functions, and one that lacks what is needed is none") {
  CHECK(
      rerunTestCase("nccl child finds the stand-in", {{"LD_LIBRARY_PATH", ULYSSES_NCCL_STAND_IN_DIR "/old"}}).passed());
  CHECK(rerunTestCase("nccl child finds one without send", {{"LD_LIBRARY_PATH", ULYSSES_NCCL_STAND_IN_DIR "/broken"}})
            .passed());
}
