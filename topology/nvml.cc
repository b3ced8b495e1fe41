#include "topology/nvml.h"

#include <algorithm>

#include "base/format.h"
#include "topology/library.h"

namespace ulysses {
namespace {

constexpr int kNvmlSuccess = 0;
constexpr int kNvmlErrorNotSupported = 3;
constexpr int kNvmlErrorNotFound = 6;

constexpr int kP2pRead = 0, kP2pWrite = 1, kP2pNvlink = 2;  // nvmlGpuP2PCapsIndex_t
constexpr int kRemoteIsSwitch = 2;                          // NVML_NVLINK_DEVICE_TYPE_SWITCH
constexpr unsigned kMaxLinks = 36;                          // NVML_NVLINK_MAX_LINKS of the newest library
constexpr unsigned kFabricInfoV2 = sizeof(Nvml::FabricInfoV2) | 2u << 24;

static_assert(sizeof(Nvml::PciInfo) == 68 && sizeof(Nvml::FabricInfoV1) == 28 && sizeof(Nvml::FabricInfoV2) == 36,
              "these structures are NVML's binary interface");

// One pass over NVML: what it asks, and what it writes down when the answer is an error.
class Query {
 public:
  Query(const Nvml& nvml, RankFacts& facts) : nvml_(nvml), facts_(facts) {}

  // For what people want to see and the verdict does not need: no answer is fine.
  template <class... Parameters, class... Arguments>
  static bool answered(Nvml::Return (*function)(Parameters...), Arguments... arguments) {
    return function && function(arguments...) == kNvmlSuccess;
  }

  // For what the verdict needs: errors are noted. Not being supported is none: the facts then stay as not reported.
  template <class... Parameters, class... Arguments>
  bool ask(const char* name, Nvml::Return (*function)(Parameters...), Arguments... arguments) {
    if (!function) return false;
    const Nvml::Return result = function(arguments...);
    if (result != kNvmlSuccess && result != kNvmlErrorNotSupported) note(name, result);
    return result == kNvmlSuccess;
  }

  std::string text(Nvml::Return result) const {
    const char* words = nvml_.nvmlErrorString ? nvml_.nvmlErrorString(result) : nullptr;
    return formatText("{} (NVML error {})", words ? words : "unknown error", result);
  }

  void note(const char* name, Nvml::Return result) {
    const FailedQuery failed{name, text(result)};
    // One lost GPU fails the same way for every peer: once is enough.
    auto& list = facts_.failedQueries;
    if (std::find(list.begin(), list.end(), failed) == list.end()) list.push_back(failed);
  }

  // The handle of the GPU that CUDA chose. CUDA does not say whether a UUID is that of a MIG instance; NVML does, by
  // the prefix under which it knows it.
  Nvml::Device handle(GpuFacts& gpu) {
    Nvml::Device device = nullptr;
    if (!nvml_.nvmlDeviceGetHandleByUUID) return device;
    Nvml::Return result = nvml_.nvmlDeviceGetHandleByUUID(gpu.uuid.c_str(), &device);
    if (result == kNvmlErrorNotFound) {
      const std::string instance = "MIG-" + gpu.uuid.substr(gpu.uuid.find('-') + 1);
      result = nvml_.nvmlDeviceGetHandleByUUID(instance.c_str(), &device);
      if (result == kNvmlSuccess) {
        gpu.uuid = instance;
        gpu.mig = true;
      }
    }
    if (result == kNvmlSuccess) return device;
    note("nvmlDeviceGetHandleByUUID", result);
    return nullptr;
  }

  void fabric(Nvml::Device device, FabricFacts& fabric) {
    Nvml::FabricInfoV2 info{};
    info.version = kFabricInfoV2;
    if (nvml_.nvmlDeviceGetGpuFabricInfoV) {
      if (!answered(nvml_.nvmlDeviceGetGpuFabricInfoV, device, &info)) return;
    } else {
      Nvml::FabricInfoV1 first{};
      if (!answered(nvml_.nvmlDeviceGetGpuFabricInfo, device, &first)) return;
      std::copy(std::begin(first.clusterUuid), std::end(first.clusterUuid), info.clusterUuid);
      info.status = first.status;
      info.cliqueId = first.cliqueId;
      info.state = first.state;
    }
    constexpr FabricState kStates[] = {FabricState::NotSupported, FabricState::NotStarted, FabricState::InProgress,
                                       FabricState::Completed};
    if (info.state >= std::size(kStates)) return;
    fabric.state = kStates[info.state];
    if (fabric.state != FabricState::Completed) return;
    if (info.status != kNvmlSuccess) {
      facts_.warnings.push_back("the GPU is in no NVLink domain: its registration ended with " + text(info.status));
      fabric.state = FabricState::NotReported;
      return;
    }
    fabric.cliqueId = info.cliqueId;
    if (std::any_of(std::begin(info.clusterUuid), std::end(info.clusterUuid), [](unsigned char c) { return c != 0; }))
      for (const unsigned char byte : info.clusterUuid) fabric.clusterUuid += formatText("{:02x}", byte);
  }

  // Counts the links that are up; returns where those without a switch lead, as PCI ids.
  std::vector<std::string> links(Nvml::Device device, GpuFacts& gpu) {
    std::vector<std::string> remotes;
    for (unsigned link = 0; link < kMaxLinks; ++link) {
      int active = 0;
      // Links beyond the GPU's last one are an invalid argument to some versions and not supported to others.
      if (!answered(nvml_.nvmlDeviceGetNvLinkState, device, link, &active) || !active) continue;
      ++gpu.activeLinks;
      int type = -1;
      Nvml::PciInfo remote{};
      if (answered(nvml_.nvmlDeviceGetNvLinkRemoteDeviceType, device, link, &type) && type == kRemoteIsSwitch)
        ++gpu.switchLinks;
      else if (answered(nvml_.nvmlDeviceGetNvLinkRemotePciInfo, device, link, &remote))
        remotes.push_back(pciText(remote));
    }
    return remotes;
  }

