// A fixed mix of calls, for as long as one likes: a third below 4 KB a rank, a third to 1 MB, a third to the most; both
// directions, all types, eager calls and plans with their inverses, even and uneven splits, flat collectives, windows,
// communicators split off, parameters. Every output is checked; memory, descriptors and
// windows must stay flat. All ranks draw the calls from one seed, and their delays from their own.
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <string_view>

#include "base/test_hooks.h"
#include "soak/buffer.h"
#include "support/ranks.h"
#include "support/rendezvous_process.h"

namespace ulysses::testing {
namespace {

struct Options {
  uint64_t ranks = 2, calls = 1000, seed = 1, mostBytes = uint64_t{64} << 20, firstRound = 1, delayUs = 2000;
  uint64_t seconds = 600;
  Memory memory = Memory::Host;
};

bool parse(int argc, char** argv, Options* o) {
  const std::pair<std::string_view, uint64_t*> known[] = {{"--ranks", &o->ranks},
                                                          {"--calls", &o->calls},
                                                          {"--seed", &o->seed},
                                                          {"--most-bytes", &o->mostBytes},
                                                          {"--first-round", &o->firstRound},
                                                          {"--delay-us", &o->delayUs},
                                                          {"--seconds", &o->seconds}};
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && argv[i] == std::string_view("--memory")) {
      o->memory = argv[i + 1] == std::string_view("device") ? Memory::Device : Memory::Host;
      if (o->memory == Memory::Host ? argv[i + 1] != std::string_view("host") : !kSoakKnowsDevice) return false;
      continue;
    }
    const auto option =
        std::find_if(std::begin(known), std::end(known), [&](const auto& k) { return k.first == argv[i]; });
    const std::string_view value = i + 1 < argc ? argv[i + 1] : "";
    if (option == std::end(known) || value.empty()) return false;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *option->second);
    if (error != std::errc() || end != value.data() + value.size()) return false;
  }
  return o->ranks >= 1 && o->ranks <= 64 && o->calls >= 8 && o->mostBytes >= (1 << 20);
}

constexpr std::pair<ulyssesDataType_t, size_t> kTypes[] = {
    {ulyssesInt8, 1},    {ulyssesUint8, 1},    {ulyssesInt32, 4},      {ulyssesUint32, 4},
    {ulyssesInt64, 8},   {ulyssesUint64, 8},   {ulyssesFloat16, 2},    {ulyssesFloat32, 4},
    {ulyssesFloat64, 8}, {ulyssesBfloat16, 2}, {ulyssesFloat8e4m3, 1}, {ulyssesFloat8e5m2, 1}};

// What must not grow.
struct Footprint {
  size_t resident = 0, descriptors = 0, windows = 0, device = 0;
};

class Soak {
 public:
  Soak(const Options& options, int rank, ulyssesComm_t comm)
      : o_(options),
        P_(static_cast<int>(options.ranks)),
        rank_(rank),
        comm_(comm),
        calls_(options.seed),
        delays_(options.seed * 1000003 + static_cast<uint64_t>(rank)) {}

  std::string run() {
    EXPECT_OK(openParameters());
    Footprint early;
    for (call_ = 0; call_ < o_.calls; ++call_) {
      if (delays_() % 16 == 0 && o_.delayUs > 0) usleep(static_cast<useconds_t>(delays_() % o_.delayUs));
      std::string text = one();
      if (!text.empty()) return "call " + std::to_string(call_) + ": " + text;
      if (call_ % std::max<uint64_t>(o_.calls / 64, 1) != 0) continue;
      const Footprint now = look();
      if (call_ < o_.calls / 2) {
        early.resident = std::max(early.resident, now.resident);
        early.descriptors = std::max(early.descriptors, now.descriptors);
        early.windows = std::max(early.windows, now.windows);
        early.device = std::max(early.device, now.device);
        continue;
      }
      EXPECT_RANK(now.descriptors <= early.descriptors);
      EXPECT_RANK(now.windows <= early.windows);
      // Sanitizers keep what was freed.
      constexpr size_t kSlack = size_t{24} << 20;
      EXPECT_RANK(kSanitized || now.resident <= early.resident + kSlack);
      last_ = now;
    }
    if (rank_ == 0)
      std::printf("%zu MB moved, %zu MB resident, %zu descriptors, %zu window bytes\n", moved_ >> 20,
                  last_.resident >> 20, last_.descriptors, last_.windows);
    // The soak's own buffers included, which differ with the calls: for the reader's eye.
    if (rank_ == 0 && o_.memory == Memory::Device)
      std::printf("%zu MB of the GPU in use by all, %zu MB at most in the first half\n", last_.device >> 20,
                  early.device >> 20);
    std::fflush(stdout);
    EXPECT_OK(ulyssesParamCommDestroy(params_));
    return "";
  }

