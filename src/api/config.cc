#include "api/config.h"

#include "base/format.h"
#include "base/versioned.h"

namespace ulysses {
namespace {

constexpr int kDefaultTimeoutMs = 600000, kDefaultInitTimeoutMs = 120000;

Status check(const ulyssesConfig_t& c) {
  ULYSSES_TRY(checkVersioned(c, "the configuration", "ULYSSES_CONFIG_INITIALIZER"));
  if (c.memory < ulyssesMemoryAuto || c.memory > ulyssesMemoryCuda)
    return Status(ulyssesInvalidArgument,
                  formatText("memory is {}, not a ulyssesMemory_t", static_cast<int>(c.memory)));
  if (c.maxCtas < 0) return Status(ulyssesInvalidArgument, formatText("maxCtas is {}", c.maxCtas));
  if (c.timeoutMs < -1) return Status(ulyssesInvalidArgument, formatText("timeoutMs is {}", c.timeoutMs));
  if (c.reserved != 0) return Status(ulyssesInvalidArgument, formatText("reserved is {}, not 0", c.reserved));
  return {};
}

}  // namespace

Config::Config(const ulyssesConfig_t* given) {
  if (given == nullptr) return;
  status = check(*given);
  if (!status.ok()) return;
  values = *given;
  if (values.commName != nullptr) name = values.commName;
  values.commName = nullptr;
}

int Config::callTimeoutMs(const Parameters& parameters) const {
  return parameters.timeoutMs.value_or(values.timeoutMs != 0 ? values.timeoutMs : kDefaultTimeoutMs);
}

int Config::initTimeoutMs(const Parameters& parameters) const {
  return parameters.timeoutMs.value_or(values.timeoutMs != 0 ? values.timeoutMs : kDefaultInitTimeoutMs);
}

}  // namespace ulysses