  void peers(Nvml::Device device, GpuFacts& gpu, const std::vector<std::string>& remotes) {
    unsigned count = 0;
    if (!ask("nvmlDeviceGetCount", nvml_.nvmlDeviceGetCount, &count)) return;
    for (unsigned i = 0; i < count; ++i) {
      Nvml::Device other = nullptr;
      char uuid[96] = {};
      if (!ask("nvmlDeviceGetHandleByIndex", nvml_.nvmlDeviceGetHandleByIndex, i, &other) ||
          !ask("nvmlDeviceGetUUID", nvml_.nvmlDeviceGetUUID, other, uuid, unsigned{sizeof uuid}) || uuid == gpu.uuid)
        continue;
      PeerFacts& peer = entry(gpu, uuid);
      peer.read = status(device, other, kP2pRead);
      peer.write = status(device, other, kP2pWrite);
      peer.nvlink = status(device, other, kP2pNvlink);
      Nvml::PciInfo pci{};
      if (!remotes.empty() && answered(nvml_.nvmlDeviceGetPciInfo, other, &pci))
        peer.directLinks = static_cast<int>(std::count(remotes.begin(), remotes.end(), pciText(pci)));
    }
  }

 private:
  P2pStatus status(Nvml::Device from, Nvml::Device to, int index) {
    constexpr P2pStatus kStatuses[] = {P2pStatus::Ok,
                                       P2pStatus::ChipsetNotSupported,
                                       P2pStatus::GpuNotSupported,
                                       P2pStatus::TopologyNotSupported,
                                       P2pStatus::DisabledByRegkey,
                                       P2pStatus::NotSupported,
                                       P2pStatus::Unknown};
    int value = 0;
    if (!ask("nvmlDeviceGetP2PStatus", nvml_.nvmlDeviceGetP2PStatus, from, to, index, &value))
      return P2pStatus::NotReported;
    return value >= 0 && value < static_cast<int>(std::size(kStatuses)) ? kStatuses[value] : P2pStatus::Unknown;
  }

  static PeerFacts& entry(GpuFacts& gpu, const std::string& uuid) {
    for (PeerFacts& peer : gpu.peers)
      if (peer.uuid == uuid) return peer;
    gpu.peers.push_back({});
    gpu.peers.back().uuid = uuid;
    return gpu.peers.back();
  }

  static std::string pciText(const Nvml::PciInfo& pci) {
    return formatText("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
  }

  const Nvml& nvml_;
  RankFacts& facts_;
};

}  // namespace

std::optional<Nvml> loadNvml() {
  void* library = openLibrary({"libnvidia-ml.so.1"});
  if (!library) return std::nullopt;
  Nvml nvml;
  lookUp(library, "nvmlInit_v2", nvml.nvmlInit);
  lookUp(library, "nvmlShutdown", nvml.nvmlShutdown);
  lookUp(library, "nvmlErrorString", nvml.nvmlErrorString);
  lookUp(library, "nvmlSystemGetDriverVersion", nvml.nvmlSystemGetDriverVersion);
  lookUp(library, "nvmlDeviceGetCount_v2", nvml.nvmlDeviceGetCount);
  lookUp(library, "nvmlDeviceGetHandleByIndex_v2", nvml.nvmlDeviceGetHandleByIndex);
  lookUp(library, "nvmlDeviceGetHandleByUUID", nvml.nvmlDeviceGetHandleByUUID);
  lookUp(library, "nvmlDeviceGetUUID", nvml.nvmlDeviceGetUUID);
  lookUp(library, "nvmlDeviceGetPciInfo_v3", nvml.nvmlDeviceGetPciInfo);
  lookUp(library, "nvmlDeviceGetP2PStatus", nvml.nvmlDeviceGetP2PStatus);
  lookUp(library, "nvmlDeviceGetNvLinkState", nvml.nvmlDeviceGetNvLinkState);
  lookUp(library, "nvmlDeviceGetNvLinkRemoteDeviceType", nvml.nvmlDeviceGetNvLinkRemoteDeviceType);
  lookUp(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", nvml.nvmlDeviceGetNvLinkRemotePciInfo);
  lookUp(library, "nvmlDeviceGetGpuFabricInfo", nvml.nvmlDeviceGetGpuFabricInfo);
  lookUp(library, "nvmlDeviceGetGpuFabricInfoV", nvml.nvmlDeviceGetGpuFabricInfoV);
  return nvml;
}

void queryNvml(const Nvml& nvml, RankFacts& facts) {
  Query query(nvml, facts);
  if (!nvml.nvmlInit || !nvml.nvmlShutdown) {
    facts.failedQueries.push_back({"nvmlInit", "this libnvidia-ml lacks the function"});
    return;
  }
  if (const Nvml::Return result = nvml.nvmlInit(); result != kNvmlSuccess) {
    query.note("nvmlInit", result);
    return;
  }
  char version[96] = {};
  if (Query::answered(nvml.nvmlSystemGetDriverVersion, version, unsigned{sizeof version}))
    facts.driverVersion = version;
  if (facts.gpu) {
    GpuFacts& gpu = *facts.gpu;
    if (const Nvml::Device device = query.handle(gpu); device && !gpu.mig) {  // a MIG instance has no links
      query.fabric(device, gpu.fabric);
      query.peers(device, gpu, query.links(device, gpu));
    }
  }
  nvml.nvmlShutdown();
}

}  // namespace ulysses
