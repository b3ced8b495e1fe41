// How GPUs are linked, through NVML: NVLinks, what may be read and written across them, the NVLink domain.
#pragma once

#include "topology/facts.h"

#include <optional>

namespace ulysses {

// Functions of libnvidia-ml under their own names, declared here because nvml.h is missing on most machines. Entries
// that an older library lacks are null.
struct Nvml {
  using Return = int;  // nvmlReturn_t
  using Device = struct nvmlDevice_st*;

  struct PciInfo {  // nvmlPciInfo_t since CUDA 9
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
  };
  struct FabricInfoV1 {  // nvmlGpuFabricInfo_t
    unsigned char clusterUuid[16];
    Return status;
    unsigned cliqueId;
    unsigned char state;
  };
  struct FabricInfoV2 {  // nvmlGpuFabricInfo_v2_t
    unsigned version;
    unsigned char clusterUuid[16];
    Return status;
    unsigned cliqueId;
    unsigned char state;
    unsigned healthMask;
  };

  Return (*nvmlInit)() = nullptr;  // nvmlInit_v2
  Return (*nvmlShutdown)() = nullptr;
  const char* (*nvmlErrorString)(Return result) = nullptr;
  Return (*nvmlSystemGetDriverVersion)(char* version, unsigned length) = nullptr;
  Return (*nvmlDeviceGetCount)(unsigned* count) = nullptr;                         // _v2
  Return (*nvmlDeviceGetHandleByIndex)(unsigned index, Device* device) = nullptr;  // _v2
  Return (*nvmlDeviceGetHandleByUUID)(const char* uuid, Device* device) = nullptr;
  Return (*nvmlDeviceGetUUID)(Device device, char* uuid, unsigned length) = nullptr;
  Return (*nvmlDeviceGetPciInfo)(Device device, PciInfo* info) = nullptr;  // _v3
  Return (*nvmlDeviceGetP2PStatus)(Device from, Device to, int index, int* status) = nullptr;
  Return (*nvmlDeviceGetNvLinkState)(Device device, unsigned link, int* active) = nullptr;
  Return (*nvmlDeviceGetNvLinkRemoteDeviceType)(Device device, unsigned link, int* type) = nullptr;
  Return (*nvmlDeviceGetNvLinkRemotePciInfo)(Device device, unsigned link, PciInfo* info) = nullptr;  // _v2
  Return (*nvmlDeviceGetGpuFabricInfo)(Device device, FabricInfoV1* info) = nullptr;
  Return (*nvmlDeviceGetGpuFabricInfoV)(Device device, FabricInfoV2* info) = nullptr;
};

// Nothing where the machine has no libnvidia-ml.
std::optional<Nvml> loadNvml();

// Adds to facts.gpu, which CUDA has identified, its links and its peers: every GPU that NVML shows, visible to CUDA or
// not. What NVML does not support is left as not reported; what fails is noted.
void queryNvml(const Nvml& nvml, RankFacts& facts);

}  // namespace ulysses
