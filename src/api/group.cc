#include "api/group.h"

#include "base/caught.h"
#include "base/format.h"
#include "transport/device.h"

#include <atomic>
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
    k->result = caught(k->call);
    k->call = nullptr;  // what it holds may be what its peers wait for
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

void start() {
  ++depth;
}
bool active() {
  return depth > 0;
}
bool running() {
  return inGroup;
}

void add(const void* key, std::function<Status()> call) {
  kept.push_back({key, currentCudaDevice(), std::move(call), {}});
}

Status end() {
  if (depth == 0) return Status(ulyssesInvalidUsage, "ulyssesGroupEnd without ulyssesGroupStart");
  if (--depth > 0) return {};
  std::vector<Kept> calls = std::exchange(kept, {});
  const std::vector<std::vector<Kept*>> lanes = byKey(calls);
  // Without a thread for every rank none begins: those that run would wait for those that do not.
  enum Start { Waiting, All, None };
  std::atomic<Start> start{Waiting};
  std::vector<std::thread> threads;
  const auto lane = [&](size_t i) {
    start.wait(Waiting);
    if (start == All) runAll(lanes[i]);
  };
  const Status started = caught([&]() -> Status {
    try {
      for (size_t i = 1; i < lanes.size(); ++i) threads.emplace_back(lane, i);
      return {};
    } catch (const std::system_error& e) {
      return Status(ulyssesSystemError, formatText("{} threads for the {} ranks of the group, and no more: {}",
                                                   threads.size() + 1, lanes.size(), e.what()));
    }
  });
  start = started.ok() ? All : None;
  start.notify_all();
  const int device = currentCudaDevice();
  if (started.ok() && !lanes.empty()) runAll(lanes[0]);
  setCurrentCudaDevice(device);
  for (std::thread& t : threads) t.join();
  ULYSSES_TRY(started);
  for (const Kept& k : calls)
    if (!k.result.ok()) return k.result;
  return {};
}

}  // namespace ulysses::group
