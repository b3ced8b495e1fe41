#include "common/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace ulysses::perf {

const Library& Library::linked() {
  static const Library library = [] {
    Library l;
#define ULYSSES_PERF_CALL(name) l.name = &::ulysses##name;
    ULYSSES_PERF_CALLS(ULYSSES_PERF_CALL)
#undef ULYSSES_PERF_CALL
    return l;
  }();
  return library;
}

Result<Library> Library::load(const std::string& path) {
  // dlopen searches the system for a name without a slash, which would find the linked library itself.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  // Deep binding: what the other build calls of its own interface is its own, not the linked library's.
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!handle) return Status(ulyssesSystemError, fmt::format("--lib {}: {}", path, dlerror()));
  Library l;
  std::string missing;
#define ULYSSES_PERF_CALL(name)                                                \
  l.name = reinterpret_cast<decltype(l.name)>(dlsym(handle, "ulysses" #name)); \
  if (!l.name) missing += missing.empty() ? "ulysses" #name : ", ulysses" #name;
  ULYSSES_PERF_CALLS(ULYSSES_PERF_CALL)
#undef ULYSSES_PERF_CALL
  if (missing.empty()) return l;
  return Status(ulyssesInvalidArgument,
                fmt::format("--lib {}: not a build of this library, without {}", path, missing));
}

std::string Library::version() const {
  int code = 0;
  GetVersion(&code);
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

Status Library::status(ulyssesResult_t result, const char* call) const {
  if (result == ulyssesSuccess) return {};
  std::string text = std::string(call) + ": " + GetErrorString(result);
  if (const char* detail = GetLastError(); detail && *detail) text += std::string(": ") + detail;
  return {result, std::move(text)};
}

Status Communicator::open(Rank& rank, int timeoutSeconds, size_t windowBytes, Device* device) {
  device_ = device;
  ulyssesUniqueId id{};
  Status made;
  if (rank.first()) made = status(library_.GetUniqueId(&id), "ulyssesGetUniqueId");
  ULYSSES_TRY(rank.agree(made));
  id = rank.allgather(id)[0];
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.memory = device ? ulyssesMemoryCuda : ulyssesMemoryHost;
  config.windowCapBytes = windowBytes;
  if (timeoutSeconds > 0) config.timeoutMs = timeoutSeconds * 1000;
  ulyssesComm_t comm = nullptr;
  made = status(library_.CommInitRankConfig(&comm, rank.count(), id, rank.id(), &config), "ulyssesCommInitRankConfig");
  comm_.reset(comm);
  return rank.agree(made);
}

ulyssesCommInfo_t Communicator::info() const {
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
  library_.CommGetInfo(get(), &info);
  return info;
}

Result<int> Communicator::stagedChunks(const ulyssesA2ADesc_t& desc) const {
  ulyssesPlan_t plan = nullptr;
  ULYSSES_TRY(status(library_.PlanCreate(&plan, 1, &desc, get()), "ulyssesPlanCreate"));
  ulyssesPlanInfo_t info = ULYSSES_PLAN_INFO_INITIALIZER;
  const Status asked = status(library_.PlanGetInfo(plan, &info), "ulyssesPlanGetInfo");
  library_.PlanDestroy(plan);
  ULYSSES_TRY(asked);
  return info.chunks;
}

Status Params::open(const ulyssesParamConfig_t& config) {
  ulyssesParamComm_t params = nullptr;
  const Status made = comm_.status(lib().ParamCommCreate(&params, comm_.get(), &config), "ulyssesParamCommCreate");
  params_.reset(params);
  return made;
}

Status Params::add(const std::vector<ulyssesParamDesc_t>& descs) {
  int group = 0;
  return comm_.status(lib().ParamGroupAdd(params_.get(), static_cast<int>(descs.size()), descs.data(), &group),
                      "ulyssesParamGroupAdd");
}

ulyssesParamStats_t Params::stats() const {
  ulyssesParamStats_t stats = ULYSSES_PARAM_STATS_INITIALIZER;
  lib().ParamGetStats(params_.get(), &stats);
  return stats;
}

}  // namespace ulysses::perf
