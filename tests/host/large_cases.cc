// Cases 21 and 23 in full: 20 GB and 6.5 GB of memory. Hidden; run by hand with nothing else on the machine:
//   host_tests "[large]"
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/test_hooks.h"
#include "support/catch.h"
#include "support/ranks.h"

namespace ulysses::testing {
namespace {

// Not cleared, so that a page is touched once.
struct Elements {
  explicit Elements(size_t n) : data(static_cast<uint16_t*>(std::malloc(n * 2)), &std::free), count(n) {}
  std::unique_ptr<uint16_t, void (*)(void*)> data;
  size_t count;
};

// Elements [B, seq of count, heads of count, D] of the global [B,S,H,D] whose value is (g + salt) mod 65521: visited in
// order, with the value.
template <class Visit>
void forElements(size_t B, size_t S, size_t H, size_t D, size_t s0, size_t sn, size_t h0, size_t hn, uint64_t salt, Visit visit) {
  size_t at = 0;
  for (size_t b = 0; b < B; ++b)
    for (size_t s = s0; s < s0 + sn; ++s)
      for (size_t h = h0; h < h0 + hn; ++h) {
        uint32_t value = static_cast<uint32_t>((((b * S + s) * H + h) * D + salt) % 65521);
        for (size_t d = 0; d < D; ++d, ++at) {
          visit(at, static_cast<uint16_t>(value));
          if (++value == 65521) value = 0;
        }
      }
}

}  // namespace

TEST_CASE("case 21: offsets beyond 32 bits", "[.][large][cases]") {
  const size_t B = 6, S = 131072, H = 48, D = 128;
  CHECK(failures(runComms(As::Processes, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
          const size_t r = static_cast<size_t>(rank);
          Elements in(B * S / 2 * H * D), out(B * S * H / 2 * D);
          forElements(B, S, H, D, r * S / 2, S / 2, 0, H, 0, [&](size_t i, uint16_t v) { in.data.get()[i] = v; });
          std::memset(out.data.get(), 0xEE, out.count * 2);
          EXPECT_OK(ulyssesA2A(in.data.get(), out.data.get(), B, S, H, D, ulyssesBfloat16, ulyssesScatterHeads, comm, nullptr));
          const auto element = [&](size_t b, size_t s, size_t h, size_t d) { return out.data.get()[((b * S + s) * H / 2 + h) * D + d]; };
          if (rank == 1) EXPECT_RANK(element(5, 131071, 23, 127) == 57583 && element(3, 0, 0, 0) == 31864);
          if (rank == 0) EXPECT_RANK(element(2, 87381, 5, 64) == 31529);
          size_t wrong = 0;
          forElements(B, S, H, D, 0, S, r * H / 2, H / 2, 0, [&](size_t i, uint16_t v) { wrong += out.data.get()[i] != v; });
          EXPECT_RANK(wrong == 0);
          return "";
        }, nullptr, 600)) == "");
}

TEST_CASE("case 23: small, big, small, big, and staging grows on all ranks at once", "[.][large][cases]") {
  const size_t H = 56, D = 128;
  CHECK(failures(runComms(As::Processes, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
          hooks::setInitialStagingBytes(12 * 4096);
          const size_t r = static_cast<size_t>(rank), P = 4;
          std::unique_ptr<Elements> kept;
          size_t keptS = 0;
          const auto wrongIn = [&](const Elements& out, size_t S, uint64_t salt) {
            size_t wrong = 0;
            forElements(1, S, H, D, r * S / P, S / P, 0, H, salt, [&](size_t i, uint16_t v) { wrong += out.data.get()[i] != v; });
            return wrong;
          };
          for (const size_t S : {size_t{64}, size_t{144936}, size_t{128}, size_t{144936}}) {
            Elements in(S * H / P * D);
            auto out = std::make_unique<Elements>(S / P * H * D);
            forElements(1, S, H, D, 0, S, r * H / P, H / P, S, [&](size_t i, uint16_t v) { in.data.get()[i] = v; });
            std::memset(out->data.get(), 0xEE, out->count * 2);
            EXPECT_OK(ulyssesA2A(in.data.get(), out->data.get(), 1, S, H, D, ulyssesBfloat16, ulyssesGatherHeads, comm, nullptr));
            EXPECT_RANK(wrongIn(*out, S, S) == 0);
            if (S == 144936 && !kept) {
              kept = std::move(out);
              keptS = S;
            }
          }
          EXPECT_RANK(wrongIn(*kept, keptS, keptS) == 0);
          return "";
        }, nullptr, 600)) == "");
}

}  // namespace ulysses::testing
