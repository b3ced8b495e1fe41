// Persistent parameters on host memory: what stays, what is gathered again, and what is misuse.
#include <dirent.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "host/param_model.h"
#include "support/catch.h"

namespace ulysses::testing {
namespace {

size_t openDescriptors() {
  size_t n = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (folder != nullptr && readdir(folder) != nullptr) ++n;
  if (folder != nullptr) closedir(folder);
  return n;
}

size_t residentKilobytes() {
  size_t pages = 0, resident = 0;
  if (std::FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%zu %zu", &pages, &resident) != 2) resident = 0;
    std::fclose(f);
  }
  return resident * 4;
}

}  // namespace

TEST_CASE("every residency gives the same bytes, traffic falls with the budget", "[host][param]") {
  constexpr int kGroups = 8, kForwards = 5;
  for (const As as : {As::Threads, As::Processes})
    CHECK(failures(runComms(as, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
            const size_t groupBytes = 10007 * 4 + 33, all = kGroups * (groupBytes + 3);
            const auto run = [&](ulyssesResidency_t residency, size_t budget, int depth,
                                 ulyssesParamStats_t* stats) -> std::string {
              Model m(rank, 4);
              EXPECT_OK(m.open(comm, residency, budget, depth));
              for (int g = 0; g < kGroups; ++g) EXPECT_OK(m.add({{10007, ulyssesFloat32}, {33, ulyssesInt8}}));
              EXPECT_OK(m.commit());
              for (int f = 0; f < kForwards; ++f) {
                for (int g = 0; g < kGroups; ++g) {
                  EXPECT_OK(m.acquire(g));
                  if (depth > 0) EXPECT_OK(m.prefetch((g + 1) % kGroups));
                  EXPECT_RANK(m.right(g));
                  EXPECT_OK(m.release(g));
                }
                if (f != 2) continue;
                for (int g = 0; g < kGroups; ++g) m.change(g, 50);  // an update between two requests
                for (int g = 0; g < kGroups; ++g) EXPECT_OK(m.publish(g));
              }
              *stats = m.stats();
              return "";
            };
            ulyssesParamStats_t s = ULYSSES_PARAM_STATS_INITIALIZER;
            const uint64_t pass = kGroups * groupBytes;
            EXPECT_RANK(run(ulyssesResidencyPersistent, 0, 0, &s) == "");
            EXPECT_RANK(s.bytesMoved == 2 * pass && s.gathers == 2 * kGroups && s.hits == 3 * kGroups &&
                        s.evictions == 0);
            EXPECT_RANK(s.residentBytes >= pass && s.residentBytes == s.peakBytes &&
                        s.residentBytes < pass + pass / 100);
            EXPECT_RANK(run(ulyssesResidencyTransient, all, 0, &s) == "");
            EXPECT_RANK(s.bytesMoved == kForwards * pass && s.hits == 0 && s.residentBytes == 0 &&
                        s.peakBytes < 2 * groupBytes);
            for (const int quarter : {0, 1, 2, 3, 4})
              for (const int depth : {0, 1}) {
                // The smallest budget of all ranks holds.
                const size_t budget = all / 4 * static_cast<size_t>(quarter) + (rank == 2 ? 0 : 1000000);
                EXPECT_RANK(run(ulyssesResidencyBudget, budget, depth, &s) == "");
                const auto pinned = static_cast<uint64_t>(quarter * kGroups / 4), streamed = kGroups - pinned;
                EXPECT_RANK(s.acquires == kForwards * kGroups);
                const uint64_t slots = std::min<uint64_t>(streamed, static_cast<uint64_t>(depth) + 1);
                const bool cycles = streamed > slots;  // else they all fit into the ring
                // A group that had been prefetched when the update came is gathered once more.
                const uint64_t gathers = 2 * pinned + (cycles ? kForwards : 2) * streamed;
                EXPECT_RANK(s.gathers >= gathers && s.gathers <= gathers + 2);
                EXPECT_RANK(s.bytesMoved == s.gathers * groupBytes);
                EXPECT_RANK(depth == 0 || !cycles || s.prefetchHits >= kForwards * streamed - 3);
                EXPECT_RANK(s.peakBytes >= (pinned + slots) * groupBytes &&
                            s.peakBytes <= (pinned + slots) * (groupBytes + 64));
                const uint64_t turns = cycles ? s.gathers - 2 * pinned - slots : 0;
                EXPECT_RANK(s.evictions <= turns && s.evictions + 2 >= turns);
              }
            return exchangeWorks(rank, 4, comm);
          })) == "");
}

