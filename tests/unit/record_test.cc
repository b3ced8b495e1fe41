// Records that a peer of this library would not send.
#include "param/group.h"
#include "plan/desc_record.h"
#include "support/catch.h"

using namespace ulysses;

TEST_CASE("records of groups and of plans that are cut short, or empty, are refused", "[unit]") {
  for (const size_t bytes : {1, 8, 9, 55, 57}) {
    CHECK(agreeGroup(0, {Bytes(bytes), Bytes(bytes), Bytes(bytes)}).code() == ulyssesInternalError);
    // A plan's record begins with the number of its operands, whose words are missing.
    Bytes record(bytes, std::byte(1));
    std::vector<OperandStrides> strides;
    CHECK(!agreeDescs({record, record, record}, &strides).ok());
  }
  CHECK(agreeGroup(0, {Bytes(), Bytes(), Bytes()}).ok());
  std::vector<OperandStrides> strides;
  CHECK(!agreeDescs({Bytes(), Bytes(), Bytes()}, &strides).ok());
}
