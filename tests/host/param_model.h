// Groups of parameters as one rank of a test holds them, with contents that tell group, parameter, version and place.
#pragma once

#include <ulysses/ulysses.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/ranks.h"
#include "support/tensors.h"

namespace ulysses::testing {

inline bool lastErrorNames(std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (std::string(ulyssesGetLastError()).find(word) == std::string::npos) return false;
  return true;
}

// A parameter and this rank's shard of it. Byte i of the whole is a function of group, parameter, version and i.
struct Param {
  size_t count, elementBytes, salt;
  std::vector<size_t> splits;
  std::vector<unsigned char> shard;

  static unsigned char byte(size_t i, size_t salt) { return static_cast<unsigned char>((i * 131 + salt * 7919) >> 3); }
  size_t begin(int rank) const {
    size_t at = 0;
    for (int r = 0; r < rank; ++r) at += splits[static_cast<size_t>(r)];
    return at * elementBytes;
  }
  void fill(int rank, size_t newSalt) {
    salt = newSalt;
    for (size_t i = 0; i < shard.size(); ++i) shard[i] = byte(begin(rank) + i, salt);
  }
  bool matches(const void* gathered) const {
    for (size_t i = 0; i < count * elementBytes; ++i)
      if (static_cast<const unsigned char*>(gathered)[i] != byte(i, salt)) return false;
    return true;
  }
};

// Groups of parameters as one rank holds them.
class Model {
 public:
  Model(int rank, int nranks) : rank_(rank), nranks_(nranks) {}
  ~Model() {
    if (params != nullptr) ulyssesParamCommDestroy(params);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  ulyssesResult_t open(ulyssesComm_t comm, ulyssesResidency_t residency = ulyssesResidencyPersistent, size_t budget = 0,
                       int depth = 0) {
    ulyssesParamConfig_t config = ULYSSES_PARAM_CONFIG_INITIALIZER;
    config.residency = residency;
    config.budgetBytes = budget;
    config.prefetchDepth = depth;
    return ulyssesParamCommCreate(&params, comm, &config);
  }
  ulyssesResult_t add(const std::vector<std::pair<size_t, ulyssesDataType_t>>& shapes,
                      const std::vector<std::vector<size_t>>& splits = {}) {
    static constexpr size_t kElement[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    std::vector<Param> group;
    std::vector<ulyssesParamDesc_t> descs;
    for (size_t i = 0; i < shapes.size(); ++i) {
      Param p{shapes[i].first, kElement[shapes[i].second], 0, {}, {}};
      for (int r = 0; r < nranks_; ++r)
        p.splits.push_back(splits.empty() ? balanced(p.count, nranks_, r).second : splits[i][static_cast<size_t>(r)]);
      p.shard.resize(p.splits[static_cast<size_t>(rank_)] * p.elementBytes);
      p.fill(rank_, groups.size() * 100 + i + 1);
      group.push_back(std::move(p));
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      ulyssesParamDesc_t d = ULYSSES_PARAM_DESC_INITIALIZER;
      d.count = shapes[i].first;
      d.shardType = d.gatherType = shapes[i].second;
      d.splits = group[i].splits.data();
      d.shard = group[i].shard.data();
      descs.push_back(d);
    }
    groups.push_back(std::move(group));
    int number = -1;
    const ulyssesResult_t result = ulyssesParamGroupAdd(params, static_cast<int>(descs.size()), descs.data(), &number);
    return result == ulyssesSuccess && number != static_cast<int>(groups.size()) - 1 ? ulyssesInternalError : result;
  }
  ulyssesResult_t commit() { return ulyssesParamCommit(params); }

  ulyssesResult_t acquire(int g) {
    pointers.assign(groups[static_cast<size_t>(g)].size(), nullptr);
    return ulyssesParamAcquire(params, g, pointers.data(), nullptr);
  }
  ulyssesResult_t release(int g) { return ulyssesParamRelease(params, g, nullptr); }
  ulyssesResult_t prefetch(int g) { return ulyssesParamPrefetch(params, g, nullptr); }
  ulyssesResult_t publish(int g) { return ulyssesParamPublish(params, g, nullptr); }
  ulyssesResult_t reshard(int g) { return ulyssesParamReshard(params, g, nullptr); }
  void change(int g, size_t salt) {
    for (Param& p : groups[static_cast<size_t>(g)]) p.fill(rank_, p.salt + salt);
  }
  bool right(int g) const {
    for (size_t i = 0; i < pointers.size(); ++i)
      if (!groups[static_cast<size_t>(g)][i].matches(pointers[i])) return false;
    return true;
  }
  // Acquires, looks and releases.
  std::string visit(int g) {
    EXPECT_OK(acquire(g));
    EXPECT_RANK(right(g));
    EXPECT_OK(release(g));
    return "";
  }
  ulyssesParamStats_t stats() const {
    ulyssesParamStats_t s = ULYSSES_PARAM_STATS_INITIALIZER;
    ulyssesParamGetStats(params, &s);
    return s;
  }

  ulyssesParamComm_t params = nullptr;
  std::vector<std::vector<Param>> groups;
  std::vector<void*> pointers;

 private:
  int rank_, nranks_;
};

#define EXPECT_VISIT(model, group) \
  if (const std::string text = (model).visit(group); !text.empty()) return text

inline std::string exchangeWorks(int rank, int P, ulyssesComm_t comm) {
  const Shape t{2, 8, 8, 3, 4};
  Fenced in(sequenceSide(t, P, rank)), out(headSide(t, P, rank).size());
  EXPECT_OK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
  EXPECT_RANK(out.content() == headSide(t, P, rank) && out.intact());
  return "";
}

// A rank that hit is told of what its peers found by the async error, before its next call.
inline bool mismatchArrives(ulyssesComm_t comm) {
  ulyssesResult_t state = ulyssesSuccess;
  for (int i = 0; i < 5000 && state == ulyssesSuccess; ++i) {
    if (ulyssesCommGetAsyncError(comm, &state) != ulyssesSuccess) return false;
    if (state == ulyssesSuccess) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return state == ulyssesMismatch;
}

}  // namespace ulysses::testing