TEST_CASE("a small window cap stages what a large one writes directly, many parameters take several transfers",
          "[host][param]") {
  for (const size_t cap : {size_t{0}, size_t{2} << 20, size_t{100}}) {
    // Where a rank can read its peers' memory nothing is staged, unless it is asked for.
    const Environment environment("ULYSSES_PATH", cap == 0 ? "auto" : "staged");
    ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
    config.memory = ulyssesMemoryHost;
    config.windowCapBytes = cap;
    CHECK(failures(runComms(
              As::Processes, 3,
              [&](int rank, ulyssesComm_t comm) -> std::string {
                Model m(rank, 3);
                EXPECT_OK(m.open(comm));
                EXPECT_OK(m.add({{1000003, ulyssesFloat32}, {500001, ulyssesBfloat16}}));
                std::vector<std::pair<size_t, ulyssesDataType_t>> many;
                for (size_t i = 0; i < 150; ++i) many.push_back({i * 7 % 40, i % 2 != 0 ? ulyssesInt64 : ulyssesInt8});
                EXPECT_OK(m.add(many));
                EXPECT_OK(m.commit());
                const auto path = [&]() -> std::string {
                  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
                  ulyssesCommGetInfo(comm, &info);
                  return info.windowBytes <= info.windowCapBytes ? info.lastPath : "beyond the cap";
                };
                if (cap == 100) {  // no room for staging either: the same error on all, and nothing is resident
                  EXPECT_RANK(m.acquire(0) == ulyssesNotSupported);
                  EXPECT_RANK(m.acquire(0) == ulyssesNotSupported);
                  EXPECT_VISIT(m, 1);  // small enough to travel beside the contract
                  return "";
                }
                EXPECT_VISIT(m, 0);
                EXPECT_RANK(path() == (cap == 0 ? "direct" : "staged"));
                EXPECT_VISIT(m, 1);
                m.change(1, 3);
                EXPECT_OK(m.publish(1));
                EXPECT_VISIT(m, 1);
                EXPECT_RANK(m.stats().gathers == 3);
                return exchangeWorks(rank, 3, comm);
              },
              &config)) == "");
  }
}

TEST_CASE("float32 shards are cast before the gather", "[host][param]") {
  CHECK(failures(runComms(As::Threads, 3, [&](int rank, ulyssesComm_t comm) -> std::string {
          const Part mine = balanced(1000, 3, rank);
          std::vector<float> shard(mine.second);
          const auto value = [](size_t i) { return static_cast<float>(i) * 0.37f - 100.0f; };
          for (size_t i = 0; i < shard.size(); ++i) shard[i] = value(mine.first + i);
          ulyssesParamDesc_t d = ULYSSES_PARAM_DESC_INITIALIZER;
          d.count = 1000;
          d.shardType = ulyssesFloat32;
          d.shard = shard.data();
          const ulyssesParamDesc_t descs[] = {[&] {
                                                d.gatherType = ulyssesBfloat16;
                                                return d;
                                              }(),
                                              [&] {
                                                d.gatherType = ulyssesFloat32;
                                                return d;
                                              }(),
                                              [&] {
                                                d.gatherType = ulyssesFloat16;
                                                d.alignment = 8192;
                                                return d;
                                              }()};
          ulyssesParamComm_t params = nullptr;
          int group = -1;
          void* ptrs[3];
          EXPECT_OK(ulyssesParamCommCreate(&params, comm, nullptr));
          EXPECT_OK(ulyssesParamGroupAdd(params, 3, descs, &group));
          EXPECT_OK(ulyssesParamCommit(params));
          EXPECT_OK(ulyssesParamAcquire(params, group, ptrs, nullptr));
          EXPECT_RANK(reinterpret_cast<uintptr_t>(ptrs[2]) % 8192 == 0);
          for (size_t i = 0; i < 1000; ++i) {
            uint32_t wide = 0;
            const uint16_t b = static_cast<uint16_t*>(ptrs[0])[i];
            wide = static_cast<uint32_t>(b) << 16;
            float back = 0;
            std::memcpy(&back, &wide, 4);
            EXPECT_RANK(std::abs(back - value(i)) <= std::abs(value(i)) / 256);
            EXPECT_RANK(static_cast<float*>(ptrs[1])[i] == value(i));
          }
          EXPECT_RANK(static_cast<uint16_t*>(ptrs[2])[0] == 0xd640);  // -100 in float16
          EXPECT_OK(ulyssesParamRelease(params, group, nullptr));
          EXPECT_OK(ulyssesParamCommDestroy(params));
          return "";
        })) == "");
}

