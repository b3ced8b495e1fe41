#if defined(ULYSSES_HAVE_CUDA)  // else the build has no CUDA, and nothing here is called
#include "window/ipc.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "base/checked.h"
#include "base/cuda_support.h"
#include "base/format.h"

namespace ulysses {
namespace {

// The runtime keeps the last error for the caller of cudaGetLastError: ours is reported as a Status alone.
Status runtimeStatus(cudaError_t error, const char* what, int device) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return Status(
      error == cudaErrorMemoryAllocation ? ulyssesOutOfMemory : ulyssesUnhandledCudaError,
      formatText("{} on device {}: {} ({})", what, device, cudaGetErrorString(error), cudaGetErrorName(error)));
}

// libcuda's functions, by way of the runtime: the library links no libcuda.
struct Driver {
  decltype(&cuGetErrorString) getErrorString = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemExportToShareableHandle) exportHandle = nullptr;
  decltype(&cuMemImportFromShareableHandle) importHandle = nullptr;
  decltype(&cuMemRetainAllocationHandle) retain = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) unreserve = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) setAccess = nullptr;
  decltype(&cuMemGetAddressRange) addressRange = nullptr;
  bool complete = true;

  static const Driver& instance() {
    static const Driver driver;
    return driver;
  }

  // Whether the allocation of `handle`, which the caller holds, is mapped at an address.
  bool backs(CUmemGenericAllocationHandle handle, CUdeviceptr address) const {
    CUmemGenericAllocationHandle there = 0;
    if (retain(&there, reinterpret_cast<void*>(address)) != CUDA_SUCCESS) return false;
    release(there);
    return there == handle;
  }

  Status status(CUresult result, const char* what, int device) const {
    if (result == CUDA_SUCCESS) return {};
    const char* text = nullptr;
    getErrorString(result, &text);
    return Status(
        result == CUDA_ERROR_OUT_OF_MEMORY ? ulyssesOutOfMemory : ulyssesUnhandledCudaError,
        formatText("{} on device {}: {} ({})", what, device, text ? text : "unknown error", static_cast<int>(result)));
  }

 private:
  Driver() {
    get("cuGetErrorString", 6000, getErrorString);
    get("cuMemGetAllocationGranularity", 10020, granularity);
    get("cuMemCreate", 10020, create);
    get("cuMemRelease", 10020, release);
    get("cuMemExportToShareableHandle", 10020, exportHandle);
    get("cuMemImportFromShareableHandle", 10020, importHandle);
    get("cuMemRetainAllocationHandle", 11000, retain);
    get("cuMemAddressReserve", 10020, reserve);
    get("cuMemAddressFree", 10020, unreserve);
    get("cuMemMap", 10020, map);
    get("cuMemUnmap", 10020, unmap);
    get("cuMemSetAccess", 10020, setAccess);
    get("cuMemGetAddressRange", 3020, addressRange);
  }

  template <class Function>
  void get(const char* name, [[maybe_unused]] unsigned version, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) cudaGetLastError();
    complete &= error == cudaSuccess && result == cudaDriverEntryPointSuccess && found != nullptr;
    function = reinterpret_cast<Function>(found);
  }
};

CUmemAllocationProp shareableOn(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

constexpr size_t kLegacyGranularity = 2u << 20;  // what a legacy handle shares, so nothing else may lie in it

Status outOfMemory(size_t wanted, int device, const Status& cause) {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
  return Status(ulyssesOutOfMemory,
                formatText("device {} has no room for a window: {} bytes wanted, {} free of {} ({})", device, wanted,
                           free, total, cause.message()));
}

}  // namespace

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::create(size_t bytes, int device) {
  if (bytes == 0) return Status(ulyssesInvalidArgument, "a window of device memory needs more than 0 bytes");
  DeviceGuard guard(device);
  ULYSSES_TRY(guard.status());
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory);
  const Status vmm = memory->allocateVmm(bytes, device);
  if (vmm.ok()) return memory;
  if (vmm.code() == ulyssesOutOfMemory) return outOfMemory(bytes, device, vmm);
  memory.reset(new DeviceMemory);
  const Status legacy = memory->allocateLegacy(bytes, device);
  if (legacy.ok()) return memory;
  if (legacy.code() == ulyssesOutOfMemory) return outOfMemory(bytes, device, legacy);
  return Status(legacy.code(), formatText("no shareable device memory: {}; {}", vmm.message(), legacy.message()));
}

