// Arguments that cannot be right, on one rank or on all: the same error on all ranks, at once, and nothing left behind.
#include <unistd.h>

#include <cstdint>
#include <functional>

#include "api/group.h"
#include "base/test_hooks.h"
#include "bootstrap/bootstrap.h"
#include "param_model.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/tensors.h"

namespace ulysses::testing {
namespace {

// Long enough that a rank left waiting shows as a timeout in the text, and short enough not to look like a hang.
ulyssesConfig_t patient() {
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.timeoutMs = 20000;
  return config;
}

using Init = std::function<ulyssesResult_t(ulyssesComm_t*, const ulyssesUniqueId&, int rank)>;

// Every rank's init fails with the code and the words.
std::string allFail(int nranks, ulyssesResult_t code, std::initializer_list<const char*> words, const Init& init) {
  ulyssesUniqueId id;
  if (ulyssesGetUniqueId(&id) != ulyssesSuccess) return "no unique id";
  return failures(runRanks(As::Threads, nranks, [&](int rank) -> std::string {
    ulyssesComm_t comm = nullptr;
    EXPECT_RANK(init(&comm, id, rank) == code);
    EXPECT_RANK(comm == nullptr && lastErrorNames(words));
    return "";
  }));
}

std::string exchangeOnce(int P, int rank, ulyssesComm_t comm) {
  const Shape t{2, 4, 4, 3, 4};
  Fenced in(sequenceSide(t, P, rank)), out(headSide(t, P, rank).size());
  EXPECT_OK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
  EXPECT_RANK(out.content() == headSide(t, P, rank));
  return "";
}

}  // namespace

TEST_CASE("ranks and sizes that do not fit together end init on all ranks at once", "[host]") {
  const ulyssesConfig_t config = patient();
  const auto initAs = [&](std::vector<int> ranks, std::vector<int> sizes) -> Init {
    return [=](ulyssesComm_t* comm, const ulyssesUniqueId& id, int r) {
      const auto i = static_cast<size_t>(r);
      return ulyssesCommInitRankConfig(comm, sizes[i], id, ranks[i], &config);
    };
  };
  const auto code = ulyssesInvalidArgument;
  CHECK(allFail(3, code, {"rank 3 is not in 0 to 2"}, initAs({0, 1, 3}, {3, 3, 3})) == "");
  CHECK(allFail(3, code, {"rank -1 is not in 0 to 2"}, initAs({0, 1, -1}, {3, 3, 3})) == "");
  CHECK(allFail(3, code, {"rank 1", "once"}, initAs({0, 1, 1}, {3, 3, 3})) == "");
  CHECK(allFail(3, code, {"differ in nranks"}, initAs({0, 1, 2}, {3, 4, 3})) == "");
  CHECK(allFail(3, code, {"nranks"}, initAs({0, 1, 2}, {3, 3, 0})) == "");
  CHECK(allFail(3, code, {"nranks"}, initAs({0, 1, 2}, {3, 3, 1 << 20})) == "");
  CHECK(allFail(1, code, {"nranks 0"}, initAs({0}, {0})) == "");
}

TEST_CASE("one rank that was told it is alone: an error for all, whoever comes first", "[host]") {
  const ulyssesConfig_t config = patient();
  for (const int lateRank : {0, 1}) {
    ulyssesUniqueId id;
    REQUIRE(ulyssesGetUniqueId(&id) == ulyssesSuccess);
    ulyssesResult_t codes[2] = {};
    runRanks(As::Threads, 2, [&](int rank) -> std::string {
      if (rank == lateRank) usleep(200000);
      ulyssesComm_t comm = nullptr;
      codes[rank] = ulyssesCommInitRankConfig(&comm, rank == 0 ? 1 : 2, id, rank, &config);
      if (comm != nullptr) ulyssesCommDestroy(comm);
      return "";
    });
    if (lateRank == 0) {
      CHECK(codes[0] == ulyssesInvalidArgument);
      CHECK(codes[1] == ulyssesInvalidArgument);
    } else {
      // A job of one rank was complete before anybody else came: that one works, the other hears it at once.
      CHECK(codes[0] == ulyssesSuccess);
      CHECK(codes[1] == ulyssesRemoteError);
    }
  }
}

TEST_CASE("what is wrong on one rank at init is everybody's error", "[host]") {
  const ulyssesConfig_t good = patient();
  const auto code = ulyssesInvalidArgument;
  CHECK(allFail(3, code, {"rank 1", "comm is NULL"}, [&](ulyssesComm_t* comm, const ulyssesUniqueId& id, int rank) {
          return ulyssesCommInitRankConfig(rank == 1 ? nullptr : comm, 3, id, rank, &good);
        }) == "");
  struct Wrong {
    const char* word;
    std::function<void(ulyssesConfig_t&)> spoil;
  };
  const std::vector<Wrong> wrongs{
      {"ULYSSES_CONFIG_INITIALIZER", [](auto& c) { c.magic = 0; }},
      {"ULYSSES_CONFIG_INITIALIZER", [](auto& c) { c.size = 8, c.timeoutMs = 1; }},
      {"version 0", [](auto& c) { c.version = 0; }},
      {"version", [](auto& c) { c.version = ULYSSES_VERSION_CODE + 1; }},
      {"memory is 3", [](auto& c) { c.memory = static_cast<ulyssesMemory_t>(3); }},
      {"maxCtas is -1", [](auto& c) { c.maxCtas = -1; }},
      {"timeoutMs is -2", [](auto& c) { c.timeoutMs = -2; }},
      {"reserved is 1", [](auto& c) { c.reserved = 1; }},
  };
  for (const Wrong& wrong : wrongs)
    CHECK(allFail(3, code, {"rank 2", wrong.word}, [&](ulyssesComm_t* comm, const ulyssesUniqueId& id, int rank) {
            ulyssesConfig_t config = good;
            if (rank == 2) wrong.spoil(config);
            return ulyssesCommInitRankConfig(comm, 3, id, rank, &config);
          }) == "");
  ulyssesConfig_t config = good;
  config.reserved = 7;
  ulyssesComm_t comms[2] = {};
  CHECK(ulyssesCommInitAllConfig(comms, 2, nullptr, &config) == code);
  CHECK(failures(runComms(As::Threads, 3, [&](int rank, ulyssesComm_t comm) -> std::string {
          ulyssesComm_t child = nullptr;
          EXPECT_RANK(ulyssesCommSplit(comm, 0, 0, &child, rank == 1 ? &config : nullptr) == code);
          EXPECT_RANK(child == nullptr && lastErrorNames({"rank 1", "reserved is 7"}));
          return exchangeOnce(3, rank, comm);
        })) == "");
}

TEST_CASE("a split without a configuration has that of its parent", "[host]") {
  ulyssesConfig_t config = patient();
  config.windowCapBytes = 12345;
  CHECK(failures(runComms(
            As::Threads, 2,
            [&](int, ulyssesComm_t comm) -> std::string {
              ulyssesComm_t child = nullptr;
              EXPECT_OK(ulyssesCommSplit(comm, 0, 0, &child, nullptr));
              ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
              EXPECT_OK(ulyssesCommGetInfo(child, &info));
              EXPECT_RANK(info.windowCapBytes == 12345);
              EXPECT_OK(ulyssesCommDestroy(child));
              return "";
            },
            &config)) == "");
}

namespace {

// An allgather over threads for ulyssesCommInitOob, in which a caller's number need not be its place.
struct Table {
  std::vector<std::function<int(const void*, void*, size_t)>> ends;
  static int allgather(void* context, const void* send, void* recv, size_t bytes) {
    return (*static_cast<std::function<int(const void*, void*, size_t)>*>(context))(send, recv, bytes);
  }
};

}  // namespace

TEST_CASE("an allgather of the caller's own with wrong ranks, or blocks in another order", "[host]") {
  struct Case {
    int claimed[3];
    const char* word;
  };
  for (const Case& c : {Case{{0, 1, 3}, "rank is 3"}, Case{{1, 0, 2}, "rank order"}, Case{{0, 0, 2}, "block 1"}}) {
    CAPTURE(c.word);
    const std::vector<Allgather> ends = inProcessAllgather(3, Deadline::afterMs(20000));
    CHECK(failures(runRanks(As::Threads, 3, [&](int place) -> std::string {
            std::function<int(const void*, void*, size_t)> end = [&](const void* send, void* recv, size_t bytes) {
              return static_cast<int>(ends[static_cast<size_t>(place)](send, recv, bytes).code());
            };
            const ulyssesOob_t oob{c.claimed[place], 3, &end, Table::allgather};
            ulyssesComm_t comm = nullptr;
            EXPECT_RANK(ulyssesCommInitOob(&comm, &oob, nullptr) == ulyssesInvalidArgument);
            EXPECT_RANK(comm == nullptr && lastErrorNames({c.word}));
            return "";
          })) == "");
  }
  const ulyssesOob_t none{0, 0, nullptr, Table::allgather};
  ulyssesComm_t comm = nullptr;
  CHECK(ulyssesCommInitOob(&comm, &none, nullptr) == ulyssesInvalidArgument);
  CHECK(ulyssesCommInitOob(&comm, nullptr, nullptr) == ulyssesInvalidArgument);
}

TEST_CASE("fields of a descriptor that mean nothing are refused on all ranks", "[host]") {
  struct Wrong {
    const char* word;
    std::function<void(ulyssesA2ADesc_t&)> spoil;
  };
  const std::vector<Wrong> wrongs{{"INITIALIZER", [](auto& d) { d.magic ^= 1; }},
                                  {"INITIALIZER", [](auto& d) { d.size -= 1; }},
                                  {"version", [](auto& d) { d.version = 0; }},
                                  {"version", [](auto& d) { d.version = UINT32_MAX; }},
                                  {"replicateHeads is 77", [](auto& d) { d.replicateHeads = 77; }},
                                  {"gradTracked is -1", [](auto& d) { d.gradTracked = -1; }}};
  CHECK(failures(runComms(As::Threads, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          for (const Wrong& wrong : wrongs) {
            ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
            d.batch = 2, d.seq = 4, d.heads = 4, d.headDim = 3;
            if (rank == 1) wrong.spoil(d);
            ulyssesPlan_t plan = nullptr;
            EXPECT_RANK(ulyssesPlanCreate(&plan, 1, &d, comm) == ulyssesInvalidArgument && plan == nullptr);
            EXPECT_RANK(lastErrorNames({"rank 1", "operand 0", wrong.word}));
          }
          const std::vector<ulyssesA2ADesc_t> many(65, ulyssesA2ADesc_t ULYSSES_A2A_DESC_INITIALIZER);
          ulyssesPlan_t plan = nullptr;
          EXPECT_RANK(ulyssesPlanCreate(&plan, 65, many.data(), comm) == ulyssesInvalidArgument);
          EXPECT_RANK(lastErrorNames({"1 to 64 operands"}));
          return exchangeOnce(2, rank, comm);
        })) == "");
}