TEST_CASE("misuse is an error on all ranks, and the next call works", "[host][param]") {
  CHECK(failures(runComms(As::Processes, 3, [&](int rank, ulyssesComm_t comm) -> std::string {
          Model m(rank, 3);
          EXPECT_OK(m.open(comm, ulyssesResidencyBudget, 0, 0));
          EXPECT_OK(m.add({{9, ulyssesInt8}}));
          EXPECT_OK(m.add({{9, ulyssesInt8}}));
          EXPECT_RANK(m.acquire(0) == ulyssesInvalidUsage && lastErrorNames({"ulyssesParamCommit"}));
          EXPECT_RANK(m.prefetch(0) == ulyssesInvalidUsage);
          EXPECT_RANK(m.publish(0) == ulyssesInvalidUsage);
          EXPECT_RANK(m.release(0) == ulyssesInvalidUsage);
          EXPECT_RANK(ulyssesParamSetBudget(m.params, 5) == ulyssesInvalidUsage);
          EXPECT_OK(m.commit());
          EXPECT_RANK(m.commit() == ulyssesInvalidUsage);
          EXPECT_RANK(m.add({{9, ulyssesInt8}}) == ulyssesInvalidUsage);
          EXPECT_RANK(ulyssesParamRelease(m.params, 0, nullptr) == ulyssesInvalidUsage);
          void* p = nullptr;
          for (const int wrong : {-1, 2, 1 << 30})
            EXPECT_RANK(ulyssesParamAcquire(m.params, wrong, &p, nullptr) == ulyssesInvalidArgument);
          // On one rank only, in a call that communicates: everybody's, with that rank's text.
          EXPECT_RANK(ulyssesParamAcquire(m.params, 0, rank == 1 ? nullptr : &p, nullptr) == ulyssesInvalidArgument);
          EXPECT_RANK(lastErrorNames({"rank 1", "ptrs"}));
          EXPECT_OK(m.acquire(0));
          EXPECT_RANK(m.acquire(0) == ulyssesInvalidUsage && lastErrorNames({"rank 0", "group 0 is acquired"}));
          EXPECT_RANK(m.publish(0) == ulyssesInvalidUsage && m.reshard(0) == ulyssesInvalidUsage);
          EXPECT_RANK(ulyssesParamSetBudget(m.params, 5) == ulyssesInvalidUsage);
          EXPECT_RANK(m.acquire(1) == ulyssesOutOfMemory && lastErrorNames({"prefetchDepth"}));
          EXPECT_OK(m.prefetch(1));  // nowhere to put it: nothing happens
          EXPECT_OK(m.release(0));
          EXPECT_VISIT(m, 1);
          EXPECT_RANK(m.stats().gathers == 2 && m.stats().evictions == 1);
          EXPECT_RANK(ulyssesParamAcquire(m.params, rank == 0 ? 0 : 1, &p, nullptr) ==
                      (rank == 0 ? ulyssesMismatch : ulyssesSuccess));
          if (rank != 0) EXPECT_OK(m.release(1));
          if (rank != 0) EXPECT_RANK(mismatchArrives(comm) && m.acquire(1) == ulyssesMismatch);
          EXPECT_VISIT(m, 0);

          Model persistent(rank, 3);
          EXPECT_OK(persistent.open(comm));
          EXPECT_OK(persistent.add({{3, ulyssesInt8}}));
          if (rank == 2) EXPECT_OK(persistent.add({{3, ulyssesInt8}}));
          EXPECT_RANK(persistent.commit() == ulyssesMismatch && lastErrorNames({"number of groups", "rank 2 has 2"}));
          ulyssesParamConfig_t config = ULYSSES_PARAM_CONFIG_INITIALIZER;
          config.prefetchDepth = -1;
          ulyssesParamComm_t none = nullptr;
          EXPECT_RANK(ulyssesParamCommCreate(&none, comm, &config) == ulyssesInvalidArgument && none == nullptr);
          EXPECT_RANK(ulyssesParamCommit(nullptr) == ulyssesInvalidArgument);
          return exchangeWorks(rank, 3, comm);
        })) == "");
}

