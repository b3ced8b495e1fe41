// The exchange on host memory: cases 2, 9, 15 to 20 of the project's case list, by threads and by forked processes.
#include <unistd.h>

#include "support/catch.h"
#include "support/ranks.h"
#include "support/tensors.h"

namespace ulysses::testing {
namespace {

ulyssesDataType_t typeOf(size_t elementBytes) {
  return elementBytes == 1 ? ulyssesUint8 : elementBytes == 2 ? ulyssesBfloat16 : elementBytes == 4 ? ulyssesFloat32 : ulyssesFloat64;
}

// One scatter and the gather that undoes it, checked bit for bit and against the CRCs where given.
std::string roundTrip(const Shape& t, int P, int rank, ulyssesComm_t comm, const std::vector<std::string>& crcs = {},
                      uint64_t salt = 0) {
  Fenced in(sequenceSide(t, P, rank, salt)), out(headSide(t, P, rank).size()), back(in.content().size());
  EXPECT_OK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, typeOf(t.elementBytes), ulyssesScatterHeads, comm, nullptr));
  EXPECT_RANK(out.content() == headSide(t, P, rank, salt));
  EXPECT_RANK(crcs.empty() || crc(out.content()) == crcs[static_cast<size_t>(rank)]);
  EXPECT_OK(ulyssesA2A(out.data(), back.data(), t.B, t.S, t.H, t.D, typeOf(t.elementBytes), ulyssesGatherHeads, comm, nullptr));
  EXPECT_RANK(back.content() == in.content());
  EXPECT_RANK(in.intact() && out.intact() && back.intact());
  return "";
}

struct Geometry {
  int P;
  Shape shape;
  std::vector<std::string> crcs;
};

}  // namespace

TEST_CASE("the exchange gives the cases' checksums and the gather restores the input", "[host][cases]") {
  const Geometry geometries[] = {
      {2, {2, 4, 4, 3, 4}, {"ebeffc76", "4cf9e012"}},
      {4, {3, 8, 8, 5, 4}, {"0ef4354e", "34787612", "a85b4901", "26fe5647"}},
      {3, {2, 6, 6, 1, 2}, {"027d9f49", "64adf51e", "e6019256"}},
      {5, {1, 10, 5, 3, 4}, {}},
      {1, {2, 4, 4, 3, 4}, {}},
      {4, {1, 8, 6, 3, 4}, {}},
      {4, {1, 10, 8, 3, 4}, {}},
      {4, {1, 2, 8, 3, 4}, {}},
      {2, {2, 4, 2, 1, 4}, {}},
      {8, {2, 8, 8, 1, 2}, {"e66fea68", "301409a9", "91e92bab", "4792c86a", "096269ee", "df198a2f", "7ee4a82d", "a89f4bec"}},
      // Beyond the payload that lies beside the contract: staged, in several chunks, rows that fit no power of two.
      {2, {2, 700, 6, 67, 4}, {}},
      {3, {1, 999, 7, 129, 2}, {}},
      {4, {2, 1021, 9, 64, 8}, {}},
      {5, {1, 1200, 11, 50, 1}, {}},
  };
  // Where a rank can read its peers' inputs it does; staging must be as good.
  const std::string path = GENERATE("auto", "staged");
  const Environment environment("ULYSSES_PATH", path);
  for (const As as : {As::Threads, As::Processes})
    for (const Geometry& g : geometries) {
      INFO(path << " P=" << g.P << " [" << g.shape.B << "," << g.shape.S << "," << g.shape.H << "," << g.shape.D << "] "
                << (as == As::Threads ? "threads" : "processes"));
      CHECK(failures(runComms(as, g.P, [&](int rank, ulyssesComm_t comm) {
              return roundTrip(g.shape, g.P, rank, comm, g.crcs);
            })) == "");
    }
}

TEST_CASE("case 18: gather-heads of case 2 restores the listed inputs", "[host][cases]") {
  const Shape t{3, 8, 8, 5, 4};
  const char* crcs[] = {"53da0bdd", "c4842932", "5ade8f93", "ed064933"};
  for (int r = 0; r < 4; ++r) CHECK(crc(sequenceSide(t, 4, r)) == crcs[r]);
}

