// The fused exchange's kernels against the definition.
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "gpu/support/exchange_case.h"
#include "support/catch.h"

namespace {

using namespace ulysses;
using namespace ulysses::testing;

constexpr ulyssesDirection_t kDirections[] = {ulyssesScatterHeads, ulyssesGatherHeads};

std::vector<ExchangeCase> variantsOf(const ExchangeCase& base, int nranks, bool wide) {
  std::vector<ExchangeCase> all;
  const uint32_t everyone = (1u << nranks) - 1;
  for (const uint32_t plain : {0u, everyone, 0x5u & everyone}) {
    ExchangeCase c = base;
    c.plainRanks = plain;
    all.push_back(c);
    c.tileBytes = 0;
    if (plain != 0) all.push_back(c);
    c.tileBytes = base.tileBytes;
    if (!wide) continue;
    c.outSkew = 1;
    all.push_back(c);
    c.inSkew = 3;
    c.tileBytes = 48;
    all.push_back(c);
    c.padded = true;
    all.push_back(c);
  }
  ExchangeCase c = base;
  c.small = true;
  all.push_back(c);
  c.inSkew = c.outSkew = 1;
  all.push_back(c);
  return all;
}

std::vector<ExchangeCase> casesFor(int nranks) {
  std::vector<ExchangeCase> all;
  const auto add = [&](ExchangeCase c, bool wide) {
    for (ExchangeCase& v : variantsOf(c, nranks, wide)) all.push_back(v);
  };
  for (const ulyssesDirection_t direction : kDirections) {
    for (const size_t elementBytes : {1, 2, 4, 8}) {
      ExchangeCase c;
      c.operands = {request(direction, 2, 11, 9, 3, elementBytes)};
      c.ctas = 3;
      add(c, true);
      c.operands = {request(direction, 3, 16, 8, 16, elementBytes)};
      c.ctas = 2;
      c.tileBytes = 512;
      add(c, elementBytes == 2);
    }
    // Uneven, some with nothing, several operands of different heads.
    ExchangeCase c;
    c.operands = {request(direction, 1, 2, 3, 64, 2)};
    add(c, false);
    c.operands = {request(direction, 2, 24, 16, 32, 2), request(direction, 2, 24, 8, 32, 2),
                  request(direction, 2, 24, 8, 5, 1)};
    c.ctas = 5;
    c.tileBytes = 1024;
    add(c, true);
    c.operands = {request(direction, 1, 0, 4, 8, 4)};
    add(c, false);
  }
  return all;
}

RankSizes sizesFor(const std::vector<ExchangeCase>& cases, int nranks) {
  RankSizes sizes;
  for (const ExchangeCase& c : cases) {
    sizes.windowBytes = std::max(sizes.windowBytes, CheckedExchange::windowBytes(c, nranks));
    sizes.stagingBytes = std::max(sizes.stagingBytes, CheckedExchange::stagingBytes(c, nranks));
  }
  sizes.lineBytes = size_t{256} << 10;
  return sizes;
}

std::string describe(const ExchangeCase& c, size_t number) {
  const layout::OperandRequest& r = c.operands[0];
  return "case " + std::to_string(number) + " [" + std::to_string(r.batch) + "," + std::to_string(r.seq) + "," +
         std::to_string(r.heads) + "," + std::to_string(r.headDim) + "]x" + std::to_string(r.elementBytes) +
         (c.small ? " small" : "") + " plain " + std::to_string(c.plainRanks) + " skew " + std::to_string(c.inSkew) +
         "," + std::to_string(c.outSkew) + (c.padded ? " padded: " : ": ");
}

// Allocating and freeing wait for kernels, and kernels for each other: all ranks do the one or the other.
void quiet(GpuRank& rank) {
  check(cudaStreamSynchronize(rank.stream()), "waiting");
  rank.party().barrier();
}

std::string runAll(Party& party, const std::vector<ExchangeCase>& cases) {
  GpuRank rank(party, sizesFor(cases, party.nranks()));
  for (size_t i = 0; i < cases.size(); ++i) {
    try {
      CheckedExchange exchange(rank, cases[i]);
      for (uint32_t seed = 1; seed <= 2; ++seed) {
        exchange.prepare(seed);
        quiet(rank);
        exchange.launch(i + 1);
        exchange.expectExchanged(seed);
        if (rank.host().error != 0) throw std::runtime_error("the error word is set");
      }
      quiet(rank);
    } catch (const std::exception& e) {
      return "rank " + std::to_string(party.rank()) + ", " + describe(cases[i], i) + e.what();
    }
  }
  return {};
}

void expectClean(const std::string& wrong) {
  if (wrong == kNoDevice) ULYSSES_SKIP(kNoDevice);
  CHECK(wrong == "");
}

void testAllCases(RanksAs as, int nranks) {
  expectClean(runRanks(as, nranks, [](Party& party) { return runAll(party, casesFor(party.nranks())); }));
}

TEST_CASE("ranks as threads exchange every element exactly", "[gpu][threads]") {
  for (const int nranks : {1, 2, 3, 4, 5, 8}) {
    INFO("P=" << nranks);
    testAllCases(RanksAs::Threads, nranks);
  }
}

TEST_CASE("ranks as processes exchange every element exactly", "[gpu][processes]") {
  for (const int nranks : {2, 3, 4, 5, 8}) {
    INFO("P=" << nranks);
    testAllCases(RanksAs::Processes, nranks);
  }
}

// Larger than the flags' and the slots' granularity in every respect.
std::vector<ExchangeCase> mediumCases() {
  std::vector<ExchangeCase> all;
  for (const ulyssesDirection_t direction : kDirections) {
    for (const uint32_t plain : {0u, 0xfu, 0x2u}) {
      ExchangeCase c;
      c.operands = {request(direction, 2, 517, 12, 64, 2), request(direction, 2, 517, 4, 64, 2)};
      c.ctas = 16;
      c.tileBytes = 4096;
      c.plainRanks = plain;
      all.push_back(c);
      c.outSkew = 1;
      all.push_back(c);
      c.tileBytes = 0;
      all.push_back(c);
    }
  }
  return all;
}

TEST_CASE("many chunks and CTAs", "[gpu][threads]") {
  expectClean(runRanks(RanksAs::Threads, 4, [](Party& party) { return runAll(party, mediumCases()); }));
}

// Epochs go on and wrap; ranks run ahead of each other; small and large launches follow each other without a host wait.
std::string runAhead(Party& party) {
  ExchangeCase c;
  c.operands = {request(ulyssesScatterHeads, 3, 8, 8, 5, 4)};
  c.tileBytes = 64;
  constexpr int kKinds = 4;
  std::vector<ExchangeCase> kinds(kKinds, c);
  kinds[1].plainRanks = 0xff;
  kinds[2].small = true;
  kinds[2].plainRanks = 0xff;
  kinds[3].tileBytes = 0;
  kinds[3].plainRanks = 0xff;
  GpuRank rank(party, sizesFor(kinds, party.nranks()));
  rank.presetEpoch(0xfffffff0u);
  constexpr int kCalls = 60;
  std::vector<std::unique_ptr<CheckedExchange>> calls;
  for (int k = 0; k < kCalls; ++k) {
    // Direct outputs share the window: that kind is checked on its last call alone.
    calls.push_back(std::make_unique<CheckedExchange>(rank, kinds[k % kKinds]));
    calls.back()->prepare(k);
  }
  quiet(rank);
  for (int k = 0; k < kCalls; ++k) {
    if (k % party.nranks() == party.rank()) usleep(2000);
    calls[k]->launch(k + 1);
  }
  for (int k = 0; k < kCalls; ++k) {
    if (k % kKinds != 0 || k >= kCalls - kKinds) calls[k]->expectExchanged(k);
  }
  quiet(rank);
  return {};
}

TEST_CASE("calls back to back, over the wrap of the epoch", "[gpu][threads]") {
  expectClean(runRanks(RanksAs::Threads, 4, runAhead));
}
TEST_CASE("calls back to back in processes", "[gpu][processes]") {
  expectClean(runRanks(RanksAs::Processes, 2, runAhead));
}

std::string replay(Party& party) {
  ExchangeCase c;
  c.operands = {request(ulyssesGatherHeads, 2, 12, 8, 16, 2)};
  std::vector<ExchangeCase> kinds(4, c);
  kinds[1].plainRanks = 0x2;
  kinds[2].small = true;
  kinds[3].tileBytes = 0;
  kinds[3].plainRanks = 0x2;
  GpuRank rank(party, sizesFor(kinds, party.nranks()));
  for (const ExchangeCase& kind : kinds) {
    CheckedExchange exchange(rank, kind);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(rank.stream(), cudaStreamCaptureModeThreadLocal), "capture");
    exchange.poison();
    exchange.launch();
    exchange.launch();
    check(cudaStreamEndCapture(rank.stream(), &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    check(cudaGraphUpload(exec, rank.stream()), "upload");
    quiet(rank);
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      exchange.prepare(seed);
      check(cudaGraphLaunch(exec, rank.stream()), "replay");
      exchange.expectExchanged(seed);
      exchange.prepare(seed + 100);
      exchange.launch();
      exchange.expectExchanged(seed + 100);
    }
    quiet(rank);
    check(cudaGraphExecDestroy(exec), "destroy");
    check(cudaGraphDestroy(graph), "destroy");
  }
  return {};
}

TEST_CASE("a captured launch replays with new inputs, eager ones between", "[gpu][threads]") {
  expectClean(runRanks(RanksAs::Threads, 4, replay));
}

std::string mismatch(Party& party) {
  ExchangeCase c;
  c.operands = {request(ulyssesScatterHeads, 1, 8, 8, 4, 4)};
  std::vector<ExchangeCase> kinds(5, c);
  kinds[1].plainRanks = 0xff;
  kinds[2].small = true;
  kinds[4].plainRanks = 0xff;
  kinds[4].tileBytes = 0;
  kinds[3].operands.push_back(request(ulyssesScatterHeads, 1, 8, 4, 4, 4));
  const int odd = party.nranks() - 1;
  GpuRank rank(party, sizesFor(kinds, party.nranks()));
  for (size_t mine = 0; mine < kinds.size(); ++mine) {
    for (size_t theirs = 0; theirs < kinds.size(); ++theirs) {
      CheckedExchange exchange(rank, kinds[party.rank() == odd ? theirs : mine]);
      CheckedExchange next(rank, kinds[mine]);
      exchange.prepare(1);
      quiet(rank);
      exchange.launch(party.rank() == odd ? 7 : 6);
      exchange.expectUntouched();
      device::HostWords& host = rank.host();
      if (host.error != static_cast<uint32_t>(device::KernelError::Mismatch) || host.errorRank != odd) {
        return "error word " + std::to_string(host.error) + ", rank " + std::to_string(host.errorRank);
      }
      host = {};
      // The next call starts afresh.
      next.prepare(2);
      next.launch();
      next.expectExchanged(2);
      quiet(rank);
      if (host.error != 0) return "the error word is set after a good call";
    }
  }
  return {};
}

TEST_CASE("contracts that differ: nobody stores, all know, the next call works", "[gpu][threads]") {
  expectClean(runRanks(RanksAs::Threads, 3, mismatch));
}

std::string aborted(Party& party) {
  ExchangeCase c;
  c.operands = {request(ulyssesScatterHeads, 1, 8, 8, 4, 4)};
  c.small = party.nranks() == 3;
  GpuRank rank(party, sizesFor({c}, party.nranks()));
  CheckedExchange exchange(rank, c);
  exchange.prepare(1);
  quiet(rank);
  if (party.rank() == 0) {  // never comes
    party.barrier();
    return {};
  }
  exchange.launch();
  usleep(50000);
  if (cudaStreamQuery(rank.stream()) != cudaErrorNotReady) return "the kernel did not wait";
  reinterpret_cast<std::atomic<uint32_t>*>(&rank.host().abort)->store(1);
  exchange.expectUntouched();
  party.barrier();
  return rank.host().error == static_cast<uint32_t>(device::KernelError::Aborted) ? "" : "no abort was reported";
}

TEST_CASE("an abort ends kernels that wait", "[gpu][threads]") {
  expectClean(runRanks(RanksAs::Threads, 2, aborted));
  expectClean(runRanks(RanksAs::Threads, 3, aborted));
}

std::string memories(Party& party) {
  const auto mismatch = [&](const char* what) { return "rank " + std::to_string(party.rank()) + ": " + what; };
  const int device = deviceOf(party.rank());
  check(cudaSetDevice(device), "cudaSetDevice");
  // New memory, and the caller's own: both written by the next rank, at an offset.
  auto created = DeviceMemory::create(1000, device);
  if (!created.ok()) return created.status().message();
  if (created.value()->bytes() < 1000 || created.value()->bytes() % 4096 != 0) return mismatch("reserved bytes");
  auto own = deviceBytes(100000);
  auto adopted = DeviceMemory::adopt(static_cast<std::byte*>(own.get()) + 512, 4096, device);
  if (!adopted.ok()) return adopted.status().message();
  for (const auto& mine : {created.value(), adopted.value()}) {
    check(cudaMemset(mine->data(), 0, 1000), "clear");
    check(cudaDeviceSynchronize(), "clear");
    auto all = party.share(mine, device);
    const int next = (party.rank() + 1) % party.nranks();
    const std::vector<unsigned char> written(4, static_cast<unsigned char>(1 + party.rank()));
    check(cudaMemcpy(all[next]->data() + 100, written.data(), 4, cudaMemcpyHostToDevice), "write");
    check(cudaDeviceSynchronize(), "write");
    party.barrier();
    unsigned char got[4];
    check(cudaMemcpy(got, mine->data() + 100, 4, cudaMemcpyDeviceToHost), "read");
    if (got[3] != 1 + (party.rank() + party.nranks() - 1) % party.nranks()) return mismatch("what the peer wrote");
    party.barrier();
    all.clear();  // peers unmap before owners free
    party.barrier();
  }
  const auto none = DeviceMemory::create(0, device);
  const auto huge = DeviceMemory::create(size_t{1} << 50, device);
  int host = 0;
  const auto notDevice = DeviceMemory::adopt(&host, sizeof host, device);
  if (none.status().code() != ulyssesInvalidArgument) return mismatch("0 bytes");
  if (huge.status().code() != ulyssesOutOfMemory) return mismatch("2^50 bytes: ") + huge.status().message();
  if (notDevice.status().code() != ulyssesNotSupported) return mismatch("host memory");
  if (cudaGetLastError() != cudaSuccess) return mismatch("an error is left behind");
  return {};
}

TEST_CASE("device memory is shared between threads", "[gpu][threads]") {
  for (const int nranks : {2, 8}) expectClean(runRanks(RanksAs::Threads, nranks, memories));
}
TEST_CASE("device memory is shared between processes", "[gpu][processes]") {
  for (const int nranks : {3, 8}) expectClean(runRanks(RanksAs::Processes, nranks, memories));
}

}  // namespace
