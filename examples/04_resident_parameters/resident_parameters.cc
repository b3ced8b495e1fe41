// A small model that is served with sharded weights: each rank holds a quarter of every block's weights, the first
// forward gathers them, the others find them there, and an update between two requests is gathered once.
//
//   y = relu(... relu(x W0) ... W7), in each block one float32 matrix and one bias
//
// Ranks are threads here; the calls are the same in processes.
#include <ulysses/ulysses.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 4, kBlocks = 8, kForwards = 35;
constexpr size_t kWidth = 48;

// Weights that depend on the model's version alone, so that every rank can tell what it ought to see.
float weight(int version, int block, size_t i) {
  return static_cast<float>((i * 2654435761u + static_cast<size_t>(block) * 97 + static_cast<size_t>(version) * 1009) %
                            1000) /
             1000.0f -
         0.5f;
}
float bias(int version, int block, size_t i) {
  return static_cast<float>(version + block) * 0.01f + static_cast<float>(i) * 0.001f;
}

void applyBlock(const float* weights, const float* biases, std::vector<float>& x) {
  std::vector<float> y(biases, biases + kWidth);
  for (size_t i = 0; i < kWidth; ++i)
    for (size_t o = 0; o < kWidth; ++o) y[o] += x[i] * weights[i * kWidth + o];
  for (size_t o = 0; o < kWidth; ++o) x[o] = std::max(y[o], 0.0f);
}

// The whole model on one rank, for comparison.
std::vector<float> reference(int version) {
  std::vector<float> x(kWidth, 1.0f), weights(kWidth * kWidth), biases(kWidth);
  for (int block = 0; block < kBlocks; ++block) {
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = weight(version, block, i);
    for (size_t i = 0; i < biases.size(); ++i) biases[i] = bias(version, block, i);
    applyBlock(weights.data(), biases.data(), x);
  }
  return x;
}

// This rank's part of a block: a quarter of each parameter, contiguous.
struct Shard {
  std::vector<float> weights, biases;

  void load(int version, int block, int rank) {
    const size_t r = static_cast<size_t>(rank);
    weights.resize(kWidth * kWidth / kRanks);
    biases.resize(kWidth / kRanks);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = weight(version, block, r * weights.size() + i);
    for (size_t i = 0; i < biases.size(); ++i) biases[i] = bias(version, block, r * biases.size() + i);
  }
};

bool ok(ulyssesResult_t result, int rank) {
  if (result != ulyssesSuccess) std::fprintf(stderr, "rank %d: %s\n", rank, ulyssesGetLastError());
  return result == ulyssesSuccess;
}

// One request: the blocks in order, each held only while it is used.
bool forward(ulyssesParamComm_t params, int rank, std::vector<float>* result) {
  std::vector<float> x(kWidth, 1.0f);
  for (int block = 0; block < kBlocks; ++block) {
    void* gathered[2];
    if (!ok(ulyssesParamAcquire(params, block, gathered, nullptr), rank)) return false;
    applyBlock(static_cast<const float*>(gathered[0]), static_cast<const float*>(gathered[1]), x);
    if (!ok(ulyssesParamRelease(params, block, nullptr), rank)) return false;
  }
  *result = x;
  return true;
}

// Returns whether everything was as it should be.
bool runRank(int rank, ulyssesComm_t comm) {
  ulyssesParamComm_t params = nullptr;
  if (!ok(ulyssesParamCommCreate(&params, comm, nullptr), rank)) return false;  // persistent is the default
  std::vector<Shard> shards(kBlocks);
  for (int block = 0; block < kBlocks; ++block) {
    Shard& shard = shards[static_cast<size_t>(block)];
    shard.load(0, block, rank);
    ulyssesParamDesc_t descs[2] = {ULYSSES_PARAM_DESC_INITIALIZER, ULYSSES_PARAM_DESC_INITIALIZER};
    descs[0].count = kWidth * kWidth;
    descs[0].shard = shard.weights.data();
    descs[1].count = kWidth;
    descs[1].shard = shard.biases.data();
    for (ulyssesParamDesc_t& desc : descs) desc.shardType = desc.gatherType = ulyssesFloat32;
    int group = -1;
    if (!ok(ulyssesParamGroupAdd(params, 2, descs, &group), rank)) return false;
  }
  if (!ok(ulyssesParamCommit(params), rank)) return false;

  bool right = true;
  for (int request = 0; request < 2; ++request) {
    if (request == 1) {  // new weights: every rank changes its shards and says so
      for (int block = 0; block < kBlocks; ++block) {
        shards[static_cast<size_t>(block)].load(1, block, rank);
        if (!ok(ulyssesParamPublish(params, block, nullptr), rank)) return false;
      }
    }
    const std::vector<float> expected = reference(request);
    for (int f = 0; f < kForwards; ++f) {
      std::vector<float> result;
      if (!forward(params, rank, &result)) return false;
      right = right && result == expected;
    }
  }

  ulyssesParamStats_t stats = ULYSSES_PARAM_STATS_INITIALIZER;
  if (!ok(ulyssesParamGetStats(params, &stats), rank)) return false;
  if (rank == 0)
    std::printf("%d requests of %d forwards: %llu acquires, %llu gathers, %llu hits, %llu bytes moved, %zu resident\n",
                2, kForwards, static_cast<unsigned long long>(stats.acquires),
                static_cast<unsigned long long>(stats.gathers), static_cast<unsigned long long>(stats.hits),
                static_cast<unsigned long long>(stats.bytesMoved), stats.residentBytes);
  if (!right) std::fprintf(stderr, "rank %d: a forward saw weights of another version\n", rank);
  return ok(ulyssesParamCommDestroy(params), rank) && right && stats.gathers == 2 * kBlocks;
}

}  // namespace

int main() {
  ulyssesComm_t comms[kRanks];
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.memory = ulyssesMemoryHost;
  if (!ok(ulyssesCommInitAllConfig(comms, kRanks, nullptr, &config), 0)) return 1;
  bool good[kRanks] = {};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&good, &comms, rank] { good[rank] = runRank(rank, comms[rank]); });
  }
  for (std::thread& t : ranks) t.join();
  for (ulyssesComm_t comm : comms) ulyssesCommDestroy(comm);
  return std::all_of(good, good + kRanks, [](bool g) { return g; }) ? 0 : 1;
}
