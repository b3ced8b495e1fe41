// A program of a user, in C++: two ranks as threads scatter heads.
#include <ulysses/ulysses.h>

#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 2, kSeq = 6, kHeads = 4, kHeadDim = 3;

int element(int s, int h, int d) { return (s * kHeads + h) * kHeadDim + d; }

bool exchange(ulyssesComm_t comm, int rank) {
  std::vector<int> in, expected;
  for (int s = rank * kSeq / kRanks; s < (rank + 1) * kSeq / kRanks; ++s) {
    for (int h = 0; h < kHeads; ++h) {
      for (int d = 0; d < kHeadDim; ++d) in.push_back(element(s, h, d));
    }
  }
  for (int s = 0; s < kSeq; ++s) {
    for (int h = rank * kHeads / kRanks; h < (rank + 1) * kHeads / kRanks; ++h) {
      for (int d = 0; d < kHeadDim; ++d) expected.push_back(element(s, h, d));
    }
  }
  std::vector<int> out(expected.size());
  if (ulyssesA2A(in.data(), out.data(), 1, kSeq, kHeads, kHeadDim, ulyssesInt32, ulyssesScatterHeads, comm, nullptr) !=
      ulyssesSuccess) {
    std::fprintf(stderr, "rank %d: %s\n", rank, ulyssesGetLastError());
    return false;
  }
  if (out != expected) std::fprintf(stderr, "rank %d: the output is not the definition's\n", rank);
  return out == expected;
}

}  // namespace

int main() {
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.memory = ulyssesMemoryHost;
  ulyssesComm_t comms[kRanks];
  if (ulyssesCommInitAllConfig(comms, kRanks, nullptr, &config) != ulyssesSuccess) {
    std::fprintf(stderr, "%s\n", ulyssesGetLastError());
    return 1;
  }
  bool good[kRanks] = {};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&comms, &good, rank] { good[rank] = exchange(comms[rank], rank); });
  }
  for (std::thread& thread : threads) thread.join();
  for (ulyssesComm_t comm : comms) ulyssesCommDestroy(comm);
  return good[0] && good[1] ? 0 : 1;
}
