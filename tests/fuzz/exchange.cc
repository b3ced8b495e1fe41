// Geometry, splits and strides through the public API, one to three ranks: refused as the definition says, or every
// byte where the definition puts it and no other byte touched. The definition is written out here, without the
// library's layout.
#include <ulysses/ulysses.h>

#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "fuzz/input.h"

namespace ulysses::fuzz {
namespace {

constexpr size_t kMostExtent = 1 << 16;
constexpr unsigned char kUntouched = 0xEE;
constexpr size_t kElement[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

const std::vector<ulyssesComm_t>& communicators(int P) {
  static auto& made = *new std::map<int, std::vector<ulyssesComm_t>>;  // never destroyed: leaks are counted after that
  std::vector<ulyssesComm_t>& comms = made[P];
  if (comms.empty()) {
    comms.resize(static_cast<size_t>(P));
    ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
    config.memory = ulyssesMemoryHost;
    FUZZ_REQUIRE(ulyssesCommInitAllConfig(comms.data(), P, nullptr, &config) == ulyssesSuccess);
  }
  return comms;
}

using Sizes = std::vector<size_t>;

Sizes dealt(size_t n, size_t parts) {
  Sizes sizes(parts);
  for (size_t i = 0; i < parts; ++i) sizes[i] = n / parts + (i < n % parts);
  return sizes;
}

// One operand as all ranks ask for it.
struct Request {
  size_t P = 1, B = 0, S = 0, H = 0, D = 0;
  int dtype = 0, direction = 0;
  std::optional<Sizes> seqSplits, headSplits;
  int replicate = 0;
  size_t groups = 0;
  std::vector<std::array<size_t, 3>> inStride, outStride;  // of each rank
  size_t element() const { return kElement[dtype]; }
};

Request takeRequest(Input& input) {
  Request q;
  q.P = 1 + input.below(3);
  const size_t shape = input.take<uint16_t>();
  q.B = shape % 4, q.S = shape / 4 % 16, q.H = shape / 64 % 16, q.D = shape / 1024 % 8;
  q.dtype = static_cast<int>(input.below(12));
  const uint8_t bits = input.take<uint8_t>();
  q.direction = bits & 1;
  q.replicate = bits >> 1 & 1;
  if (bits & 4) q.groups = input.below(8);
  const auto splits = [&](size_t n) {
    Sizes sizes(q.P);
    size_t left = n;
    for (size_t& s : sizes) left -= s = std::min(left, input.below(16));
    if (!input.flag()) sizes.back() += left;  // else they may not add up
    return sizes;
  };
  if (bits & 8) q.seqSplits = splits(q.S);
  if (bits & 16) q.headSplits = splits(q.H);
  for (size_t r = 0; r < q.P; ++r) {
    std::array<size_t, 3> in{}, out{};
    if (bits & 32)
      for (size_t& s : in) s = input.take<uint8_t>();
    if (bits & 64)
      for (size_t& s : out) s = input.take<uint8_t>();
    q.inStride.push_back(in);
    q.outStride.push_back(out);
  }
  return q;
}

// Who holds which tokens and heads; nothing where the request can't be met.
struct Owned {
  std::vector<Sizes> tokens, heads;
};
std::optional<Owned> ownership(const Request& q) {
  const auto consecutive = [](const Sizes& sizes, size_t n) -> std::optional<std::vector<Sizes>> {
    if (std::accumulate(sizes.begin(), sizes.end(), size_t{0}) != n) return std::nullopt;
    std::vector<Sizes> items;
    size_t next = 0;
    for (const size_t size : sizes) {
      Sizes mine(size);
      std::iota(mine.begin(), mine.end(), next);
      next += size;
      items.push_back(mine);
    }
    return items;
  };
  Owned owned;
  const auto tokens = consecutive(q.seqSplits.value_or(dealt(q.S, q.P)), q.S);
  if (!tokens) return std::nullopt;
  owned.tokens = *tokens;
  const bool replicate = q.replicate != 0 && q.H > 0 && q.H < q.P;
  Sizes sizes = dealt(q.H, q.P);
  if (q.headSplits) {
    if (q.groups != 0 || replicate) return std::nullopt;
    sizes = *q.headSplits;
  } else {
    if (q.groups != 0 && q.H % q.groups != 0) return std::nullopt;
    if (replicate) {
      if (q.P % q.H != 0) return std::nullopt;
      for (size_t r = 0; r < q.P; ++r) owned.heads.push_back({r / (q.P / q.H)});
      return owned;
    }
    if (q.groups >= q.P) {
      sizes = dealt(q.groups, q.P);
      for (size_t& s : sizes) s *= q.H / q.groups;
    } else if (q.groups != 0) {
      if (q.P % q.groups != 0) return std::nullopt;
      const Sizes within = dealt(q.H / q.groups, q.P / q.groups);
      sizes.clear();
      for (size_t g = 0; g < q.groups; ++g) sizes.insert(sizes.end(), within.begin(), within.end());
    }
  }
  const auto heads = consecutive(sizes, q.H);
  if (!heads) return std::nullopt;
  owned.heads = *heads;
  return owned;
}

// One rank's tensor on one side, in memory.
struct Tensor {
  size_t B, S, H, D, element;
  std::array<size_t, 3> stride;
  std::vector<unsigned char> bytes;

  bool empty() const { return B * S * H * D == 0; }
  size_t at(size_t b, size_t s, size_t h, size_t d) const {
    return (b * stride[0] + s * stride[1] + h * stride[2] + d) * element;
  }
  template <class Visit>
  void forEach(Visit visit) const {
    for (size_t b = 0; b < B; ++b)
      for (size_t s = 0; s < S; ++s)
        for (size_t h = 0; h < H; ++h)
          for (size_t d = 0; d < D; ++d) visit(b, s, h, d);
  }
  bool overlaps() const {
    std::vector<bool> taken(bytes.size() / element);
    bool found = false;
    forEach([&](size_t b, size_t s, size_t h, size_t d) {
      const size_t i = at(b, s, h, d) / element;
      found = found || taken[i];
      taken[i] = true;
    });
    return found;
  }
};

Tensor makeTensor(const Request& q, size_t S, size_t H, std::array<size_t, 3> stride) {
  if (stride == std::array<size_t, 3>{}) stride = {S * H * q.D, H * q.D, q.D};
  Tensor t{q.B, S, H, q.D, q.element(), stride, {}};
  if (!t.empty()) t.bytes.assign(t.at(q.B - 1, S - 1, H - 1, q.D - 1) + t.element, kUntouched);
  return t;
}

ulyssesA2ADesc_t descOf(const Request& q, size_t rank) {
  ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
  d.batch = q.B, d.seq = q.S, d.heads = q.H, d.headDim = q.D;
  d.dtype = static_cast<ulyssesDataType_t>(q.dtype);
  d.direction = static_cast<ulyssesDirection_t>(q.direction);
  if (q.seqSplits) d.seqSplits = q.seqSplits->data();
  if (q.headSplits) d.headSplits = q.headSplits->data();
  d.replicateHeads = q.replicate;
  d.headGroups = q.groups;
  std::copy(q.inStride[rank].begin(), q.inStride[rank].end(), d.inStride);
  std::copy(q.outStride[rank].begin(), q.outStride[rank].end(), d.outStride);
  return d;
}

// All ranks' plans or none, with one outcome.
ulyssesResult_t create(const std::vector<ulyssesComm_t>& comms, const std::vector<ulyssesA2ADesc_t>& descs,
                       std::vector<ulyssesPlan_t>& plans) {
  plans.assign(comms.size(), nullptr);
  FUZZ_REQUIRE(ulyssesGroupStart() == ulyssesSuccess);
  for (size_t r = 0; r < comms.size(); ++r)
    FUZZ_REQUIRE(ulyssesPlanCreate(&plans[r], 1, &descs[r], comms[r]) == ulyssesSuccess);
  const ulyssesResult_t result = ulyssesGroupEnd();
  for (const ulyssesPlan_t plan : plans) FUZZ_REQUIRE((plan != nullptr) == (result == ulyssesSuccess));
  return result;
}

void execute(const std::vector<ulyssesPlan_t>& plans, std::vector<Tensor>& in, std::vector<Tensor>& out) {
  FUZZ_REQUIRE(ulyssesGroupStart() == ulyssesSuccess);
  for (size_t r = 0; r < plans.size(); ++r) {
    const void* ins[] = {in[r].bytes.data()};
    void* outs[] = {out[r].bytes.data()};
    FUZZ_REQUIRE(ulyssesPlanExecute(plans[r], ins, outs, nullptr) == ulyssesSuccess);
  }
  FUZZ_REQUIRE(ulyssesGroupEnd() == ulyssesSuccess);
}

void destroy(const std::vector<ulyssesPlan_t>& plans) {
  for (const ulyssesPlan_t plan : plans) FUZZ_REQUIRE(ulyssesPlanDestroy(plan) == ulyssesSuccess);
}

void small(Input input) {
  const Request q = takeRequest(input);
  const std::vector<ulyssesComm_t>& comms = communicators(static_cast<int>(q.P));
  const std::optional<Owned> owned = ownership(q);
  const bool scatter = q.direction == ulyssesScatterHeads;

  // Head h of the gathered side, as rank r's i-th: replicas lie beside each other there.
  std::vector<std::pair<size_t, size_t>> headOf;  // of the global heads: owner, its number there
  std::vector<Tensor> in, out;
  bool valid = owned.has_value();
  if (owned) {
    for (size_t r = 0; r < q.P; ++r)
      for (size_t i = 0; i < owned->heads[r].size(); ++i) headOf.emplace_back(r, i);
    for (size_t r = 0; r < q.P; ++r) {
      const size_t mine = owned->tokens[r].size(), heads = owned->heads[r].size();
      in.push_back(scatter ? makeTensor(q, mine, q.H, q.inStride[r]) : makeTensor(q, q.S, heads, q.inStride[r]));
      out.push_back(scatter ? makeTensor(q, q.S, heads, q.outStride[r])
                            : makeTensor(q, mine, headOf.size(), q.outStride[r]));
      if (in[r].bytes.size() > kMostExtent || out[r].bytes.size() > kMostExtent) return;
      valid = valid && !out[r].overlaps();
    }
  }
  std::vector<ulyssesA2ADesc_t> descs;
  for (size_t r = 0; r < q.P; ++r) descs.push_back(descOf(q, r));
  std::vector<ulyssesPlan_t> plans;
  const ulyssesResult_t created = create(comms, descs, plans);
  FUZZ_REQUIRE(created == (valid ? ulyssesSuccess : ulyssesInvalidArgument));
  if (!valid) return;

  for (size_t r = 0; r < q.P; ++r)
    for (size_t i = 0; i < in[r].bytes.size(); ++i)
      in[r].bytes[i] = static_cast<unsigned char>((i * 37 + r * 101 + 11) % 233);
  std::vector<Tensor> expected = out;
  for (size_t r = 0; r < q.P; ++r) {
    expected[r].forEach([&](size_t b, size_t s, size_t h, size_t d) {
      size_t from = 0, at = 0;
      if (scatter) {
        while (s >= owned->tokens[from].size() + (owned->tokens[from].empty() ? 0 : owned->tokens[from][0]) ||
               owned->tokens[from].empty())
          ++from;
        at = in[from].at(b, s - owned->tokens[from][0], owned->heads[r][h], d);
      } else {
        from = headOf[h].first;
        at = in[from].at(b, owned->tokens[r][s], headOf[h].second, d);
      }
      std::memcpy(&expected[r].bytes[expected[r].at(b, s, h, d)], &in[from].bytes[at], q.element());
    });
  }
  execute(plans, in, out);
  for (size_t r = 0; r < q.P; ++r) FUZZ_REQUIRE(out[r].bytes == expected[r].bytes);

  // And back, where the inputs' elements have places of their own and nothing was replicated.
  bool back = headOf.size() == q.H;
  for (const Tensor& t : in) back = back && !t.overlaps();
  if (back) {
    std::vector<ulyssesPlan_t> inverse(plans.size());
    std::vector<Tensor> restored = in;
    for (size_t r = 0; r < q.P; ++r) {
      FUZZ_REQUIRE(ulyssesPlanInverse(plans[r], nullptr, &inverse[r]) == ulyssesSuccess);
      // What lies between the elements is nobody's.
      std::vector<unsigned char> between(in[r].bytes.size(), kUntouched);
      in[r].forEach([&](size_t b, size_t s, size_t h, size_t d) {
        const size_t at = in[r].at(b, s, h, d);
        std::memcpy(&between[at], &in[r].bytes[at], q.element());
      });
      in[r].bytes = std::move(between);
      restored[r].bytes.assign(in[r].bytes.size(), kUntouched);
    }
    execute(inverse, out, restored);
    for (size_t r = 0; r < q.P; ++r) FUZZ_REQUIRE(restored[r].bytes == in[r].bytes);
    destroy(inverse);
  }
  destroy(plans);
}

// Any numbers at all: an error, or a plan that is never run.
void anything(Input input) {
  const size_t P = 1 + input.below(3);
  const std::vector<ulyssesComm_t>& comms = communicators(static_cast<int>(P));
  const auto number = [&]() -> size_t {
    const size_t kind = input.below(4);
    if (kind == 0) return input.take<uint8_t>();
    if (kind == 1) return size_t{1} << input.below(64);
    if (kind == 2) return (size_t{1} << input.below(64)) - 1;
    return input.take<uint64_t>();
  };
  ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
  d.batch = number(), d.seq = number(), d.heads = number(), d.headDim = number();
  const auto type = static_cast<int>(input.below(16));
  std::memcpy(&d.dtype, &type, sizeof type);
  const auto direction = static_cast<int>(input.below(3));
  std::memcpy(&d.direction, &direction, sizeof direction);
  Sizes seq, heads;
  const uint8_t bits = input.take<uint8_t>();
  for (size_t r = 0; r < P; ++r) {
    if (bits & 1) seq.push_back(number());
    if (bits & 2) heads.push_back(number());
  }
  if (bits & 1) d.seqSplits = seq.data();
  if (bits & 2) d.headSplits = heads.data();
  if (bits & 4)
    for (size_t& s : d.inStride) s = number();
  if (bits & 8)
    for (size_t& s : d.outStride) s = number();
  d.replicateHeads = bits >> 4 & 3;
  if (bits & 64) d.headGroups = number();
  std::vector<ulyssesPlan_t> plans;
  const ulyssesResult_t created = create(comms, std::vector<ulyssesA2ADesc_t>(P, d), plans);
  FUZZ_REQUIRE(created == ulyssesSuccess || created == ulyssesInvalidArgument || created == ulyssesOutOfMemory);
  if (created == ulyssesSuccess) destroy(plans);

  // The same numbers without a plan: with buffers that are not there, only an empty exchange can succeed.
  const bool empty = d.batch == 0 || d.seq == 0 || d.heads == 0 || d.headDim == 0;
  FUZZ_REQUIRE(ulyssesGroupStart() == ulyssesSuccess);
  for (const ulyssesComm_t comm : comms)
    FUZZ_REQUIRE(ulyssesA2A(nullptr, nullptr, d.batch, d.seq, d.heads, d.headDim, d.dtype, d.direction, comm,
                            nullptr) == ulyssesSuccess);
  const ulyssesResult_t eager = ulyssesGroupEnd();
  FUZZ_REQUIRE(eager == ulyssesInvalidArgument || eager == ulyssesOutOfMemory || (empty && eager == ulyssesSuccess));
}

}  // namespace
}  // namespace ulysses::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ulysses::fuzz;
  Input input(data, size);
  if (input.below(4) != 0)
    small(input);
  else
    anything(input);
  return 0;
}