TEST_CASE("an exchange in more pieces than a rank can hold is refused on all ranks", "[host]") {
  CHECK(failures(runComms(As::Threads, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
          d.batch = size_t{1} << 40, d.seq = 4, d.heads = 4, d.headDim = 1;
          ulyssesPlan_t plan = nullptr;
          EXPECT_RANK(ulyssesPlanCreate(&plan, 1, &d, comm) == ulyssesInvalidArgument && plan == nullptr);
          EXPECT_RANK(lastErrorNames({"rank 0", "copies"}));
          EXPECT_RANK(ulyssesA2A(nullptr, nullptr, d.batch, 4, 4, 1, ulyssesInt8, ulyssesScatterHeads, comm, nullptr) ==
                      ulyssesInvalidArgument);
          EXPECT_RANK(lastErrorNames({"copies"}));
          return exchangeOnce(2, rank, comm);
        })) == "");
}

TEST_CASE("a buffer that would pass the end of memory is refused on all ranks", "[host]") {
  CHECK(failures(runComms(As::Threads, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          std::vector<float> buffer(96);
          auto* last = reinterpret_cast<float*>(~uintptr_t{0} - 63);
          for (const bool input : {true, false}) {
            const float* in = rank == 1 && input ? last : buffer.data();
            float* out = rank == 1 && !input ? last : buffer.data() + 48;
            EXPECT_RANK(ulyssesA2A(in, out, 2, 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr) ==
                        ulyssesInvalidArgument);
            EXPECT_RANK(lastErrorNames({"rank 1", "end of memory"}));
          }
          return exchangeOnce(2, rank, comm);
        })) == "");
}

