#include "common/progress.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace ulysses::perf {

Progress::Progress(std::string program, double seconds) : program_(std::move(program)) {
  if (seconds > 0) watcher_ = std::thread([this, seconds] { watch(std::chrono::duration<double>(seconds)); });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void Progress::at(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::watch(std::chrono::duration<double> pause) {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [this] { return over_; })) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    fmt::print(stderr, "{}: {:.0f} s: {}\n", program_, elapsed.count(), what_);
  }
}

}  // namespace ulysses::perf