Status DeviceMemory::allocateVmm(size_t bytes, int device) {
  const Driver& driver = Driver::instance();
  if (!driver.complete) return Status(ulyssesNotSupported, "the CUDA driver has no virtual memory management");
  const CUmemAllocationProp prop = shareableOn(device);
  size_t granularity = 0;
  ULYSSES_TRY(driver.status(driver.granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                            "cuMemGetAllocationGranularity", device));
  if (checkedAdd(bytes, granularity - 1) == std::nullopt) {
    return Status(ulyssesOutOfMemory, "the size does not fit 64 bits");
  }
  const size_t reserved = alignUp(bytes, granularity);
  CUmemGenericAllocationHandle handle = 0;
  ULYSSES_TRY(driver.status(driver.create(&handle, reserved, &prop, 0), "cuMemCreate", device));
  int fd = -1;
  Status status = driver.status(driver.exportHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                                "cuMemExportToShareableHandle", device);
  fd_.reset(fd);
  if (status.ok()) status = mapVmm(handle, reserved, device);
  driver.release(handle);  // the mapping holds the memory from here on
  ULYSSES_TRY(std::move(status));
  offer_ = {processToken(), Kind::Vmm, device, address_, reserved, 0, reserved, {}};
  return {};
}

Status DeviceMemory::allocateLegacy(size_t bytes, int device) {
  fd_.reset();
  if (checkedAdd(bytes, kLegacyGranularity - 1) == std::nullopt) {
    return Status(ulyssesOutOfMemory, "the size does not fit 64 bits");
  }
  const size_t reserved = alignUp(bytes, kLegacyGranularity);
  void* ptr = nullptr;
  ULYSSES_TRY(runtimeStatus(cudaMalloc(&ptr, reserved), "cudaMalloc", device));
  held_ = Held::LegacyAllocation;
  device_ = device;
  address_ = reinterpret_cast<uint64_t>(ptr);
  offer_ = {processToken(), Kind::LegacyIpc, device, address_, reserved, 0, reserved, {}};
  cudaIpcMemHandle_t handle;
  ULYSSES_TRY(runtimeStatus(cudaIpcGetMemHandle(&handle, ptr), "cudaIpcGetMemHandle", device));
  static_assert(sizeof handle == sizeof offer_.legacyHandle);
  std::memcpy(offer_.legacyHandle, &handle, sizeof handle);
  return {};
}

