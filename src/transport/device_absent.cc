// Builds without CUDA: no device memory.
#ifndef ULYSSES_HAVE_CUDA
#include "transport/device.h"
#include "transport/nccl.h"

namespace ulysses {

int currentCudaDevice() { return -1; }
void setCurrentCudaDevice(int) {}
bool isCapturing(ulyssesStream_t) { return false; }
Status copyOnDevice(const Schedule&, const void* const[], void* const[], ulyssesStream_t) { return {}; }
Status synchroniseStream(ulyssesStream_t) { return {}; }

Result<std::unique_ptr<DeviceTransport>> DeviceTransport::create(const Setup&, Deadline) {
  return Status(ulyssesNotSupported, "this library was built without CUDA");
}

Result<std::unique_ptr<NcclTransport>> NcclTransport::create(const Setup&, Deadline) {
  return Status(ulyssesNotSupported, "this library was built without CUDA");
}

Result<NcclRanks> ncclRanks(ncclComm*) { return Status(ulyssesNotSupported, "this library was built without CUDA"); }

std::unique_ptr<WindowProvider> makeDeviceProvider(int) { return nullptr; }

Result<std::unique_ptr<WindowProvider>> makeNcclProvider(const NcclLibrary&, int, ControlPage&, ControlChannel&, Deadline) {
  return Status(ulyssesNotSupported, "this library was built without CUDA");
}

}  // namespace ulysses
#endif
