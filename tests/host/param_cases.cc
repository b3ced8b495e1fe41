// Persistent parameters on host memory: cases 6, 24, 26 and the parameter part of 4.
#include <thread>

#include "host/param_model.h"
#include "support/catch.h"

namespace ulysses::testing {

TEST_CASE("case 24: uneven and empty shards, mixed types, and types that differ", "[host][cases]") {
  for (const As as : {As::Threads, As::Processes})
    CHECK(failures(runComms(as, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
            Model m(rank, 4);
            EXPECT_OK(m.open(comm));
            EXPECT_OK(m.add({{7, ulyssesUint32}, {3, ulyssesUint32}}));
            EXPECT_OK(m.add({{5, ulyssesFloat32}, {3, ulyssesBfloat16}, {1, ulyssesUint8}}));
            EXPECT_OK(m.add({{9, ulyssesInt8}, {0, ulyssesFloat64}}, {{0, 0, 9, 0}, {0, 0, 0, 0}}));
            EXPECT_OK(m.add({{0, ulyssesFloat32}}));
            EXPECT_OK(m.commit());
            for (int round = 0; round < 2; ++round)
              for (int g = 0; g < 4; ++g) EXPECT_VISIT(m, g);
            EXPECT_RANK(m.stats().gathers == 4 && m.stats().hits == 4);
            EXPECT_RANK(m.stats().bytesMoved == 40 + 27 + 9);

            Model other(rank, 4);
            EXPECT_OK(other.open(comm));
            EXPECT_OK(other.add({{4, ulyssesInt8}}));
            EXPECT_OK(rank == 0 ? other.add({{1, ulyssesInt8}, {8, ulyssesFloat32}})
                                : other.add({{1, ulyssesInt8}, {16, ulyssesBfloat16}}));
            EXPECT_RANK(other.commit() == ulyssesMismatch);
            EXPECT_RANK(
                lastErrorNames({"group 1", "parameter 1", "shardType", "rank 0 has float32", "rank 1 has bfloat16"}));
            EXPECT_VISIT(m, 1);
            return exchangeWorks(rank, 4, comm);
          })) == "");
}

TEST_CASE("case 6: a change without publish is not seen, a publish on one rank is found, one on all gathers",
          "[host][cases]") {
  for (const As as : {As::Threads, As::Processes})
    CHECK(failures(runComms(as, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
            std::vector<uint32_t> shard(8);
            const auto set = [&](uint32_t add) {
              for (uint32_t i = 0; i < 8; ++i) shard[i] = static_cast<uint32_t>(rank) * 100 + i + add;
            };
            const auto isSet = [](const void* p, uint32_t add) {
              const auto* v = static_cast<const uint32_t*>(p);
              for (uint32_t i = 0; i < 16; ++i)
                if (v[i] != i / 8 * 100 + i % 8 + add) return false;
              return true;
            };
            set(0);
            ulyssesParamComm_t params = nullptr;
            ulyssesParamDesc_t d = ULYSSES_PARAM_DESC_INITIALIZER;
            d.count = 16;
            d.shardType = d.gatherType = ulyssesUint32;
            d.shard = shard.data();
            int group = -1;
            void* p = nullptr;
            ulyssesParamStats_t stats = ULYSSES_PARAM_STATS_INITIALIZER;
            const auto acquire = [&] { return ulyssesParamAcquire(params, group, &p, nullptr); };
            const auto release = [&] { return ulyssesParamRelease(params, group, nullptr); };
            EXPECT_OK(ulyssesParamCommCreate(&params, comm, nullptr));
            EXPECT_OK(ulyssesParamGroupAdd(params, 1, &d, &group));
            EXPECT_OK(ulyssesParamCommit(params));
            for (int call = 0; call < 2; ++call) {
              EXPECT_OK(acquire());
              EXPECT_RANK(isSet(p, 0));
              EXPECT_OK(release());
              EXPECT_OK(ulyssesParamGetStats(params, &stats));
              EXPECT_RANK(stats.bytesMoved == 64);
            }
            set(1000);
            void* const before = p;
            EXPECT_OK(acquire());
            EXPECT_RANK(isSet(p, 0) && p == before);
            EXPECT_OK(release());

            if (rank == 1) {
              EXPECT_OK(ulyssesParamPublish(params, group, nullptr));
              EXPECT_RANK(acquire() == ulyssesMismatch);
            } else {
              EXPECT_OK(acquire());
              EXPECT_RANK(isSet(p, 0));
              EXPECT_OK(release());
              EXPECT_RANK(mismatchArrives(comm));
              EXPECT_RANK(acquire() == ulyssesMismatch);
            }
            EXPECT_RANK(release() == ulyssesInvalidUsage);
            EXPECT_OK(ulyssesParamPublish(params, group, nullptr));
            EXPECT_OK(acquire());
            EXPECT_RANK(isSet(p, 1000) && p == before);
            EXPECT_OK(release());
            EXPECT_OK(ulyssesParamGetStats(params, &stats));
            EXPECT_RANK(stats.gathers == 2 && stats.bytesMoved == 128);
            EXPECT_OK(ulyssesParamCommDestroy(params));
            return "";
          })) == "");
}