TEST_CASE("output structures are known by size, magic and version, size 0 is the first version", "[host]") {
  CHECK(failures(runComms(As::Threads, 1, [](int, ulyssesComm_t comm) -> std::string {
          Model model(0, 1);
          EXPECT_OK(model.open(comm));
          ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
          ulyssesPlan_t plan = nullptr;
          EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
          const auto check = [](auto initial, auto get) -> std::string {
            auto info = initial;
            EXPECT_OK(get(&info));
            EXPECT_RANK(info.size == sizeof info && info.magic == ULYSSES_MAGIC);
            EXPECT_RANK(get(decltype(&info){}) == ulyssesInvalidArgument);
            const auto refused = [&](auto spoil) {
              auto spoilt = initial;
              spoil(spoilt);
              return get(&spoilt) == ulyssesInvalidArgument;
            };
            EXPECT_RANK(refused([](auto& i) { i.magic = 0; }));
            EXPECT_RANK(refused([](auto& i) { i.size = 8; }));
            EXPECT_RANK(refused([](auto& i) { i.version = 0; }));
            EXPECT_RANK(refused([](auto& i) { i.version = ULYSSES_VERSION_CODE + 1; }));
            std::memset(&info, 0, sizeof info);
            EXPECT_OK(get(&info));
            EXPECT_RANK(info.size == 0 && info.magic == ULYSSES_MAGIC);
            return "";
          };
          std::string text;
          text += check(ulyssesCommInfo_t ULYSSES_COMM_INFO_INITIALIZER,
                        [&](ulyssesCommInfo_t* info) { return ulyssesCommGetInfo(comm, info); });
          text += check(ulyssesPlanInfo_t ULYSSES_PLAN_INFO_INITIALIZER,
                        [&](ulyssesPlanInfo_t* info) { return ulyssesPlanGetInfo(plan, info); });
          text += check(ulyssesParamStats_t ULYSSES_PARAM_STATS_INITIALIZER,
                        [&](ulyssesParamStats_t* stats) { return ulyssesParamGetStats(model.params, stats); });
          EXPECT_OK(ulyssesPlanDestroy(plan));
          return text;
        })) == "");
}

