#include "topology/nccl_library.h"

#include <cstdlib>
#include <string_view>

#include "base/format.h"
#include "topology/library.h"

namespace ulysses {
namespace {

constexpr int kSharesGpus = 23000;  // 2.30: the first that takes ranks which share a GPU

}  // namespace

std::string NcclLibrary::textOf(Result result, const ncclComm* comm) const {
  std::string text = ncclGetErrorString != nullptr ? ncclGetErrorString(result) : formatText("error {}", result);
  if (ncclGetLastError == nullptr) return text;
  const char* last = ncclGetLastError(comm);
  return last != nullptr && *last != '\0' ? formatText("{} ({})", text, last) : text;
}

std::optional<NcclLibrary> loadNccl() {
  void* library = openLibrary({"libnccl.so.2"});
  if (library == nullptr) return std::nullopt;
  NcclLibrary nccl;
#define ULYSSES_LOOK_UP(name) lookUp(library, #name, nccl.name)
  ULYSSES_LOOK_UP(ncclGetVersion);
  ULYSSES_LOOK_UP(ncclGetUniqueId);
  ULYSSES_LOOK_UP(ncclCommInitRank);
  ULYSSES_LOOK_UP(ncclCommDestroy);
  ULYSSES_LOOK_UP(ncclCommAbort);
  ULYSSES_LOOK_UP(ncclCommGetAsyncError);
  ULYSSES_LOOK_UP(ncclCommCount);
  ULYSSES_LOOK_UP(ncclCommUserRank);
  ULYSSES_LOOK_UP(ncclCommCuDevice);
  ULYSSES_LOOK_UP(ncclAllGather);
  ULYSSES_LOOK_UP(ncclAlltoAll);
  ULYSSES_LOOK_UP(ncclSend);
  ULYSSES_LOOK_UP(ncclRecv);
  ULYSSES_LOOK_UP(ncclGroupStart);
  ULYSSES_LOOK_UP(ncclGroupEnd);
  ULYSSES_LOOK_UP(ncclCommInitRankConfig);
  ULYSSES_LOOK_UP(ncclMemAlloc);
  ULYSSES_LOOK_UP(ncclMemFree);
  ULYSSES_LOOK_UP(ncclCommWindowRegister);
  ULYSSES_LOOK_UP(ncclCommWindowDeregister);
  ULYSSES_LOOK_UP(ncclTeamLsa);
  ULYSSES_LOOK_UP(ncclGetLsaDevicePointer);
  ULYSSES_LOOK_UP(ncclGetErrorString);
  ULYSSES_LOOK_UP(ncclGetLastError);
#undef ULYSSES_LOOK_UP
  const bool complete = nccl.ncclGetVersion && nccl.ncclGetUniqueId && nccl.ncclCommInitRank && nccl.ncclCommDestroy &&
                        nccl.ncclCommAbort && nccl.ncclCommGetAsyncError && nccl.ncclCommCount &&
                        nccl.ncclCommUserRank && nccl.ncclCommCuDevice && nccl.ncclAllGather && nccl.ncclSend &&
                        nccl.ncclRecv && nccl.ncclGroupStart && nccl.ncclGroupEnd;
  if (!complete || nccl.ncclGetVersion(&nccl.version) != 0) return std::nullopt;
  return nccl;
}

bool NcclLibrary::offersWindows() const {
  return ncclCommInitRankConfig && ncclMemAlloc && ncclMemFree && ncclCommWindowRegister && ncclCommWindowDeregister &&
         ncclTeamLsa && ncclGetLsaDevicePointer;
}

// Since 2.9 the code is major * 10000 + minor * 100 + patch; before, major * 1000.
std::string ncclVersionText(int version) {
  const int thousand = version >= 10000 ? 10000 : 1000;
  return formatText("{}.{}.{}", version / thousand, version % thousand / 100, version % 100);
}

NcclFacts ncclFacts(const std::optional<NcclLibrary>& nccl) {
  NcclFacts facts;
  if (!nccl) return facts;
  facts.version = nccl->version;
  const auto isSet = [](const char* name, std::string_view to) {
    const char* value = std::getenv(name);
    return value != nullptr && value == to;
  };
  facts.sharesGpusWhereAsked = isSet("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  facts.offersWindows = nccl->offersWindows();
  facts.cuMemOff = isSet("NCCL_CUMEM_ENABLE", "0");
  facts.blocksAlways = isSet("NCCL_COMM_BLOCKING", "1");
  return facts;
}

std::string ncclRefusal(std::span<const NcclFacts> ranks, int ranksPerDevice) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    const NcclFacts& facts = ranks[r];
    if (facts.version == 0) return formatText("rank {} finds no libnccl.so.2", r);
    if (facts.version != ranks[0].version)
      return formatText("rank 0 has NCCL {}, rank {} has {}", ncclVersionText(ranks[0].version), r,
                        ncclVersionText(facts.version));
  }
  if (ranksPerDevice <= 1) return "";
  if (ranks[0].version < kSharesGpus)
    return formatText("ranks share a GPU, which NCCL takes from {} on, and this is {}", ncclVersionText(kSharesGpus),
                      ncclVersionText(ranks[0].version));
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].sharesGpusWhereAsked == 0)
      return formatText(
          "ranks share a GPU, which NCCL takes where NCCL_MULTI_RANK_GPU_ENABLE=1 is set, and rank {} has it not", r);
  return "";
}

}  // namespace ulysses
