// What one rank knows about where it runs. Plain data: gathered by probe(), exchanged by the bootstrap, kept in facts
// files, judged by decide().
#pragma once

#include "base/status.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ulysses {

// Inode numbers of /proc/self/ns/*; 0 where the kernel does not tell.
struct Namespaces {
  uint64_t mnt = 0, pid = 0, net = 0, ipc = 0;
  friend bool operator==(const Namespaces&, const Namespaces&) = default;
};

// What NVML says of one peer-to-peer capability from one GPU to another.
enum class P2pStatus {
  NotReported,  // nobody was asked, or the query is not supported
  Ok,
  ChipsetNotSupported,
  GpuNotSupported,
  TopologyNotSupported,
  DisabledByRegkey,
  NotSupported,
  Unknown,
};

enum class FabricState { NotReported, NotSupported, NotStarted, InProgress, Completed };

// Membership of an NVLink domain behind NVSwitches, which may span hosts.
struct FabricFacts {
  FabricState state = FabricState::NotReported;
  std::string clusterUuid;  // 32 hexadecimal digits; empty for the all-zero UUID of a domain that ends at its host
  uint32_t cliqueId = 0;
  friend bool operator==(const FabricFacts&, const FabricFacts&) = default;
};

// Another GPU as this rank's GPU sees it: one direction of a pair.
struct PeerFacts {
  std::string uuid;
  std::optional<bool> peerAccess;  // CUDA's answer; nothing where the peer is not visible to this process
  P2pStatus read = P2pStatus::NotReported;
  P2pStatus write = P2pStatus::NotReported;
  P2pStatus nvlink = P2pStatus::NotReported;
  int directLinks = 0;  // active NVLinks that end at this peer, no switch between
  friend bool operator==(const PeerFacts&, const PeerFacts&) = default;
};

struct GpuFacts {
  std::string uuid;   // "GPU-..." or "MIG-...": the physical identity, whatever CUDA_VISIBLE_DEVICES says
  std::string pciId;  // "0000:1b:00.0"
  std::string name;
  int computeMajor = 0, computeMinor = 0;
  bool mig = false;
  int numaNode = -1;    // -1 where unknown
  std::string cpuset;   // processors near the GPU as a list, "0-15,32-47"; empty where unknown
  int activeLinks = 0;  // NVLinks that are up
  int switchLinks = 0;  // of these, the ones that end at an NVSwitch
  FabricFacts fabric;
  std::vector<PeerFacts> peers;
  friend bool operator==(const GpuFacts&, const GpuFacts&) = default;
};

// A question that got no answer although it should have.
struct FailedQuery {
  std::string query, text;
  friend bool operator==(const FailedQuery&, const FailedQuery&) = default;
};

struct RankFacts {
  std::string hostId;  // the kernel's boot id, or ULYSSES_HOSTID: what "the same host" means
  std::string hostName;
  Namespaces namespaces;
  int numaNodes = 0;   // 0 where unknown
  std::string cpuset;  // processors this rank may run on
  int gpuCount = 0;    // GPUs that CUDA shows to this process
  std::optional<GpuFacts> gpu;
  std::string driverVersion;  // NVIDIA's, as NVML gives it
  int ncclVersion = 0;        // NCCL_VERSION_CODE of the loaded library; 0 = none
  int ncclLsaSize = 0;        // ranks in NCCL's own LSA team, where there is a communicator to ask; 0 = not asked
  std::vector<FailedQuery> failedQueries;  // these count in the verdict
  std::vector<std::string> warnings;       // these are only shown
  friend bool operator==(const RankFacts&, const RankFacts&) = default;
};

// A file of facts: one entry per rank, and where they come from.
struct FactsFile {
  std::string source;
  std::vector<RankFacts> ranks;
};

// Bounds of what is read. Facts come from files and from peers, so nothing in them is trusted.
inline constexpr size_t kMaxFactsBytes = size_t{16} << 20;
inline constexpr size_t kMaxFactsRanks = 1024;
inline constexpr size_t kMaxFactsPeers = 1024;
inline constexpr size_t kMaxFactsNotes = 64;
inline constexpr size_t kMaxFactsString = 1024;

const char* p2pStatusName(P2pStatus status);
const char* fabricStateName(FabricState state);

// JSON text; indent -1 gives one line, for sending.
std::string factsToJson(const FactsFile& facts, int indent = 2);

// The inverse. `name` is what messages call the text (a file's path, "facts of rank 3"). Anything unexpected (a
// missing, doubled or unknown key, a value out of bounds) is ulyssesInvalidArgument with its position and what was
// expected there.
Result<FactsFile> factsFromJson(std::string_view text, const std::string& name);

// Reads a facts file such as ULYSSES_TOPO_FILE names.
Result<FactsFile> loadFactsFile(const std::string& path);

}  // namespace ulysses