// Maps a whole allocation and lets `device` in. What is left half done, the destructor undoes.
Status DeviceMemory::mapVmm(unsigned long long handle, size_t bytes, int device) {
  const Driver& driver = Driver::instance();
  CUdeviceptr address = 0;
  ULYSSES_TRY(driver.status(driver.reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve", device));
  address_ = address;
  device_ = device;
  offer_.mappedBytes = bytes;
  held_ = Held::VmmReservation;
  ULYSSES_TRY(driver.status(driver.map(address, bytes, 0, handle, 0), "cuMemMap", device));
  held_ = Held::VmmMapping;
  return letIn(device);
}

Status DeviceMemory::letIn(int device) {
  const Driver& driver = Driver::instance();
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver.status(driver.setAccess(address_ - offer_.offset, offer_.mappedBytes, &access, 1), "cuMemSetAccess",
                       device);
}

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::adopt(void* ptr, size_t bytes, int device) {
  DeviceGuard guard(device);
  ULYSSES_TRY(guard.status());
  const Driver& driver = Driver::instance();
  if (!driver.complete) return Status(ulyssesNotSupported, "the CUDA driver is too old to export memory");
  const auto address = reinterpret_cast<uint64_t>(ptr);
  cudaPointerAttributes attributes;
  ULYSSES_TRY(runtimeStatus(cudaPointerGetAttributes(&attributes, ptr), "cudaPointerGetAttributes", device));
  if (attributes.type != cudaMemoryTypeDevice || attributes.device != device) {
    return Status(ulyssesNotSupported, formatText("{} is no memory of device {}", ptr, device));
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  ULYSSES_TRY(driver.status(driver.addressRange(&base, &size, address), "cuMemGetAddressRange", device));
  if (bytes > size || address - base > size - bytes) {
    return Status(ulyssesNotSupported, formatText("[{}, +{}) reaches over several allocations", ptr, bytes));
  }
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory);
  memory->device_ = device;
  memory->address_ = address;
  memory->offer_ = {processToken(), Kind::Vmm, device, address, size, address - base, bytes, {}};

  CUmemGenericAllocationHandle handle = 0;
  if (driver.retain(&handle, ptr) == CUDA_SUCCESS) {
    // Expandable segments map many allocations side by side: the range must be one.
    const bool one = driver.backs(handle, base) && driver.backs(handle, base + size - 1);
    int fd = -1;
    const CUresult exported =
        one ? driver.exportHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) : CUDA_SUCCESS;
    driver.release(handle);
    if (!one) return Status(ulyssesNotSupported, formatText("{} lies in a range of several allocations", ptr));
    if (exported == CUDA_SUCCESS) {
      memory->fd_.reset(fd);
      return memory;
    }
    return Status(ulyssesNotSupported, formatText("{} was not made shareable: {}", ptr,
                                                  driver.status(exported, "export", device).message()));
  }
  cudaIpcMemHandle_t legacy;
  const Status status = runtimeStatus(cudaIpcGetMemHandle(&legacy, ptr), "cudaIpcGetMemHandle", device);
  if (!status.ok()) return Status(ulyssesNotSupported, status.message());
  memory->offer_.kind = Kind::LegacyIpc;
  std::memcpy(memory->offer_.legacyHandle, &legacy, sizeof legacy);
  return memory;
}

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::open(const Offer& offer, UniqueFd fd, int device) {
  DeviceGuard guard(device);
  ULYSSES_TRY(guard.status());
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory);
  if (offer.kind == Kind::LegacyIpc) {
    cudaIpcMemHandle_t handle;
    std::memcpy(&handle, offer.legacyHandle, sizeof handle);
    void* ptr = nullptr;
    ULYSSES_TRY(runtimeStatus(cudaIpcOpenMemHandle(&ptr, handle, cudaIpcMemLazyEnablePeerAccess),
                              "cudaIpcOpenMemHandle", device));
    memory->held_ = Held::LegacyMapping;
    memory->address_ = reinterpret_cast<uint64_t>(ptr) + offer.offset;
  } else {
    const Driver& driver = Driver::instance();
    if (!driver.complete) return Status(ulyssesNotSupported, "the CUDA driver has no virtual memory management");
    CUmemGenericAllocationHandle handle = 0;
    ULYSSES_TRY(driver.status(driver.importHandle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                              "cuMemImportFromShareableHandle", device));
    const Status mapped = memory->mapVmm(handle, offer.mappedBytes, device);
    driver.release(handle);
    ULYSSES_TRY(mapped);
    memory->address_ += offer.offset;
  }
  memory->offer_ = offer;
  memory->device_ = device;
  return memory;
}

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::open(const std::shared_ptr<DeviceMemory>& owner, int device) {
  if (owner->device_ != device) {
    DeviceGuard guard(device);
    ULYSSES_TRY(guard.status());
    if (owner->offer_.kind == Kind::Vmm) {
      ULYSSES_TRY(owner->letIn(device));
    } else {
      const cudaError_t error = cudaDeviceEnablePeerAccess(owner->device_, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError();
      else
        ULYSSES_TRY(runtimeStatus(error, "cudaDeviceEnablePeerAccess", device));
    }
  }
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory);
  memory->offer_ = owner->offer_;
  memory->device_ = device;
  memory->address_ = owner->address_;
  memory->owner_ = owner;
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (held_ == Held::Nothing) return;
  DeviceGuard guard(device_);
  if (!guard.status().ok()) return;
  const uint64_t start = address_ - (held_ == Held::LegacyAllocation ? 0 : offer_.offset);
  if (held_ == Held::LegacyAllocation || held_ == Held::LegacyMapping) {
    const auto free = held_ == Held::LegacyAllocation ? cudaFree : cudaIpcCloseMemHandle;
    if (free(reinterpret_cast<void*>(start)) != cudaSuccess) cudaGetLastError();
    return;
  }
  const Driver& driver = Driver::instance();
  if (held_ == Held::VmmMapping) driver.unmap(start, offer_.mappedBytes);
  driver.unreserve(start, offer_.mappedBytes);
}

Result<size_t> allocationBytes(const void* ptr) {
  const Driver& driver = Driver::instance();
  if (!driver.complete) return Status(ulyssesNotSupported, "the CUDA driver is too old to tell of allocations");
  CUdeviceptr base = 0;
  size_t bytes = 0;
  int device = -1;
  ULYSSES_TRY(runtimeStatus(cudaGetDevice(&device), "cudaGetDevice", device));
  ULYSSES_TRY(driver.status(driver.addressRange(&base, &bytes, reinterpret_cast<CUdeviceptr>(ptr)),
                            "cuMemGetAddressRange", device));
  return bytes;
}

}  // namespace ulysses

#endif  // ULYSSES_HAVE_CUDA
