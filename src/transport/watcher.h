// Looks after what a transport has on the device, from a thread of its own: a rank that died or never came would let it
// wait for ever. For sources that are compiled with CUDA alone.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/cuda_support.h"
#include "base/status.h"

namespace ulysses {

inline int64_t nowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Watcher {
 public:
  Watcher() = default;
  Watcher(const Watcher&) = delete;
  ~Watcher() { stop(); }

  // look(): what is wrong now. end(trouble): once, where it has stayed wrong; nobody looks again.
  void start(int device, std::function<Status()> look, std::function<void(const Status&)> end) {
    thread_ = std::thread([this, device, look = std::move(look), end = std::move(end)] { watch(device, look, end); });
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void watch(int device, const std::function<Status()>& look, const std::function<void(const Status&)>& end) {
    constexpr auto kLook = std::chrono::milliseconds(20);
    constexpr int64_t kGraceMs = 200;  // for what a rank that has gone in good order still had to do
    const RelaxedCapture relaxed;  // a look from here disturbs no capture
    (void)cudaSetDevice(device);
    int64_t troubleSince = 0;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kLook, [this] { return stop_; })) {
      lock.unlock();
      const Status trouble = look();
      if (trouble.ok())
        troubleSince = 0;
      else if (troubleSince == 0)
        troubleSince = nowMs();
      else if (nowMs() - troubleSince >= kGraceMs)
        return end(trouble);
      lock.lock();
    }
  }

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
};

}  // namespace ulysses