TEST_CASE("a handle of another kind, or of none, is refused by every call", "[host]") {
  alignas(16) uint64_t nothing[8] = {};
  const auto comm = reinterpret_cast<ulyssesComm_t>(nothing);
  const auto plan = reinterpret_cast<ulyssesPlan_t>(nothing);
  const auto params = reinterpret_cast<ulyssesParamComm_t>(nothing);
  int number = 0;
  ulyssesResult_t async{};
  ulyssesComm_t child = nullptr;
  ulyssesPlan_t inverse = nullptr;
  ulyssesParamComm_t group = nullptr;
  ulyssesWindow_t window = nullptr;
  void* ptr = nullptr;
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
  ulyssesPlanInfo_t planInfo = ULYSSES_PLAN_INFO_INITIALIZER;
  ulyssesParamStats_t stats = ULYSSES_PARAM_STATS_INITIALIZER;
  const ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
  const ulyssesParamDesc_t p = ULYSSES_PARAM_DESC_INITIALIZER;
  const ulyssesResult_t results[] = {
      ulyssesCommSplit(comm, 0, 0, &child, nullptr),
      ulyssesCommFinalize(comm),
      ulyssesCommDestroy(comm),
      ulyssesCommAbort(comm),
      ulyssesCommGetAsyncError(comm, &async),
      ulyssesCommCount(comm, &number),
      ulyssesCommUserRank(comm, &number),
      ulyssesCommCuDevice(comm, &number),
      ulyssesCommGetInfo(comm, &info),
      ulyssesCommDump(comm, "/dev/null"),
      ulyssesA2A(nullptr, nullptr, 0, 0, 0, 0, ulyssesInt8, ulyssesScatterHeads, comm, nullptr),
      ulyssesAllGather(nullptr, nullptr, 0, ulyssesInt8, comm, nullptr),
      ulyssesAlltoAll(nullptr, nullptr, 0, ulyssesInt8, comm, nullptr),
      ulyssesPlanCreate(&inverse, 1, &d, comm),
      ulyssesPlanExecute(plan, nullptr, nullptr, nullptr),
      ulyssesPlanInverse(plan, nullptr, &inverse),
      ulyssesPlanGetInfo(plan, &planInfo),
      ulyssesPlanDestroy(plan),
      ulyssesMemAlloc(&ptr, 8, comm),
      ulyssesMemFree(&ptr, comm),
      ulyssesWindowRegister(comm, &ptr, 8, &window),
      ulyssesWindowDeregister(comm, window),
      ulyssesParamCommCreate(&group, comm, nullptr),
      ulyssesParamGroupAdd(params, 1, &p, &number),
      ulyssesParamCommit(params),
      ulyssesParamAcquire(params, 0, &ptr, nullptr),
      ulyssesParamRelease(params, 0, nullptr),
      ulyssesParamPrefetch(params, 0, nullptr),
      ulyssesParamPublish(params, 0, nullptr),
      ulyssesParamReshard(params, 0, nullptr),
      ulyssesParamSetBudget(params, 0),
      ulyssesParamGetStats(params, &stats),
      ulyssesParamCommDestroy(params)};
  for (const ulyssesResult_t r : results) CHECK(r == ulyssesInvalidArgument);
}

