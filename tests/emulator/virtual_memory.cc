// The driver's virtual memory management: allocations are memory files, and are mapped where address space was
// reserved.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>

#include "emulator/gpus.h"
#include "emulator/runtime.h"

namespace {

constexpr size_t kGranularity = size_t{2} << 20;

struct File {
  int fd = -1;
  size_t bytes = 0;
  int gpu = 0;  // by number: its name says it to other processes
  ~File() { close(fd); }
};
struct Mapping {
  size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
  std::shared_ptr<File> file;
  std::set<int> letIn;  // devices
};

constexpr char kName[] = "emulated-gpu-%d";

struct Memory {
  std::mutex mutex;
  CUmemGenericAllocationHandle next = 1;
  struct Held {
    std::shared_ptr<File> file;
    int count = 1;
  };
  std::map<CUmemGenericAllocationHandle, Held> handles;
  std::map<CUdeviceptr, Mapping> mappings;

  static Memory& instance() {
    static Memory* memory = new Memory;
    return *memory;
  }
  CUmemGenericAllocationHandle hold(std::shared_ptr<File> file) {
    handles[next] = {std::move(file), 1};
    return next++;
  }
  const Mapping* at(CUdeviceptr address, CUdeviceptr* base) const {
    auto found = mappings.upper_bound(address);
    if (found == mappings.begin()) return nullptr;
    --found;
    if (address >= found->first + found->second.bytes) return nullptr;
    *base = found->first;
    return &found->second;
  }
};

CUresult getErrorString(CUresult, const char** text) {
  *text = "an error of the emulator";
  return CUDA_SUCCESS;
}
CUresult granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
                unsigned long long) {
  size_t free = 0, total = 0;
  if (emulatedGpu(prop->location.id) < 0) return CUDA_ERROR_INVALID_DEVICE;
  cudaMemGetInfo(&free, &total);
  if (bytes > free) return CUDA_ERROR_OUT_OF_MEMORY;
  auto file = std::make_shared<File>();
  file->gpu = emulatedGpu(prop->location.id);
  char name[32];
  std::snprintf(name, sizeof name, kName, file->gpu);
  file->fd = memfd_create(name, MFD_CLOEXEC);
  file->bytes = bytes;
  if (file->fd < 0 || ftruncate(file->fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  *handle = m.hold(std::move(file));
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  const auto found = m.handles.find(handle);
  if (found == m.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.count == 0) m.handles.erase(found);
  return CUDA_SUCCESS;
}
CUresult exportHandle(void* fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType, unsigned long long) {
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  const auto found = m.handles.find(handle);
  if (found == m.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(fd) = fcntl(found->second.file->fd, F_DUPFD_CLOEXEC, 0);
  return *static_cast<int*>(fd) >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
CUresult importHandle(CUmemGenericAllocationHandle* handle, void* fd, CUmemAllocationHandleType) {
  auto file = std::make_shared<File>();
  file->fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(fd)), F_DUPFD_CLOEXEC, 0);
  if (file->fd < 0) return CUDA_ERROR_INVALID_VALUE;
  file->bytes = static_cast<size_t>(lseek(file->fd, 0, SEEK_END));
  char path[64], target[64] = {};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd);
  if (readlink(path, target, sizeof target - 1) < 0 || std::sscanf(target, "/memfd:emulated-gpu-%d", &file->gpu) != 1)
    return CUDA_ERROR_INVALID_VALUE;
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  *handle = m.hold(std::move(file));
  return CUDA_SUCCESS;
}
CUresult retain(CUmemGenericAllocationHandle* handle, void* address) {
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  CUdeviceptr base = 0;
  const Mapping* mapping = m.at(reinterpret_cast<CUdeviceptr>(address), &base);
  if (mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = m.handles.find(mapping->handle);
  if (found != m.handles.end()) {
    ++found->second.count;
  } else {
    m.handles[mapping->handle] = {mapping->file, 1};
  }
  *handle = mapping->handle;
  return CUDA_SUCCESS;
}
CUresult reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void* space = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *address = reinterpret_cast<CUdeviceptr>(space);
  return space != MAP_FAILED ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult unreserve(CUdeviceptr address, size_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  const auto found = m.handles.find(handle);
  if (found == m.handles.end() || offset + bytes > found->second.file->bytes) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                  found->second.file->fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  m.mappings[address] = {bytes, handle, found->second.file, {}};
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, size_t bytes) {
  cudaDeviceSynchronize();
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  m.mappings.erase(address);
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
  return CUDA_SUCCESS;
}
CUresult setAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  const auto found = m.mappings.find(address);
  if (found == m.mappings.end() || found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (emulatedGpu(access[i].location.id) < 0) return CUDA_ERROR_INVALID_DEVICE;
    found->second.letIn.insert(access[i].location.id);
  }
  return CUDA_SUCCESS;
}
CUresult addressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  if (const Mapping* mapping = m.at(address, base)) {
    *bytes = mapping->bytes;
    return CUDA_SUCCESS;
  }
  return ulysses::emulator::allocationOf(reinterpret_cast<void*>(address), base, bytes) ? CUDA_SUCCESS
                                                                                        : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

namespace ulysses::emulator {

bool isMapped(const void* ptr, int* device) {
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  CUdeviceptr base = 0;
  const Mapping* mapping = m.at(reinterpret_cast<CUdeviceptr>(ptr), &base);
  if (mapping == nullptr) return false;
  if (device == nullptr) return true;
  *device = emulatedVisible() - 1;
  while (*device >= 0 && emulatedGpu(*device) != mapping->file->gpu) --*device;
  return true;
}

bool letsIn(const void* ptr, int device, bool* in) {
  Memory& m = Memory::instance();
  const std::lock_guard lock(m.mutex);
  CUdeviceptr base = 0;
  const Mapping* mapping = m.at(reinterpret_cast<CUdeviceptr>(ptr), &base);
  if (mapping != nullptr) *in = mapping->letIn.count(device) != 0;
  return mapping != nullptr;
}

}  // namespace ulysses::emulator

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string_view, void*> functions{
      {"cuGetErrorString", reinterpret_cast<void*>(&getErrorString)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&granularity)},
      {"cuMemCreate", reinterpret_cast<void*>(&create)},
      {"cuMemRelease", reinterpret_cast<void*>(&release)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(&exportHandle)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(&importHandle)},
      {"cuMemRetainAllocationHandle", reinterpret_cast<void*>(&retain)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&unreserve)},
      {"cuMemMap", reinterpret_cast<void*>(&map)},
      {"cuMemUnmap", reinterpret_cast<void*>(&unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&setAccess)},
      {"cuMemGetAddressRange", reinterpret_cast<void*>(&addressRange)}};
  const auto found = functions.find(name);
  *function = found != functions.end() ? found->second : nullptr;
  *result = found != functions.end() ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