 private:
  size_t below(size_t n) { return calls_() % n; }

  // Elements' bytes of one rank's operand. Within a third of the mix, every octave has a like number of calls or, in the
  // last third, of bytes: else a few sizes would take all of a soak's time.
  size_t drawBytes() {
    const double lows[] = {16, 4096, 1 << 20}, highs[] = {4096, 1 << 20, static_cast<double>(o_.mostBytes)};
    const size_t third = below(3);
    const double low = lows[third], high = highs[third], at = std::uniform_real_distribution<>(0, 1)(calls_);
    return static_cast<size_t>(third < 2 ? low * std::pow(high / low, at) : 1 / (1 / low - at * (1 / low - 1 / high)));
  }

  Shape drawShape(size_t elementBytes) {
    Shape t{1 + below(3), 0, 1 + below(4 * o_.ranks), size_t{1} << below(8), elementBytes};
    const size_t whole = drawBytes() * o_.ranks;
    const auto row = [&] { return t.B * t.H * t.D * elementBytes; };
    while (t.D > 1 && row() * o_.ranks > whole) t.D /= 2;
    while (t.H > 1 && row() * o_.ranks > whole) t.H /= 2;
    t.S = std::max<size_t>(1, whole / row());
    return t;
  }

  std::string one() {
    switch (below(16)) {
      case 0:
        return flat(true);
      case 1:
        return flat(false);
      case 2:
        return parameters();
      case 3:
        return below(8) == 0 ? split() : parameters();
      case 4:
      case 5:
      case 6:
        return planned();
      default:
        return eager(below(3) == 0);
    }
  }

  std::string eager(bool toWindow) {
    const auto [type, bytes] = kTypes[below(std::size(kTypes))];
    const Shape t = drawShape(bytes);
    const bool scatter = below(2) == 0;
    const uint64_t salt = calls_();
    Content given{t, balanced(t.S, P_, rank_), {0, t.H}, salt}, expected{t, {0, t.S}, balanced(t.H, P_, rank_), salt};
    if (!scatter) std::swap(given, expected);
    const Buffer in(o_.memory, given);
    Buffer plain(o_.memory, toWindow ? 0 : expected.bytes());
    void* window = nullptr;
    if (toWindow) EXPECT_OK(ulyssesMemAlloc(&window, expected.bytes(), comm_));
    void* out = toWindow ? window : plain.data();
    EXPECT_OK(ulyssesA2A(in.data(), out, t.B, t.S, t.H, t.D, type, scatter ? ulyssesScatterHeads : ulyssesGatherHeads,
                         comm_, nullptr));
    EXPECT_RANK(holds(o_.memory, out, expected));
    EXPECT_OK(ulyssesMemFree(window, comm_));
    moved_ += in.size();
    return "";
  }

  // Parts of the sequence as the caller might have them, some of them nothing.
  std::vector<size_t> drawSplits(size_t seq) {
    std::vector<size_t> splits(o_.ranks);
    for (size_t r = 0, left = seq; r < o_.ranks; left -= splits[r++])
      splits[r] = r + 1 == o_.ranks ? left : below(2 * left / (o_.ranks - r) + 1);
    return splits;
  }

