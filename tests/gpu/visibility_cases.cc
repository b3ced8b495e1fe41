// A copy engine's writes, and the flag behind them: no manual says that whoever sees the flag sees the bytes.
#include <cstring>

#include "device/flags.h"
#include "gpu/support/device_ranks.h"
#include "gpu/support/rank.h"
#include "gpu/support/stale.h"
#include "support/catch.h"

namespace ulysses::testing {
namespace {

// Rows of `width` bytes, out of rows twice as long where there are several.
struct Transfer {
  size_t width, rows;
};
constexpr Transfer kTransfers[] = {{256, 1}, {4096, 1}, {size_t{1} << 20, 1}, {256, 512}, {2048, 2048}};
constexpr Transfer kLong{size_t{16} << 20, 1};

enum class Flag { BehindTheCopy, BeforeIt };

#ifdef ULYSSES_EMULATED
constexpr int kRounds = 8;
#else
constexpr int kRounds = 300;
#endif

// Every rank writes to the next one, all at once, with a new value in every round. Words that the receivers have found
// to be another round's.
std::string sendRounds(GpuRank& rank, const Transfer& t, Flag flag, unsigned long long* found) {
  const int P = rank.nranks(), next = (rank.rank() + 1) % P, before = (rank.rank() + P - 1) % P;
  const size_t bytes = t.width * t.rows, pitch = t.rows > 1 ? 2 * t.width : t.width;
  const auto source = deviceBytes(pitch * t.rows), stale = deviceBytes(8);
  cudaStream_t copies = nullptr;
  cudaEvent_t forked = nullptr, joined = nullptr;
  check(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), "stream");
  for (cudaEvent_t* event : {&forked, &joined}) check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event");
  check(cudaMemset(stale.get(), 0, 8), "clear");
  check(cudaMemset(rank.window(), 0, bytes), "clear");
  check(cudaDeviceSynchronize(), "clear");
  rank.party().barrier();
  device::Exchange entry{};
  entry.channel = rank.channel();
  entry.contract = 1;
  const auto raise = [&] {
    check(static_cast<cudaError_t>(
              device::launchRaise(rank.channel(), device::Flag::Landed, next, device::kAllLanded, copies)),
          "flag");
  };
  for (int round = 0; round < kRounds; ++round) {
    const int value = 1 + round % 250;
    check(static_cast<cudaError_t>(device::launchEntry(entry, 1, rank.stream())), "entry");
    check(cudaEventRecord(forked, rank.stream()), "event");
    check(cudaStreamWaitEvent(copies, forked, 0), "event");
    check(cudaMemsetAsync(source.get(), value, pitch * t.rows, copies), "value");
    if (flag == Flag::BeforeIt) raise();
    check(
        cudaMemcpy2DAsync(rank.window(next), t.width, source.get(), pitch, t.width, t.rows, cudaMemcpyDefault, copies),
        "copy");
    if (flag == Flag::BehindTheCopy) raise();
    check(cudaEventRecord(joined, copies), "event");
    countStale(rank.channel(), before, reinterpret_cast<const uint32_t*>(rank.window()), bytes / 4,
               static_cast<uint32_t>(value) * 0x01010101u, static_cast<unsigned long long*>(stale.get()),
               rank.stream());
    check(cudaStreamWaitEvent(rank.stream(), joined, 0), "event");
  }
  rank.finish();
  check(cudaMemcpy(found, stale.get(), 8, cudaMemcpyDeviceToHost), "count");
  rank.party().barrier();
  for (const cudaEvent_t event : {forked, joined}) cudaEventDestroy(event);
  cudaStreamDestroy(copies);
  return rank.host().error == 0 ? "" : "the error word is set";
}

std::string withFlagsBehind(Party& party) {
  GpuRank rank(party, {kLong.width, 0, 0});
  for (const Transfer& t : kTransfers) {
    unsigned long long stale = 0;
    const std::string text = sendRounds(rank, t, Flag::BehindTheCopy, &stale);
    if (!text.empty()) return text;
    if (stale != 0)
      return std::to_string(stale) + " words of " + std::to_string(kRounds) + " copies of " + std::to_string(t.rows) +
             " x " + std::to_string(t.width) + " bytes were old when the flag was seen";
  }
  return {};
}

std::string withFlagsBefore(Party& party) {
  GpuRank rank(party, {kLong.width, 0, 0});
  unsigned long long stale = 0;
  const std::string text = sendRounds(rank, kLong, Flag::BeforeIt, &stale);
  if (!text.empty()) return text;
  return party.largest(static_cast<double>(stale)) > 0
             ? ""
             : "flags before the copies went unnoticed: this test sees nothing";
}

}  // namespace

TEST_CASE("a copy engine's write is there when the flag behind it is seen, and a flag before it is found out",
          "[gpu][visibility][several]") {
  NEEDS_GPUS(2);
  for (const RanksAs as : {RanksAs::Threads, RanksAs::Processes})
    for (const int P : rankCounts({2})) {
      INFO("P=" << P << (as == RanksAs::Threads ? " threads" : " processes"));
      CHECK(runRanks(as, P, withFlagsBehind) == "");
      CHECK(runRanks(as, P, withFlagsBefore) == "");
    }
}

}  // namespace ulysses::testing
