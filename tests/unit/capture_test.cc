// Which eager calls a graph may record.
#include "plan/contract.h"
#include "support/catch.h"

using namespace ulysses;

namespace {

// What all ranks decide, and so what the first says: ranks as "c" (captures) or "-", prepared as "p", for the other path
// "o", or "-".
Status judged(const std::vector<std::string>& ranks, PreparedFor path = kPreparedFused) {
  const PreparedFor other = path == kPreparedFused ? kPreparedFallback : kPreparedFused;
  std::vector<Contract> contracts(ranks.size());
  std::vector<const Contract*> pointers;
  for (size_t r = 0; r < ranks.size(); ++r) {
    contracts[r].capturing = ranks[r][0] == 'c';
    contracts[r].prepared = ranks[r][1] == 'p' ? path : ranks[r][1] == 'o' ? other : 0u;
    pointers.push_back(&contracts[r]);
  }
  return judgeCapture(pointers, path);
}

bool says(const Status& status, const std::string& text) { return status.message().find(text) != std::string::npos; }

}  // namespace

TEST_CASE("capture: calls outside one pass, prepared or not") {
  for (const char* state : {"--", "-p"}) CHECK(judged({"-p", "-p", state}).ok());
}

TEST_CASE("capture: all record what all have prepared") { CHECK(judged({"cp", "cp", "cp"}).ok()); }

TEST_CASE("capture: what is prepared for one path serves no other") {
  for (const PreparedFor path : {kPreparedFused, kPreparedFallback}) {
    CHECK(judged({"cp", "cp"}, path).ok());
    CHECK(says(judged({"cp", "co"}, path), "rank 1"));
  }
}

TEST_CASE("capture: some record and some do not: the same refusal, naming one of each") {
  for (const auto& ranks : {std::vector<std::string>{"-p", "cp", "-p"}, {"-p", "cp", "cp"}}) {
    const Status status = judged(ranks);
    CHECK(status.code() == ulyssesInvalidUsage);
    CHECK(says(status, "rank 1 records a graph and rank 0 does not"));
  }
  CHECK(says(judged({"c-", "--"}), "rank 0 records a graph and rank 1 does not"));
}

TEST_CASE("capture: what one rank has not prepared is refused on all, naming it") {
  const Status status = judged({"cp", "cp", "c-", "c-"});
  CHECK(status.code() == ulyssesInvalidUsage);
  CHECK(says(status, "rank 2"));
}
