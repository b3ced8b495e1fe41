// Launches outside graphs, numbered from 1 on; the last kEvents of them have an event each. One thread launches; others
// may ask. For builds with CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "base/cuda_support.h"

namespace ulysses {

class LaunchEvents {
 public:
  LaunchEvents() = default;
  LaunchEvents(const LaunchEvents&) = delete;
  LaunchEvents& operator=(const LaunchEvents&) = delete;
  ~LaunchEvents() {
    for (const cudaEvent_t event : events_)
      if (event != nullptr) (void)cudaEventDestroy(event);
  }

  Status create() {
    for (cudaEvent_t& event : events_) ULYSSES_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return {};
  }

  uint64_t newest() const { return launched_.load(std::memory_order_acquire); }

  // A launch begins: its number. Launches on different streams are chained.
  Result<uint64_t> chain(cudaStream_t stream) {
    const uint64_t number = launched_.load(std::memory_order_relaxed) + 1;
    if (number > 1 && stream != lastStream_) ULYSSES_CUDA(cudaStreamWaitEvent(stream, event(number - 1), 0));
    return number;
  }
  // All of it is on the stream.
  Status launched(uint64_t number, cudaStream_t stream) {
    ULYSSES_CUDA(cudaEventRecord(event(number), stream));
    lastStream_ = stream;
    launched_.store(number, std::memory_order_release);
    return {};
  }

  // Whether a launch is over, and with it all before. One that is long past may be taken for one that is not, as long
  // as none of the last kEvents is over.
  bool over(uint64_t number) {
    if (settled_.load(std::memory_order_relaxed) >= number) return true;
    const uint64_t newest = this->newest();
    const uint64_t seen = std::max(number, newest < kEvents ? 1 : newest - kEvents + 1);
    const cudaError_t state = cudaEventQuery(event(seen));
    if (state != cudaSuccess) (void)cudaGetLastError();
    if (state == cudaErrorNotReady) return false;
    settle(seen);
    return true;
  }
  // Whether the last one is still on the device.
  bool outstanding() { return !over(newest()); }

  Status wait() {
    const uint64_t number = newest();
    if (number == 0) return {};
    ULYSSES_CUDA(cudaEventSynchronize(event(number)));
    settle(number);
    return {};
  }

 private:
  static constexpr uint64_t kEvents = 16;

  cudaEvent_t event(uint64_t number) const { return events_[number % kEvents]; }
  void settle(uint64_t number) {
    uint64_t before = settled_.load(std::memory_order_relaxed);
    while (before < number && !settled_.compare_exchange_weak(before, number, std::memory_order_relaxed)) {
    }
  }

  std::array<cudaEvent_t, kEvents> events_{};
  std::atomic<uint64_t> launched_{0}, settled_{0};  // launches; those known to be over
  cudaStream_t lastStream_ = nullptr;
};

}  // namespace ulysses
