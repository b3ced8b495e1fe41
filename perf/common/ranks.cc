#include "common/ranks.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

namespace ulysses::perf {

// What the threads of one process share.
class Ranks {
 public:
  Ranks(ProcessGroup& group, int threads) : processes(group), threadCount(threads), threadBarrier(threads) {
    blocks.resize(static_cast<size_t>(threads));
  }

  ProcessGroup& processes;
  const int threadCount;
  std::barrier<> threadBarrier;
  std::vector<const void*> blocks;
  std::vector<std::byte> mine, all;
};

int Rank::id() const {
  return ranks_.processes.rank() * ranks_.threadCount + thread_;
}
int Rank::count() const {
  return ranks_.processes.size() * ranks_.threadCount;
}
bool Rank::isMpiProcess() const {
  return ranks_.threadCount == 1 && ranks_.processes.size() > 1;
}

bool Rank::severalProcesses() const {
  return ranks_.processes.size() > 1;
}

std::string Rank::launcher() const {
  const std::string threads = std::to_string(ranks_.threadCount) + (ranks_.threadCount == 1 ? " thread" : " threads");
  return ranks_.processes.size() == 1 ? threads : threads + " per process, " + ranks_.processes.description();
}

void Rank::barrier() {
  if (ranks_.threadCount == 1) return ranks_.processes.barrier();
  ranks_.threadBarrier.arrive_and_wait();
  if (ranks_.processes.size() == 1) return;
  if (thread_ == 0) ranks_.processes.barrier();
  ranks_.threadBarrier.arrive_and_wait();
}

void Rank::gatherBytes(const void* mine, void* all, size_t bytes) {
  ranks_.blocks[static_cast<size_t>(thread_)] = mine;
  ranks_.threadBarrier.arrive_and_wait();
  if (thread_ == 0) {
    const size_t threads = ranks_.blocks.size();
    ranks_.mine.resize(threads * bytes);
    ranks_.all.resize(ranks_.mine.size() * static_cast<size_t>(ranks_.processes.size()));
    for (size_t t = 0; t < threads; ++t) std::memcpy(ranks_.mine.data() + t * bytes, ranks_.blocks[t], bytes);
    ranks_.processes.allgather(ranks_.mine.data(), ranks_.all.data(), ranks_.mine.size());
  }
  ranks_.threadBarrier.arrive_and_wait();
  std::memcpy(all, ranks_.all.data(), bytes * static_cast<size_t>(count()));
  ranks_.threadBarrier.arrive_and_wait();
}

Status Rank::agree(const Status& mine) {
  if (mine.code() == ulyssesTimeout || mine.code() == ulyssesRemoteError) {
    std::fprintf(stderr, "rank %d: %s\n", id(), mine.message().c_str());
    ranks_.processes.abandon(2);
  }
  struct Outcome {
    ulyssesResult_t code;
    char text[512];
  } outcome{mine.code(), {}};
  mine.message().copy(outcome.text, sizeof(outcome.text) - 1);
  for (const Outcome& other : allgather(outcome)) {
    if (other.code != ulyssesSuccess) return {other.code, other.text};
  }
  return {};
}

int runRanks(int threads, const std::function<int(Rank&)>& body) {
  const auto processes = openProcessGroup();
  Ranks ranks(*processes, threads);
  std::vector<int> codes(static_cast<size_t>(threads), 0);
  const auto run = [&](int thread) {
    Rank rank(ranks, thread);
    codes[static_cast<size_t>(thread)] = body(rank);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(run, t);
  run(0);
  for (auto& other : others) other.join();
  return *std::max_element(codes.begin(), codes.end());
}

}  // namespace ulysses::perf
