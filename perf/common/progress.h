// Says on standard error what a long run is at, so that nobody takes it for one that hangs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace ulysses::perf {

class Progress {
 public:
  // A line after every `seconds` without one; 0: none.
  Progress(std::string program, double seconds);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What the run is at from now on.
  void at(std::string what);

 private:
  void watch(std::chrono::duration<double> pause);

  const std::string program_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string what_ = "setting up";
  bool over_ = false;
  // A thread, because nothing between two timed calls may look at a clock or write.
  std::thread watcher_;
};

}  // namespace ulysses::perf