  // Operands of different head counts over one sequence, there and back, from either side.
  std::string planned() {
    const auto [type, bytes] = kTypes[below(std::size(kTypes))];
    const Shape first = drawShape(bytes);
    const size_t n = 1 + below(3);
    const bool scatter = below(2) == 0, even = below(2) == 0;
    const std::vector<size_t> splits = drawSplits(first.S);
    Part mine = balanced(first.S, P_, rank_);
    if (!even) {
      mine = {0, splits[static_cast<size_t>(rank_)]};
      for (size_t r = 0; r < static_cast<size_t>(rank_); ++r) mine.first += splits[r];
    }
    const uint64_t salt = calls_();
    std::vector<ulyssesA2ADesc_t> descs;
    std::vector<Content> sent, received;
    std::vector<Buffer> in, out, back;
    for (size_t i = 0; i < n; ++i) {
      Shape t = first;
      if (i > 0) t.H = 1 + below(2 * o_.ranks);
      ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
      d.batch = t.B, d.seq = t.S, d.heads = t.H, d.headDim = t.D, d.dtype = type;
      d.direction = scatter ? ulyssesScatterHeads : ulyssesGatherHeads;
      d.seqSplits = even ? nullptr : splits.data();
      descs.push_back(d);
      sent.push_back({t, mine, {0, t.H}, salt + i});
      received.push_back({t, {0, t.S}, balanced(t.H, P_, rank_), salt + i});
      if (!scatter) std::swap(sent[i], received[i]);
      in.emplace_back(o_.memory, sent[i]);
      out.emplace_back(o_.memory, received[i].bytes());
      back.emplace_back(o_.memory, sent[i].bytes());
      moved_ += 2 * sent[i].bytes();
    }
    std::vector<const void*> ins, outsRead;
    std::vector<void*> outs, backs;
    for (size_t i = 0; i < n; ++i) {
      ins.push_back(in[i].data());
      outs.push_back(out[i].data());
      outsRead.push_back(out[i].data());
      backs.push_back(back[i].data());
    }
    ulyssesPlan_t plan = nullptr, inverse = nullptr;
    EXPECT_OK(ulyssesPlanCreate(&plan, static_cast<int>(n), descs.data(), comm_));
    EXPECT_OK(ulyssesPlanInverse(plan, nullptr, &inverse));
    EXPECT_OK(ulyssesPlanExecute(plan, ins.data(), outs.data(), nullptr));
    EXPECT_OK(ulyssesPlanExecute(inverse, outsRead.data(), backs.data(), nullptr));
    for (size_t i = 0; i < n; ++i) EXPECT_RANK(out[i].holds(received[i]) && back[i].holds(sent[i]));
    EXPECT_OK(ulyssesPlanDestroy(plan));
    EXPECT_OK(ulyssesPlanDestroy(inverse));
    return "";
  }

  std::string flat(bool gather) {
    const auto [type, bytes] = kTypes[below(std::size(kTypes))];
    const auto P = static_cast<size_t>(P_), me = static_cast<size_t>(rank_);
    const size_t count = drawBytes() / bytes / (gather ? 1 : P);
    // [sender, receiver, count]
    const Shape t{1, P, gather ? 1 : P, count, bytes};
    const uint64_t salt = calls_();
    const Content expected{t, {0, P}, gather ? Part{0, 1} : Part{me, 1}, salt};
    const Buffer in(o_.memory, Content{t, {me, 1}, {0, t.H}, salt});
    Buffer out(o_.memory, expected.bytes());
    EXPECT_OK(gather ? ulyssesAllGather(in.data(), out.data(), count, type, comm_, nullptr)
                     : ulyssesAlltoAll(in.data(), out.data(), count, type, comm_, nullptr));
    EXPECT_RANK(out.holds(expected));
    moved_ += in.size();
    return "";
  }

  std::string split() {
    const int color = static_cast<int>(below(3));
    ulyssesComm_t child = nullptr;
    const bool joins = (rank_ + color) % 3 != 0;
    EXPECT_OK(ulyssesCommSplit(comm_, joins ? 0 : ULYSSES_SPLIT_NOCOLOR, -rank_, &child, nullptr));
    EXPECT_RANK((child != nullptr) == joins);
    if (!joins) return "";
    int size = 0, place = -1, below = 0;
    EXPECT_OK(ulyssesCommCount(child, &size));
    EXPECT_OK(ulyssesCommUserRank(child, &place));
    for (int r = P_ - 1; r > rank_; --r) below += (r + color) % 3 != 0;  // the keys turn the order round
    EXPECT_RANK(place == below);
    const auto n = static_cast<size_t>(size);
    const Shape t{1, n, 1, 100000, 1};
    const Buffer mine(o_.memory, Content{t, {static_cast<size_t>(place), 1}, {0, 1}, 0});
    Buffer all(o_.memory, n * t.D);
    EXPECT_OK(ulyssesAllGather(mine.data(), all.data(), t.D, ulyssesUint8, child, nullptr));
    EXPECT_RANK(all.holds({t, {0, n}, {0, 1}, 0}));
    EXPECT_OK(ulyssesCommDestroy(child));
    return "";
  }

  static constexpr size_t kGroups = 4, kElements = 40000;

