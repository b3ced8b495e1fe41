// Persistent parameters on device memory.
#include <unistd.h>

#include <numeric>

#ifdef ULYSSES_EMULATED
#include "emulator/runtime.h"
#endif
#include "gpu/support/device_ranks.h"
#include "param/cast.h"
#include "support/catch.h"

namespace ulysses::testing {
namespace {

// One parameter of float32 values v(i) = seed + i, sharded by balanced splits.
struct Values {
  size_t count;
  int P;
  size_t begin(int rank) const {
    const size_t p = static_cast<size_t>(P), r = static_cast<size_t>(rank);
    return r * (count / p) + std::min(r, count % p);
  }
  size_t countOf(int rank) const { return begin(rank + 1) - begin(rank); }
  std::vector<float> of(size_t first, size_t n, float seed) const {
    std::vector<float> values(n);
    std::iota(values.begin(), values.end(), seed + static_cast<float>(first));
    return values;
  }
  std::vector<float> shard(int rank, float seed) const { return of(begin(rank), countOf(rank), seed); }
};

template <class T>
std::vector<unsigned char> bytesOf(const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const unsigned char*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

std::vector<unsigned char> onHost(const void* device, size_t bytes, cudaStream_t stream) {
  std::vector<unsigned char> host(bytes);
  cudaMemcpyAsync(host.data(), device, bytes, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  return host;
}

// What a group's parameter is gathered as.
std::vector<unsigned char> gathered(const Values& v, float seed, ulyssesDataType_t type) {
  const std::vector<float> all = v.of(0, v.count, seed);
  if (type == ulyssesFloat32) return bytesOf(all);
  std::vector<uint16_t> cast(all.size());
  castShard(all.data(), cast.data(), all.size(), type);
  return bytesOf(cast);
}

enum class Where { Device, Pinned, Pageable };

class Shard {
 public:
  Shard(const std::vector<float>& values, Where where) : where_(where), bytes_(values.size() * sizeof(float)) {
    if (where == Where::Device) cudaMalloc(&memory_, bytes_ + 1);
    if (where == Where::Pinned) cudaMallocHost(&memory_, bytes_ + 1);
    if (where == Where::Pageable) memory_ = std::malloc(bytes_ + 1);
    set(values, nullptr);
    cudaStreamSynchronize(nullptr);
  }
  Shard(const Shard&) = delete;
  ~Shard() {
    if (where_ == Where::Device) cudaFree(memory_);
    if (where_ == Where::Pinned) cudaFreeHost(memory_);
    if (where_ == Where::Pageable) std::free(memory_);
  }
  void set(const std::vector<float>& values, cudaStream_t stream) {
    cudaMemcpyAsync(memory_, values.data(), bytes_, cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
  }
  const void* data() const { return memory_; }

 private:
  const Where where_;
  const size_t bytes_;
  void* memory_ = nullptr;
};

class Params {
 public:
  ~Params() { (void)ulyssesParamCommDestroy(handle); }
  ulyssesResult_t add(const void* shard, size_t count, ulyssesDataType_t gatherType, int* group) {
    ulyssesParamDesc_t d = ULYSSES_PARAM_DESC_INITIALIZER;
    d.count = count;
    d.shardType = ulyssesFloat32;
    d.gatherType = gatherType;
    d.shard = shard;
    return ulyssesParamGroupAdd(handle, 1, &d, group);
  }
  // All of it for one parameter.
  ulyssesResult_t makeOne(ulyssesComm_t comm, const void* shard, size_t count, ulyssesDataType_t gatherType,
                          int* group) {
    ulyssesResult_t result = ulyssesParamCommCreate(&handle, comm, nullptr);
    if (result == ulyssesSuccess) result = add(shard, count, gatherType, group);
    return result == ulyssesSuccess ? ulyssesParamCommit(handle) : result;
  }
  ulyssesParamStats_t stats() const {
    ulyssesParamStats_t stats = ULYSSES_PARAM_STATS_INITIALIZER;
    (void)ulyssesParamGetStats(handle, &stats);
    return stats;
  }
  ulyssesParamComm_t handle = nullptr;
};

constexpr ulyssesDataType_t kTypes[] = {ulyssesFloat32, ulyssesBfloat16, ulyssesFloat16};

// Gathered, hit, published anew; shards in every kind of memory, cast or not.
std::string lifetime(int P, int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) {
  const Values v{100003, P};
  std::vector<std::unique_ptr<Shard>> shards;
  Params params;
  EXPECT_OK(ulyssesParamCommCreate(&params.handle, comm, nullptr));
  int groups = 0;
  for (const Where where : {Where::Device, Where::Pinned, Where::Pageable})
    for (const ulyssesDataType_t type : kTypes) {
      shards.push_back(std::make_unique<Shard>(v.shard(rank, 0), where));
      int group = -1;
      EXPECT_OK(params.add(shards.back()->data(), v.count, type, &group));
      EXPECT_RANK(group == groups++);
    }
  EXPECT_OK(ulyssesParamCommit(params.handle));
  settle(meeting);
  for (int version = 0; version < 2; ++version) {
    const float seed = static_cast<float>(version) * 0.5f;
    for (int visit = 0; visit < 2; ++visit)
      for (int g = 0; g < groups; ++g) {
        void* p = nullptr;
        EXPECT_OK(ulyssesParamAcquire(params.handle, g, &p, stream));
        const ulyssesDataType_t type = kTypes[g % 3];
        const std::vector<unsigned char> expected = gathered(v, seed, type);
        EXPECT_RANK(onHost(p, expected.size(), stream) == expected);
        EXPECT_OK(ulyssesParamRelease(params.handle, g, stream));
      }
    EXPECT_RANK(finish(stream, meeting));
    for (int g = 0; g < groups && version == 0; ++g) {
      shards[static_cast<size_t>(g)]->set(v.shard(rank, 0.5f), stream);
      EXPECT_OK(ulyssesParamPublish(params.handle, g, stream));
    }
  }
  const ulyssesParamStats_t stats = params.stats();
  EXPECT_RANK(stats.gathers == static_cast<uint64_t>(2 * groups) && stats.hits == static_cast<uint64_t>(2 * groups));
  meeting.wait();
  return "";
}

// Streamed through a ring with prefetches, an update between two forwards, nothing waited for on the host in between.
std::string forwards(int P, int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) {
  constexpr int kGroups = 5;
  const Values v{60001, P};
  const size_t bytes = v.count * sizeof(float);
  ulyssesParamConfig_t config = ULYSSES_PARAM_CONFIG_INITIALIZER;
  config.residency = ulyssesResidencyBudget;
  config.budgetBytes = 2 * bytes + 1000;
  config.prefetchDepth = 1;
  Params params;
  EXPECT_OK(ulyssesParamCommCreate(&params.handle, comm, &config));
  std::vector<std::unique_ptr<Shard>> shards, updates;
  std::vector<std::unique_ptr<DeviceTensor>> seen;
  for (int g = 0; g < kGroups; ++g) {
    shards.push_back(std::make_unique<Shard>(v.shard(rank, static_cast<float>(g)), Where::Device));
    updates.push_back(std::make_unique<Shard>(v.shard(rank, static_cast<float>(g) + 0.25f), Where::Device));
    int group = -1;
    EXPECT_OK(params.add(shards.back()->data(), v.count, ulyssesFloat32, &group));
  }
  EXPECT_OK(ulyssesParamCommit(params.handle));
  for (int i = 0; i < 3 * kGroups; ++i) seen.push_back(std::make_unique<DeviceTensor>(bytes));
  settle(meeting);
  for (int pass = 0; pass < 3; ++pass)
    for (int g = 0; g < kGroups; ++g) {
      void* p = nullptr;
      EXPECT_OK(ulyssesParamAcquire(params.handle, g, &p, stream));
      if (pass + g > 0) EXPECT_OK(ulyssesParamPrefetch(params.handle, (g + 1) % kGroups, stream));
      cudaMemcpyAsync(seen[static_cast<size_t>(pass * kGroups + g)]->data(), p, bytes, cudaMemcpyDeviceToDevice,
                      stream);
      EXPECT_OK(ulyssesParamRelease(params.handle, g, stream));
      if (pass == 1 && g == kGroups - 1)  // all but the group that is fetched ahead
        for (int k = 1; k < kGroups; ++k) {
          const size_t at = static_cast<size_t>(k);
          cudaMemcpyAsync(const_cast<void*>(shards[at]->data()), updates[at]->data(), v.countOf(rank) * sizeof(float),
                          cudaMemcpyDeviceToDevice, stream);
          EXPECT_OK(ulyssesParamPublish(params.handle, k, stream));
        }
    }
  EXPECT_RANK(finish(stream, meeting));
  for (int pass = 0; pass < 3; ++pass)
    for (int g = 0; g < kGroups; ++g) {
      const float seed = static_cast<float>(g) + (pass == 2 && g > 0 ? 0.25f : 0.0f);
      EXPECT_RANK(seen[static_cast<size_t>(pass * kGroups + g)]->content() == gathered(v, seed, ulyssesFloat32));
    }
  EXPECT_RANK(params.stats().prefetchHits > 0);
  meeting.wait();
  return "";
}

}  // namespace

TEST_CASE("parameters on device memory: shards anywhere, cast or not, gathered, resident, published anew",
          "[gpu][params]") {
  NEEDS_GPU;
  for (const int P : rankCounts({1, 2, 3, 4}))
    CHECK(onDevice(As::Threads, P, [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) {
            return lifetime(P, rank, comm, stream, meeting);
          }) == "");
}

TEST_CASE("parameters on device memory: beyond the cap they are staged into plain memory", "[gpu][params]") {
  NEEDS_GPU;
  ulyssesConfig_t config = deviceConfig();
  config.windowCapBytes = size_t{16} << 20;
  CHECK(onDevice(
            As::Threads, 2,
            [](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) {
              return forwards(2, rank, comm, stream, meeting);
            },
            config) == "");
}

TEST_CASE("parameters on device memory: a forward streams, prefetches and sees every update", "[gpu][params]") {
  NEEDS_GPU;
  for (const int P : rankCounts({2, 4}))
    CHECK(onDevice(As::Threads, P, [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) {
            return forwards(P, rank, comm, stream, meeting);
          }) == "");
}

TEST_CASE("parameters on device memory: a prefetch that can't follow its caller on one rank is everybody's error",
          "[gpu][params]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Threads, 2, [](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          const Values v{4001, 2};
          ulyssesParamConfig_t config = ULYSSES_PARAM_CONFIG_INITIALIZER;
          Params params;
          EXPECT_OK(ulyssesParamCommCreate(&params.handle, comm, &config));
          const Shard shard(v.shard(rank, 1.0f), Where::Device);
          int group = -1;
          EXPECT_OK(params.add(shard.data(), v.count, ulyssesFloat32, &group));
          EXPECT_OK(ulyssesParamCommit(params.handle));
          if (rank == 1) hooks::plantFailure(hooks::Stage::Prefetch, Status(ulyssesSystemError, "planted"));
          EXPECT_RANK(ulyssesParamPrefetch(params.handle, group, stream) == ulyssesSystemError && lastErrorSays("planted"));
          DeviceTensor seen(v.count * sizeof(float));
          settle(meeting);
          EXPECT_OK(ulyssesParamPrefetch(params.handle, group, stream));
          void* p = nullptr;
          EXPECT_OK(ulyssesParamAcquire(params.handle, group, &p, stream));
          cudaMemcpyAsync(seen.data(), p, v.count * sizeof(float), cudaMemcpyDeviceToDevice, stream);
          EXPECT_OK(ulyssesParamRelease(params.handle, group, stream));
          EXPECT_RANK(finish(stream, meeting));
          EXPECT_RANK(seen.content() == gathered(v, 1.0f, ulyssesFloat32));
          return "";
        }) == "");
}

TEST_CASE("parameters on device memory by processes", "[gpu][params]") {
  NEEDS_GPU;
  for (const int P : rankCounts({2}))
    CHECK(onDevice(As::Processes, P,
                   [P](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                     const std::string text = lifetime(P, rank, comm, stream, meeting);
                     return text.empty() ? forwards(P, rank, comm, stream, meeting) : text;
                   }) == "");
}

TEST_CASE("parameters on device memory: what is resident records nothing, case 6's lone publish is found",
          "[gpu][params]") {
  NEEDS_GPU;
  CHECK(
      onDevice(As::Threads, 2, [](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
        const Values v{4096, 2};
        const Shard shard(v.shard(rank, 0), Where::Device);
        Params params;
        int group = -1;
        EXPECT_OK(params.makeOne(comm, shard.data(), v.count, ulyssesFloat32, &group));
        settle(meeting);
        void *first = nullptr, *again = nullptr;
        EXPECT_OK(ulyssesParamAcquire(params.handle, group, &first, stream));
        EXPECT_OK(ulyssesParamRelease(params.handle, group, stream));
        EXPECT_RANK(finish(stream, meeting));
        Graph graph;
        const std::string text = graph.record(stream, [&]() -> std::string {
          EXPECT_OK(ulyssesParamAcquire(params.handle, group, &again, stream));
          EXPECT_OK(ulyssesParamRelease(params.handle, group, stream));
          return "";
        });
        EXPECT_RANK(text.empty() && graph.nodes() == 0 && again == first);
        if (rank == 1) {
          EXPECT_OK(ulyssesParamPublish(params.handle, group, stream));
          EXPECT_RANK(ulyssesParamAcquire(params.handle, group, &again, stream) == ulyssesMismatch);
        } else {
          EXPECT_OK(ulyssesParamAcquire(params.handle, group, &again, stream));
          EXPECT_OK(ulyssesParamRelease(params.handle, group, stream));
          // At the first call after its peer's, whenever that comes.
          ulyssesResult_t result = ulyssesSuccess;
          for (int i = 0; i < 2000 && result == ulyssesSuccess; ++i) {
            result = ulyssesParamAcquire(params.handle, group, &again, stream);
            if (result == ulyssesSuccess) EXPECT_OK(ulyssesParamRelease(params.handle, group, stream));
            usleep(1000);
          }
          EXPECT_RANK(result == ulyssesMismatch);
          EXPECT_OK(ulyssesParamPublish(params.handle, group, stream));
        }
        meeting.wait();
        return "";
      }) == "");
}

TEST_CASE("parameters on device memory: a recorded gather fills at each replay, and is none before", "[gpu][params]") {
  NEEDS_GPU;
  CHECK(
      onDevice(As::Threads, 2, [](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
        const Values v{50000, 2};
        Shard shard(v.shard(rank, 0), Where::Device);
        Params params;
        int group = -1;
        EXPECT_OK(params.makeOne(comm, shard.data(), v.count, ulyssesBfloat16, &group));
        settle(meeting);
        void* p = nullptr;
        const auto visit = [&]() -> std::string {
          EXPECT_OK(ulyssesParamAcquire(params.handle, group, &p, stream));
          EXPECT_OK(ulyssesParamRelease(params.handle, group, stream));
          return "";
        };
        Graph graph;
        EXPECT_RANK(visit().empty() && finish(stream, meeting));
        EXPECT_OK(ulyssesParamPublish(params.handle, group, stream));
        EXPECT_RANK(finish(stream, meeting));
        EXPECT_RANK(graph.record(stream, visit).empty() && graph.nodes() > 0);
        const auto holds = [&](float seed) {
          const std::vector<unsigned char> expected = gathered(v, seed, ulyssesBfloat16);
          return onHost(p, expected.size(), stream) == expected;
        };
        for (const float seed : {512.0f, 1024.0f}) {
          shard.set(v.shard(rank, seed), stream);
          meeting.wait();
          EXPECT_RANK(!holds(seed) && graph.replay(stream) && finish(stream, meeting) && holds(seed));
        }
        const uint64_t gathers = params.stats().gathers;
        shard.set(v.shard(rank, 2048), stream);
        EXPECT_RANK(visit().empty() && finish(stream, meeting));
        EXPECT_RANK(params.stats().gathers == gathers + 1 && holds(2048));  // published, and gathered by no call yet
        meeting.wait();
        return "";
      }) == "");
}

TEST_CASE("parameters on device memory: create and destroy leave memory and windows flat", "[gpu][params]") {
  NEEDS_GPU;
  CHECK(
      onDevice(As::Threads, 2, [](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
        const Values v{200000, 2};
        const Shard shard(v.shard(rank, 0), Where::Pinned);
        size_t windows = 0, free = 0, total = 0;
        for (int cycle = 0; cycle < 60; ++cycle) {
          {
            Params params;
            int group = -1;
            EXPECT_OK(params.makeOne(comm, shard.data(), v.count, ulyssesBfloat16, &group));
            settle(meeting);
            void* p = nullptr;
            EXPECT_OK(ulyssesParamAcquire(params.handle, group, &p, stream));
            EXPECT_OK(ulyssesParamRelease(params.handle, group, stream));
            EXPECT_RANK(finish(stream, meeting));
          }
          meeting.wait();
          if (cycle != 10 && cycle != 59) continue;
          size_t now = 0;
          EXPECT_RANK(cudaMemGetInfo(&now, &total) == cudaSuccess);
          if (cycle == 10) windows = infoOf(comm).windowBytes, free = now;
          EXPECT_RANK(infoOf(comm).windowBytes == windows && now + (size_t{8} << 20) >= free);
          meeting.wait();
        }
        return "";
      }) == "");
}

#ifdef ULYSSES_EMULATED
TEST_CASE("parameters on device memory: visits and updates make no events once some are there", "[gpu][params]") {
  NEEDS_GPU;
  CHECK(
      onDevice(As::Threads, 2, [](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
        const Values v{4096, 2};
        Shard shard(v.shard(rank, 0), Where::Device);
        Params params;
        int group = -1, before = 0;
        EXPECT_OK(params.makeOne(comm, shard.data(), v.count, ulyssesBfloat16, &group));
        for (int i = 0; i < 200; ++i) {
          if (i == 10) {
            EXPECT_RANK(finish(stream, meeting));
            before = emulator::eventsMade();
            meeting.wait();
          }
          void* p = nullptr;
          EXPECT_OK(ulyssesParamPublish(params.handle, group, stream));
          for (int visit = 0; visit < 3; ++visit) {
            EXPECT_OK(ulyssesParamAcquire(params.handle, group, &p, stream));
            EXPECT_OK(ulyssesParamRelease(params.handle, group, stream));
          }
        }
        EXPECT_RANK(finish(stream, meeting));
        EXPECT_RANK(emulator::eventsMade() == before);
        meeting.wait();
        return "";
      }) == "");
}
#endif

}  // namespace ulysses::testing
