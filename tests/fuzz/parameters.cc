// The environment: any value of any variable is used or leaves its default.
#include <cstdlib>

#include "base/parameters.h"
#include "fuzz/input.h"
#include "param/residency.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ulysses;
  static const std::vector<ParameterRow> rows = parameterTable();
  fuzz::Input input(data, size);
  const ParameterRow& row = rows[input.below(rows.size())];
  const std::string value = input.rest().c_str();  // ends at a 0 byte, as an environment does
  ::setenv(row.name.c_str(), value.c_str(), 1);
  const Parameters read = Parameters::fromEnvironmentSilently();
  FUZZ_REQUIRE(!read.timeoutMs || *read.timeoutMs == -1 || *read.timeoutMs > 0);
  FUZZ_REQUIRE(read.maxCtas >= 0 && read.kernelRevision >= 0);
  for (const ParameterRow& now : parameterTable())
    if (now.name == row.name) FUZZ_REQUIRE(now.currentValue == value || now.currentValue == now.defaultValue);
  const Residency residency = overridden({}, read.residency);
  FUZZ_REQUIRE(residency.kind >= ulyssesResidencyPersistent && residency.kind <= ulyssesResidencyTransient);
  ::unsetenv(row.name.c_str());
  if (const auto bytes = parseBytes(value)) FUZZ_REQUIRE(!value.empty() && value[0] >= '0' && value[0] <= '9');
  return 0;
}