  ulyssesResult_t openParameters() {
    ulyssesParamConfig_t config = ULYSSES_PARAM_CONFIG_INITIALIZER;
    config.residency = ulyssesResidencyBudget;
    config.budgetBytes = kElements * sizeof(uint32_t) * 2;
    config.prefetchDepth = 1;
    if (const auto r = ulyssesParamCommCreate(&params_, comm_, &config); r != ulyssesSuccess) return r;
    for (size_t g = 0; g < kGroups; ++g) {
      const Buffer& shard = shards_.emplace_back(o_.memory, shardOf(g));
      ulyssesParamDesc_t d = ULYSSES_PARAM_DESC_INITIALIZER;
      d.count = kElements, d.shardType = d.gatherType = ulyssesUint32, d.shard = shard.data();
      int number = -1;
      if (const auto r = ulyssesParamGroupAdd(params_, 1, &d, &number); r != ulyssesSuccess) return r;
    }
    return ulyssesParamCommit(params_);
  }
  Content whole(size_t g) const { return {{1, kElements, 1, 1, sizeof(uint32_t)}, {0, kElements}, {0, 1}, salts_[g]}; }
  Content shardOf(size_t g) const {
    Content c = whole(g);
    c.seq = balanced(kElements, P_, rank_);
    return c;
  }
  std::string parameters() {
    const size_t g = below(kGroups);
    const int group = static_cast<int>(g);
    if (below(4) == 0) {
      salts_[g] = calls_();
      shards_[g].write(shardOf(g));
      EXPECT_OK(ulyssesParamPublish(params_, group, nullptr));
    }
    if (below(3) == 0) EXPECT_OK(ulyssesParamPrefetch(params_, group, nullptr));
    void* ptr = nullptr;
    EXPECT_OK(ulyssesParamAcquire(params_, group, &ptr, nullptr));
    EXPECT_RANK(holds(o_.memory, ptr, whole(g)));
    EXPECT_OK(ulyssesParamRelease(params_, group, nullptr));
    return "";
  }
  Footprint look() const {
    Footprint f;
    malloc_trim(0);  // what was given back counts no more
    size_t total = 0, resident = 0, shared = 0;
    std::ifstream("/proc/self/statm") >> total >> resident >> shared;
    f.resident = (resident - shared) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (int fd = 0; fd < 1024; ++fd) f.descriptors += fcntl(fd, F_GETFD) >= 0;
    ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
    if (ulyssesCommGetInfo(comm_, &info) == ulyssesSuccess) f.windows = info.windowBytes;
    if (o_.memory == Memory::Device) f.device = usedOnDevice();
    return f;
  }

  const Options o_;
  const int P_, rank_;
  const ulyssesComm_t comm_;
  std::mt19937_64 calls_, delays_;
  uint64_t call_ = 0;
  size_t moved_ = 0;
  Footprint last_;
  ulyssesParamComm_t params_ = nullptr;
  std::vector<Buffer> shards_;
  std::array<uint64_t, kGroups> salts_{};
};

}  // namespace
}  // namespace ulysses::testing

int main(int argc, char** argv) {
  using namespace ulysses::testing;
  Options options;
  if (!parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: soak [--ranks 2] [--calls 1000] [--seed 1] [--most-bytes 67108864] [--first-round 1] "
                 "[--delay-us 2000] [--seconds 600: until a rank must be done] [--memory host|device: the latter where "
                 "CUDA is]\n");
    return 2;
  }
  // Buffers of one call after the other are the same memory, as they are in a program that keeps them.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const auto begun = std::chrono::steady_clock::now();
  const int P = static_cast<int>(options.ranks);
  const RendezvousProcess rendezvous;
  const ulyssesUniqueId id = rendezvous.id();
  const std::string texts = failures(runRanks(
      As::Processes, P,
      [&](int rank) -> std::string {
        ulysses::hooks::setFirstRound(options.firstRound);
        if (options.memory == Memory::Device) chooseDevice(rank);
        ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
        config.memory = options.memory == Memory::Host ? ulyssesMemoryHost : ulyssesMemoryCuda;
        ulyssesComm_t comm = nullptr;
        EXPECT_OK(ulyssesCommInitRankConfig(&comm, P, id, rank, &config));
        std::string text = Soak(options, rank, comm).run();
        if (ulyssesCommDestroy(comm) != ulyssesSuccess && text.empty()) text = "destroy";
        return text;
      },
      static_cast<int>(options.seconds)));
  std::fprintf(stderr, "%s", texts.c_str());
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::printf("%d ranks, %llu calls, seed %llu: %.1f s, %s\n", P, static_cast<unsigned long long>(options.calls),
              static_cast<unsigned long long>(options.seed), seconds, texts.empty() ? "all exact" : "FAILED");
  return texts.empty() ? 0 : 1;
}
