#include "topology/cuda_driver.h"

#include <algorithm>
#include <cctype>

#include "base/format.h"
#include "topology/library.h"

namespace ulysses {
namespace {

constexpr int kCudaSuccess = 0;
constexpr int kCudaErrorNoDevice = 100;
constexpr int kAttributeComputeMajor = 75;
constexpr int kAttributeComputeMinor = 76;

std::string errorText(const CudaDriver& cuda, CudaDriver::Result result) {
  const char* text = nullptr;
  if (cuda.cuGetErrorString) cuda.cuGetErrorString(result, &text);
  return formatText("{} (CUDA error {})", text ? text : "unknown error", result);
}

// Asks one question; notes it as failed where there is no such function or it reports an error.
template <class... Parameters, class... Arguments>
bool ask(const CudaDriver& cuda, std::vector<FailedQuery>& failed, const char* name,
         CudaDriver::Result (*function)(Parameters...), Arguments... arguments) {
  if (!function) {
    failed.push_back({name, "this libcuda lacks the function"});
    return false;
  }
  const CudaDriver::Result result = function(arguments...);
  if (result != kCudaSuccess) failed.push_back({name, errorText(cuda, result)});
  return result == kCudaSuccess;
}

std::optional<std::string> uuidOf(const CudaDriver& cuda, int ordinal, CudaDriver::Device& device,
                                  std::vector<FailedQuery>& failed) {
  CudaDriver::Uuid uuid{};
  if (!ask(cuda, failed, "cuDeviceGet", cuda.cuDeviceGet, &device, ordinal) ||
      !ask(cuda, failed, "cuDeviceGetUuid", cuda.cuDeviceGetUuid, &uuid, device))
    return std::nullopt;
  return gpuUuidText(uuid.bytes);
}

}  // namespace

std::optional<CudaDriver> loadCudaDriver() {
  void* library = openLibrary({"libcuda.so.1"});
  if (!library) return std::nullopt;
  CudaDriver cuda;
  lookUp(library, "cuInit", cuda.cuInit);
  lookUp(library, "cuDeviceGetCount", cuda.cuDeviceGetCount);
  lookUp(library, "cuDeviceGet", cuda.cuDeviceGet);
  lookUp(library, "cuDeviceGetName", cuda.cuDeviceGetName);
  lookUp(library, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid);
  if (!cuda.cuDeviceGetUuid) lookUp(library, "cuDeviceGetUuid", cuda.cuDeviceGetUuid);
  lookUp(library, "cuDeviceGetAttribute", cuda.cuDeviceGetAttribute);
  lookUp(library, "cuDeviceGetPCIBusId", cuda.cuDeviceGetPCIBusId);
  lookUp(library, "cuDeviceCanAccessPeer", cuda.cuDeviceCanAccessPeer);
  lookUp(library, "cuGetErrorString", cuda.cuGetErrorString);
  return cuda;
}

int countGpus(const CudaDriver& cuda, std::vector<FailedQuery>& failed) {
  // A driver without a GPU is an answer, not a failure.
  if (cuda.cuInit && cuda.cuInit(0) == kCudaErrorNoDevice) return 0;
  int count = 0;
  if (!ask(cuda, failed, "cuInit", cuda.cuInit, 0u) ||
      !ask(cuda, failed, "cuDeviceGetCount", cuda.cuDeviceGetCount, &count))
    return 0;
  return count;
}

void queryCuda(const CudaDriver& cuda, int ordinal, RankFacts& facts) {
  std::vector<FailedQuery>& failed = facts.failedQueries;
  facts.gpuCount = countGpus(cuda, failed);
  if (facts.gpuCount == 0) return;
  if (ordinal >= facts.gpuCount) {
    failed.push_back({"cuDeviceGet", formatText("device {} was asked for, and this process sees {}: check "
                                                "CUDA_VISIBLE_DEVICES",
                                                ordinal, facts.gpuCount)});
    return;
  }

  CudaDriver::Device device = 0;
  const std::optional<std::string> uuid = uuidOf(cuda, ordinal, device, failed);
  if (!uuid) return;
  GpuFacts gpu;
  gpu.uuid = *uuid;
  char text[256] = {};
  if (ask(cuda, failed, "cuDeviceGetName", cuda.cuDeviceGetName, text, int{sizeof text - 1}, device)) gpu.name = text;
  if (ask(cuda, failed, "cuDeviceGetPCIBusId", cuda.cuDeviceGetPCIBusId, text, int{sizeof text - 1}, device)) {
    gpu.pciId = text;
    std::transform(gpu.pciId.begin(), gpu.pciId.end(), gpu.pciId.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  }
  ask(cuda, failed, "cuDeviceGetAttribute", cuda.cuDeviceGetAttribute, &gpu.computeMajor, kAttributeComputeMajor,
      device);
  ask(cuda, failed, "cuDeviceGetAttribute", cuda.cuDeviceGetAttribute, &gpu.computeMinor, kAttributeComputeMinor,
      device);

  for (int other = 0; other < facts.gpuCount; ++other) {
    if (other == ordinal) continue;
    CudaDriver::Device peer = 0;
    int can = 0;
    const std::optional<std::string> peerUuid = uuidOf(cuda, other, peer, failed);
    if (!peerUuid || *peerUuid == gpu.uuid) continue;
    if (!ask(cuda, failed, "cuDeviceCanAccessPeer", cuda.cuDeviceCanAccessPeer, &can, device, peer)) continue;
    PeerFacts entry;
    entry.uuid = *peerUuid;
    entry.peerAccess = can != 0;
    gpu.peers.push_back(std::move(entry));
  }
  facts.gpu = std::move(gpu);
}

std::string gpuUuidText(const unsigned char (&bytes)[16]) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += formatText("{:02x}", bytes[i]);
  }
  return text;
}

}  // namespace ulysses
