// Builds without CUDA.
#include "device/device.h"

namespace ulysses::perf {

std::string Device::whyNone() {
  return "this build has no CUDA";
}

int Device::count() {
  return 0;
}

Result<std::unique_ptr<Device>> Device::open(int) {
  return Status(ulyssesNotSupported, "device memory: " + whyNone());
}

}  // namespace ulysses::perf