TEST_CASE("a group that was refused on one rank is why Commit fails on all", "[host][param]") {
  CHECK(failures(runComms(As::Threads, 3, [&](int rank, ulyssesComm_t comm) -> std::string {
          Model model(rank, 3);
          EXPECT_OK(model.open(comm));
          EXPECT_OK(model.add({{9, ulyssesInt8}}));
          std::vector<unsigned char> shard(4);
          ulyssesParamDesc_t d = ULYSSES_PARAM_DESC_INITIALIZER;
          d.count = 12, d.shardType = d.gatherType = ulyssesInt8, d.shard = shard.data();
          d.alignment = rank == 1 ? 3 : 4;
          int group = -1;
          EXPECT_RANK(ulyssesParamGroupAdd(model.params, 1, &d, &group) ==
                      (rank == 1 ? ulyssesInvalidArgument : ulyssesSuccess));
          EXPECT_RANK(ulyssesParamCommit(model.params) == ulyssesInvalidArgument);
          EXPECT_RANK(lastErrorNames({"rank 1", "ulyssesParamGroupAdd", "alignment is 3"}));
          // Made good by the caller: it commits.
          d.alignment = 4;
          if (rank == 1) EXPECT_OK(ulyssesParamGroupAdd(model.params, 1, &d, &group));
          EXPECT_OK(ulyssesParamCommit(model.params));
          return "";
        })) == "");
}

TEST_CASE("a rank of CommInitAll that fails early does not leave the others waiting", "[host]") {
  // The environment of one process makes all ranks fail alike; one alone fails where a thread plants it. The ranks of
  // CommInitAll run in threads of the library, so the first of them is planted: it runs on the caller's.
  for (const auto stage : {hooks::Stage::Configuration, hooks::Stage::ControlMemory, hooks::Stage::Allocate}) {
    hooks::plantFailure(stage, Status(ulyssesSystemError, "planted"));
    ulyssesComm_t comms[3] = {};
    CHECK(ulyssesCommInitAll(comms, 3, nullptr) == ulyssesSystemError);
    CHECK(lastErrorNames({"rank 0", "planted"}));
    for (ulyssesComm_t comm : comms) CHECK(comm == nullptr);
  }
  // One that fails before it meets the others at all, and throws at that: it lets go of its end.
  std::vector<Allgather> ends = inProcessAllgather(2, Deadline::afterMs(20000));
  Status waiting;
  group::start();
  group::add(nullptr, [end = std::move(ends[0])]() -> Status { throw std::bad_alloc(); });
  group::add(nullptr, [end = std::move(ends[1]), &waiting] {
    int mine = 0, all[2];
    return waiting = end(&mine, all, sizeof mine);
  });
  CHECK(group::end().code() == ulyssesOutOfMemory);
  CHECK(waiting.code() == ulyssesRemoteError);

  ulyssesComm_t comms[3] = {};
  REQUIRE(ulyssesCommInitAll(comms, 3, nullptr) == ulyssesSuccess);
  for (ulyssesComm_t comm : comms) CHECK(ulyssesCommDestroy(comm) == ulyssesSuccess);
}

}  // namespace ulysses::testing