TEST_CASE("case 2: many calls back to back, ranks delayed in turn, all outputs kept", "[host][cases]") {
  const Shape t{3, 8, 8, 5, 4};
  for (const As as : {As::Threads, As::Processes})
    CHECK(failures(runComms(as, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
            for (int repeat = 0; repeat < 10; ++repeat) {
              std::vector<Fenced> outs, backs;
              for (uint64_t k = 0; k < 64; ++k) {
                Fenced in(sequenceSide(t, 4, rank, k * 1000003));
                outs.emplace_back(headSide(t, 4, rank).size());
                if (static_cast<int>(k % 4) == rank) usleep(2000);
                EXPECT_OK(ulyssesA2A(in.data(), outs.back().data(), 3, 8, 8, 5, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
                if (k < 32) continue;
                backs.emplace_back(in.content().size());
                EXPECT_OK(ulyssesA2A(outs.back().data(), backs.back().data(), 3, 8, 8, 5, ulyssesFloat32, ulyssesGatherHeads, comm, nullptr));
              }
              for (uint64_t k = 0; k < 64; ++k) {
                EXPECT_RANK(outs[k].content() == headSide(t, 4, rank, k * 1000003) && outs[k].intact());
                if (k >= 32) EXPECT_RANK(backs[k - 32].content() == sequenceSide(t, 4, rank, k * 1000003));
              }
            }
            return "";
          })) == "");
}

TEST_CASE("case 9: eight ranks on few cores, 1000 calls", "[host][cases]") {
  const Shape t{2, 8, 8, 1, 2};
  CHECK(failures(runComms(As::Processes, 8, [&](int rank, ulyssesComm_t comm) -> std::string {
          Fenced in(sequenceSide(t, 8, rank)), out(headSide(t, 8, rank).size());
          for (int i = 0; i < 1000; ++i)
            EXPECT_OK(ulyssesA2A(in.data(), out.data(), 2, 8, 8, 1, ulyssesFloat16, ulyssesScatterHeads, comm, nullptr));
          EXPECT_RANK(out.content() == headSide(t, 8, rank));
          return "";
        })) == "");
}

TEST_CASE("case 20: empty exchanges move nothing, on one rank alone they are a mismatch", "[host][cases]") {
  CHECK(failures(runComms(As::Threads, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          const size_t shapes[][4] = {{0, 4, 4, 3}, {2, 0, 4, 3}, {2, 4, 0, 3}, {2, 4, 4, 0}};
          for (const auto& s : shapes)
            EXPECT_OK(ulyssesA2A(nullptr, nullptr, s[0], s[1], s[2], s[3], ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
          const Shape t{2, 4, 4, 3, 4};
          Fenced in(sequenceSide(t, 2, rank)), out(headSide(t, 2, rank).size());
          EXPECT_RANK(ulyssesA2A(in.data(), out.data(), rank == 0 ? 0 : 2, 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads,
                                 comm, nullptr) == ulyssesMismatch);
          EXPECT_RANK(out.untouched());
          return roundTrip(t, 2, rank, comm, {"ebeffc76", "4cf9e012"});
        })) == "");
}

TEST_CASE("case 21 (arithmetic): a geometry beyond 63 bits is refused on all", "[host][cases]") {
  CHECK(failures(runComms(As::Threads, 2, [&](int, ulyssesComm_t comm) -> std::string {
          char byte = 0;
          EXPECT_RANK(ulyssesA2A(&byte, &byte + 1, size_t{1} << 32, size_t{1} << 32, 8, 128, ulyssesBfloat16,
                                 ulyssesScatterHeads, comm, nullptr) == ulyssesInvalidArgument);
          return "";
        })) == "");
}

TEST_CASE("flat collectives, in place and not, small and staged", "[host]") {
  const Environment environment("ULYSSES_PATH", GENERATE("auto", "staged"));
  for (const As as : {As::Threads, As::Processes})
    for (const int P : {1, 2, 3, 4, 8})
      for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}, size_t{100003}}) {
        INFO("P=" << P << " count=" << count);
        CHECK(failures(runComms(as, P, [&](int rank, ulyssesComm_t comm) -> std::string {
                const size_t n = static_cast<size_t>(P);
                std::vector<uint32_t> mine(count), all(count * n, 7), expected(count * n), send(count * n), got(count * n, 7);
                for (size_t i = 0; i < count; ++i) mine[i] = static_cast<uint32_t>(static_cast<size_t>(rank) * 1000000 + i);
                for (size_t i = 0; i < count * n; ++i) expected[i] = static_cast<uint32_t>(i / std::max<size_t>(count, 1) * 1000000 + i % std::max<size_t>(count, 1));
                EXPECT_OK(ulyssesAllGather(mine.data(), all.data(), count, ulyssesUint32, comm, nullptr));
                EXPECT_RANK(all == expected);
                std::fill(all.begin(), all.end(), 9);
                std::copy(mine.begin(), mine.end(), all.begin() + static_cast<long>(count) * rank);
                EXPECT_OK(ulyssesAllGather(all.data() + count * static_cast<size_t>(rank), all.data(), count, ulyssesUint32, comm, nullptr));
                EXPECT_RANK(all == expected);
                for (size_t i = 0; i < count * n; ++i) send[i] = static_cast<uint32_t>(static_cast<size_t>(rank) * 1000000 + i);
                for (size_t p = 0; p < n; ++p)
                  for (size_t i = 0; i < count; ++i) expected[p * count + i] = static_cast<uint32_t>(p * 1000000 + static_cast<size_t>(rank) * count + i);
                EXPECT_OK(ulyssesAlltoAll(send.data(), got.data(), count, ulyssesUint32, comm, nullptr));
                EXPECT_RANK(got == expected);
                return "";
              })) == "");
      }
}

}  // namespace ulysses::testing
