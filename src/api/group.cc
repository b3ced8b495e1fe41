#include "api/group.h"

#include "transport/device.h"

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace ulysses::group {
namespace {

struct Kept {
  const void* key;
  int device;  // current when the call was made
  std::function<Status()> call;
  Status result;
};

thread_local int depth = 0;
thread_local std::vector<Kept> kept;
thread_local bool inGroup = false;

// The calls of one communicator, in order. One that fails does not keep the next from running: its peers make it too.
void runAll(const std::vector<Kept*>& calls) {
  const bool before = std::exchange(inGroup, true);
  for (Kept* k : calls) {
    setCurrentCudaDevice(k->device);
    k->result = k->call();
  }
  inGroup = before;
}

std::vector<std::vector<Kept*>> byKey(std::vector<Kept>& calls) {
  std::vector<std::vector<Kept*>> lanes;
  for (Kept& k : calls) {
    std::vector<Kept*>* lane = nullptr;
    for (auto& l : lanes)
      if (k.key != nullptr && l.front()->key == k.key) lane = &l;
    if (lane == nullptr) lane = &lanes.emplace_back();
    lane->push_back(&k);
  }
  return lanes;
}

}  // namespace

void start() { ++depth; }
bool active() { return depth > 0; }
bool running() { return inGroup; }

void add(const void* key, std::function<Status()> call) { kept.push_back({key, currentCudaDevice(), std::move(call), {}}); }

Status end() {
  if (depth == 0) return Status(ulyssesInvalidUsage, "ulyssesGroupEnd without ulyssesGroupStart");
  if (--depth > 0) return {};
  std::vector<Kept> calls = std::exchange(kept, {});
  const std::vector<std::vector<Kept*>> lanes = byKey(calls);
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < lanes.size(); ++i) threads.emplace_back(runAll, std::cref(lanes[i]));
  } catch (const std::system_error&) {
    // Without a thread for every rank the ranks that run would wait for those that do not: their deadline ends it.
    for (size_t i = threads.size() + 1; i < lanes.size(); ++i)
      for (Kept* k : lanes[i]) k->result = Status(ulyssesSystemError, "no thread could be started for a rank of the group");
  }
  const int device = currentCudaDevice();
  if (!lanes.empty()) runAll(lanes[0]);
  setCurrentCudaDevice(device);
  for (std::thread& t : threads) t.join();
  for (const Kept& k : calls)
    if (!k.result.ok()) return k.result;
  return {};
}

}  // namespace ulysses::group
