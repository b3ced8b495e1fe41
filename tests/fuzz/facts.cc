// A topology facts file, from ULYSSES_TOPO_FILE or from a peer: read or refused, and what is read can be written, read
// again and judged.
#include "topology/facts.h"
#include "fuzz/input.h"
#include "topology/decide.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ulysses;
  const Result<FactsFile> read = factsFromJson({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!read.ok()) {
    FUZZ_REQUIRE(read.status().code() == ulyssesInvalidArgument && !read.status().message().empty());
    return 0;
  }
  const Result<FactsFile> again = factsFromJson(factsToJson(read.value(), -1), "again");
  FUZZ_REQUIRE(again.ok() && again.value().ranks == read.value().ranks);
  for (const ulyssesMemory_t memory : {ulyssesMemoryAuto, ulyssesMemoryHost, ulyssesMemoryCuda}) {
    const Verdict verdict = decide(read.value().ranks, memory);
    FUZZ_REQUIRE(verdict.code == ulyssesSuccess || !verdict.reason.empty());
  }
  return 0;
}
