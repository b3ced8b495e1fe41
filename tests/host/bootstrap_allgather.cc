// Allgathers within a process, of the caller, and over a channel.
#include "bootstrap_ranks.h"
#include "support/catch.h"

using namespace ulysses;
using namespace ulysses::test;

namespace {

std::string gatherRanks(const Allgather& allgather, int rank, int nranks, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const int mine = rank + 100 * round;
    std::vector<int> all(static_cast<size_t>(nranks), -1);
    const Status status = allgather(&mine, all.data(), sizeof mine);
    if (!status.ok()) return describe(status);
    for (int r = 0; r < nranks; ++r) {
      if (all[static_cast<size_t>(r)] != r + 100 * round) return "wrong data";
    }
  }
  return "ok";
}

}  // namespace

TEST_CASE("threads of one process gather", "[bootstrap]") {
  for (const int nranks : {1, 2, 3, 8}) {
    const std::vector<Allgather> ends = inProcessAllgather(nranks, Deadline::afterMs(10'000));
    CHECK(allAre(runThreads(nranks, [&](int r) { return gatherRanks(ends[static_cast<size_t>(r)], r, nranks, 200); }),
                 "ok"));
  }
}

TEST_CASE("a thread that does not come is named", "[bootstrap]") {
  const std::vector<Allgather> ends = inProcessAllgather(4, Deadline::afterMs(200));
  const auto said = runThreads(2, [&](int r) { return gatherRanks(ends[static_cast<size_t>(r)], r, 4, 1); });
  CHECK(said[0].find("8: timed out waiting for ranks 2 and 3 of 4") == 0);
  CHECK(said[1] == said[0]);
  CHECK(gatherRanks(ends[2], 2, 4, 1) == said[0]);
}

TEST_CASE("a thread that gives up does not leave the others waiting", "[bootstrap]") {
  std::vector<Allgather> ends = inProcessAllgather(3, Deadline::never());
  const auto said = runThreads(3, [&](int r) {
    const Allgather mine = std::move(ends[static_cast<size_t>(r)]);
    ends[static_cast<size_t>(r)] = nullptr;
    const std::string first = gatherRanks(mine, r, 3, 1);
    if (first != "ok" || r == 1) return first;
    return gatherRanks(mine, r, 3, 1);
  });
  CHECK(said[0].find("6: rank 1 of 3 has left") == 0);
  CHECK(said[1] == "ok");
  CHECK(said[2] == said[0]);
}

TEST_CASE("threads with unequal blocks get one error", "[bootstrap]") {
  const std::vector<Allgather> ends = inProcessAllgather(2, Deadline::afterMs(5000));
  const auto said = runThreads(2, [&](int r) {
    const Bytes mine(r == 0 ? 4 : 6);
    Bytes all(2 * mine.size());
    return describe(ends[static_cast<size_t>(r)](mine.data(), all.data(), mine.size()));
  });
  CHECK(allAre(said, "4: allgather of unequal blocks: rank 0 gives 4 bytes, rank 1 gives 6"));
}

TEST_CASE("the caller's allgather", "[bootstrap]") {
  struct Context {
    const Allgather* end;
    int code;
  };
  const auto forward = [](void* context, const void* send, void* recv, size_t bytes) -> int {
    const auto* c = static_cast<const Context*>(context);
    return c->code != 0 ? c->code : static_cast<int>((*c->end)(send, recv, bytes).code());
  };
  const std::vector<Allgather> ends = inProcessAllgather(3, Deadline::afterMs(10'000));
  SECTION("opens a channel") {
    const auto said = runThreads(3, [&](int r) {
      Context context{&ends[static_cast<size_t>(r)], 0};
      const ulyssesOob_t oob{r, 3, &context, forward};
      const Deadline deadline = Deadline::afterMs(10'000);
      Result<std::unique_ptr<ControlChannel>> channel = ControlChannel::open(r, 3, callerAllgather(oob), deadline);
      if (!channel.ok()) return describe(channel.status());
      // And that channel, a channel of its own.
      auto second = ControlChannel::open(r, 3, channelAllgather(*channel.value(), deadline), deadline);
      if (!second.ok()) return describe(second.status());
      return gatherRanks(channelAllgather(*second.value(), deadline), r, 3, 20);
    });
    CHECK(allAre(said, "ok"));
  }
  SECTION("its return code is told") {
    Context context{&ends[0], 17};
    const ulyssesOob_t oob{1, 3, &context, forward};
    int mine = 0, all[3] = {};
    const Status status = callerAllgather(oob)(&mine, all, sizeof mine);
    CHECK(describe(status) == "6: the caller's allgather returned 17 on rank 1 (4 bytes from each of 3 ranks)");
  }
  SECTION("what cannot work is not called") {
    int mine = 0, all[3] = {};
    CHECK(callerAllgather({0, 1, nullptr, nullptr})(&mine, all, sizeof mine).code() == ulyssesInvalidArgument);
    CHECK(callerAllgather({0, 0, nullptr, forward})(&mine, all, sizeof mine).code() == ulyssesInvalidArgument);
  }
}