TEST_CASE("addresses stay until Reshard or SetBudget, both give memory back and the next acquire gathers",
          "[host][param]") {
  CHECK(failures(runComms(As::Processes, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          constexpr size_t kBytes = 1 << 20;
          const auto windows = [&] {
            ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
            ulyssesCommGetInfo(comm, &info);
            return info.windowBytes;
          };
          Model m(rank, 2);
          EXPECT_OK(m.open(comm, ulyssesResidencyBudget, 3 * kBytes, 1));
          for (int g = 0; g < 4; ++g) EXPECT_OK(m.add({{kBytes, ulyssesInt8}}));
          EXPECT_OK(m.commit());
          EXPECT_RANK(windows() == 4 * kBytes && m.stats().residentBytes == 4 * kBytes);  // 3 and a ring of 1
          for (int g = 0; g < 4; ++g) EXPECT_VISIT(m, g);
          EXPECT_OK(m.acquire(0));
          void* const first = m.pointers[0];
          EXPECT_OK(m.release(0));
          EXPECT_OK(m.reshard(1));
          EXPECT_RANK(windows() == 3 * kBytes && m.stats().residentBytes == 3 * kBytes);
          EXPECT_VISIT(m, 1);
          EXPECT_RANK(windows() == 4 * kBytes && m.stats().gathers == 5);
          EXPECT_OK(ulyssesParamSetBudget(m.params, rank == 0 ? kBytes : 2 * kBytes));
          EXPECT_RANK(windows() == 3 * kBytes && m.stats().peakBytes == 4 * kBytes);  // 1 and a ring of 2
          EXPECT_OK(m.acquire(0));
          EXPECT_RANK(m.pointers[0] == first && m.right(0) && m.stats().gathers == 5);
          EXPECT_OK(m.release(0));
          for (int g = 0; g < 4; ++g) EXPECT_VISIT(m, g);
          EXPECT_RANK(m.stats().gathers == 8);
          EXPECT_OK(ulyssesParamSetBudget(m.params, 9 * kBytes));
          for (int round = 0; round < 2; ++round)
            for (int g = 0; g < 4; ++g) EXPECT_VISIT(m, g);
          EXPECT_RANK(m.stats().gathers == 11 && windows() == 4 * kBytes);
          return "";
        })) == "");
}

TEST_CASE("transient residency holds several groups at once and takes its storage from a pool", "[host][param]") {
  CHECK(failures(runComms(As::Threads, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          Model m(rank, 2);
          EXPECT_OK(m.open(comm, ulyssesResidencyTransient));
          for (int g = 0; g < 3; ++g) EXPECT_OK(m.add({{5000, ulyssesInt8}}));
          EXPECT_OK(m.commit());
          for (int round = 0; round < 3; ++round) {
            for (int g = 0; g < 3; ++g) {
              EXPECT_OK(m.acquire(g));
              EXPECT_RANK(m.right(g) && m.stats().residentBytes == static_cast<size_t>(g + 1) * 5000);
            }
            for (int g = 0; g < 3; ++g) EXPECT_OK(m.release(g));
            EXPECT_RANK(m.stats().residentBytes == 0 && m.stats().peakBytes == 15000);
          }
          EXPECT_RANK(m.stats().gathers == 9 && m.stats().evictions == 0);
          return "";
        })) == "");
}