TEST_CASE("case 4: an exchange against a parameter gather, and against a hit", "[host][cases]") {
  for (const As as : {As::Threads, As::Processes})
    CHECK(failures(runComms(as, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
            Model m(rank, 2);
            EXPECT_OK(m.open(comm));
            EXPECT_OK(m.add({{64, ulyssesFloat32}}));
            EXPECT_OK(m.commit());
            const Shape t{2, 4, 4, 3, 4};
            Fenced in(sequenceSide(t, 2, rank)), out(headSide(t, 2, rank).size());
            const auto exchange = [&] {
              return ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm,
                                nullptr);
            };
            EXPECT_RANK((rank == 0 ? exchange() : m.acquire(0)) == ulyssesMismatch);
            EXPECT_RANK(lastErrorNames({"operation", "ulyssesA2A", "ulyssesParamAcquire"}));
            EXPECT_RANK(out.untouched() && (rank == 0 || m.pointers[0] == nullptr));
            EXPECT_VISIT(m, 0);
            EXPECT_OK(exchange());

            // Now the gather is a hit, which does not wait: the exchange finds it at once, its rank by the next call.
            if (rank == 0) {
              Fenced untouched(out.content().size());
              EXPECT_RANK(ulyssesA2A(in.data(), untouched.data(), t.B, t.S, t.H, t.D, ulyssesFloat32,
                                     ulyssesScatterHeads, comm, nullptr) == ulyssesMismatch);
              EXPECT_RANK(untouched.untouched());
            } else {
              EXPECT_OK(m.acquire(0));
              EXPECT_OK(m.release(0));
              EXPECT_RANK(exchange() == ulyssesMismatch);
            }
            EXPECT_OK(exchange());
            EXPECT_RANK(out.content() == headSide(t, 2, rank));

            // Uses of different groups, found by the next common call.
            EXPECT_OK(m.reshard(0));
            Model two(rank, 2);
            EXPECT_OK(two.open(comm));
            EXPECT_OK(two.add({{5, ulyssesInt8}}));
            EXPECT_OK(two.add({{5, ulyssesInt8}}));
            EXPECT_OK(two.commit());
            EXPECT_VISIT(two, 0);
            EXPECT_VISIT(two, 1);
            EXPECT_VISIT(two, rank);
            EXPECT_RANK(exchange() == ulyssesMismatch);
            EXPECT_RANK(lastErrorNames({"resident parameter groups"}));
            EXPECT_OK(exchange());
            return "";
          })) == "");
}

TEST_CASE("case 26: exchanges in one thread beside parameter communicators of another communicator", "[host][cases]") {
  CHECK(failures(runComms(As::Threads, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          ulyssesComm_t other = nullptr;
          EXPECT_OK(ulyssesCommSplit(comm, 0, rank, &other, nullptr));
          std::string beside;
          std::thread thread([&] {
            beside = [&]() -> std::string {
              for (int i = 0; i < 100; ++i) {
                Model m(rank, 2);
                EXPECT_OK(m.open(other, i % 2 != 0 ? ulyssesResidencyTransient : ulyssesResidencyPersistent));
                EXPECT_OK(m.add({{20000, ulyssesFloat32}}));
                EXPECT_OK(m.commit());
                EXPECT_VISIT(m, 0);
              }
              return "";
            }();
          });
          std::string exchanged;
          for (int i = 0; i < 400 && exchanged.empty(); ++i) exchanged = exchangeWorks(rank, 2, comm);
          thread.join();
          EXPECT_OK(ulyssesCommDestroy(other));
          return exchanged + beside;
        })) == "");
}

}  // namespace ulysses::testing