TEST_CASE("ULYSSES_RESIDENCY is the way back to gathering again", "[host][param]") {
  setenv("ULYSSES_RESIDENCY", "transient", 1);
  CHECK(failures(runComms(As::Processes, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          Model m(rank, 2);
          EXPECT_OK(m.open(comm));
          EXPECT_OK(m.add({{5000, ulyssesInt8}}));
          EXPECT_OK(m.commit());
          for (int i = 0; i < 3; ++i) EXPECT_VISIT(m, 0);
          EXPECT_RANK(m.stats().gathers == 3);
          return "";
        })) == "");
  unsetenv("ULYSSES_RESIDENCY");
}

TEST_CASE("one thread drives the parameters of several ranks in a group, one rank alone works", "[host][param]") {
  for (const int P : {1, 3}) {
    std::vector<ulyssesComm_t> comms(static_cast<size_t>(P));
    REQUIRE(ulyssesCommInitAll(comms.data(), P, nullptr) == ulyssesSuccess);
    std::vector<std::unique_ptr<Model>> models;
    for (int r = 0; r < P; ++r) {
      models.push_back(std::make_unique<Model>(r, P));
      REQUIRE(models.back()->open(comms[static_cast<size_t>(r)]) == ulyssesSuccess);
      REQUIRE(models.back()->add({{7000, ulyssesFloat32}, {11, ulyssesInt8}}) == ulyssesSuccess);
    }
    REQUIRE(ulyssesGroupStart() == ulyssesSuccess);
    for (auto& m : models) CHECK(m->commit() == ulyssesSuccess);
    REQUIRE(ulyssesGroupEnd() == ulyssesSuccess);
    for (size_t round = 0; round < 3; ++round) {
      REQUIRE(ulyssesGroupStart() == ulyssesSuccess);
      for (auto& m : models) CHECK(m->acquire(0) == ulyssesSuccess);
      REQUIRE(ulyssesGroupEnd() == ulyssesSuccess);
      for (auto& m : models) {
        CHECK(m->right(0));
        CHECK(m->stats().gathers == 1 + round / 2);
        CHECK(m->release(0) == ulyssesSuccess);
        if (round != 1) continue;
        m->change(0, 9);
        CHECK(m->publish(0) == ulyssesSuccess);
      }
    }
    for (ulyssesComm_t comm : comms) CHECK(ulyssesCommDestroy(comm) == ulyssesSuccess);  // the models still hold them
    models.clear();
  }
}

TEST_CASE("2000 parameter communicators leave memory, descriptors and windows flat", "[host][param]") {
  CHECK(failures(runComms(
            As::Processes, 2,
            [&](int rank, ulyssesComm_t comm) -> std::string {
              size_t descriptors = 0, memory = 0;
              for (int i = 0; i < 2000; ++i) {
                if (i == 200) descriptors = openDescriptors(), memory = residentKilobytes();
                Model m(rank, 2);
                EXPECT_OK(m.open(comm, ulyssesResidencyBudget, 90000, 1));
                for (int g = 0; g < 6; ++g) EXPECT_OK(m.add({{20000, ulyssesInt8}}));
                EXPECT_OK(m.commit());
                EXPECT_VISIT(m, i % 6);
              }
              ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
              EXPECT_OK(ulyssesCommGetInfo(comm, &info));
              EXPECT_RANK(info.windowBytes == 0);
              EXPECT_RANK(openDescriptors() <= descriptors + 16);
              // A sanitizer keeps freed memory back on purpose.
              EXPECT_RANK(kSanitized || residentKilobytes() <= memory + 2048);
              return "";
            },
            nullptr, 240)) == "");
}

}  // namespace ulysses::testing
