// The flight recorder: the last calls of one rank, for the day a job hangs.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/ticks.h"
#include "plan/contract.h"

namespace ulysses {

class FlightRecorder {
 public:
  static constexpr size_t kCalls = 256;

  enum class State { Waiting, Moving, Done, Failed };

  // Who writes: shown in the file and its name.
  FlightRecorder(std::string commName, int rank, int nranks) : comm_(std::move(commName)), rank_(rank), nranks_(nranks) {}

  // One call from its entry to its end, by the thread that makes it. A few stores each: it is always on.
  void begin(Operation operation, const Contract::Geometry& geometry);
  void moving();
  void end(const Status& status, const char* path);

  // All of it as JSON, from any thread, also while a call hangs. A call that begins meanwhile may show half.
  std::string json() const;
  // Writes it to `path`, or to a file of its own in ULYSSES_DUMP_DIR, whose name comes out.
  Status write(const char* path, std::string* written) const;

 private:
  // What another thread may read while it is written.
  template <class T>
  class Shared {
   public:
    void operator=(T value) { value_.store(value, std::memory_order_relaxed); }
    operator T() const { return value_.load(std::memory_order_relaxed); }

   private:
    std::atomic<T> value_{};
  };
  struct Record {
    Shared<Operation> operation;
    Shared<State> state;
    Shared<const char*> path;
    Shared<uint64_t> began, moving, ended;  // ticks; 0: not yet
    Shared<uint32_t> direction, dtype;
    Shared<uint64_t> batch, seq, heads, headDim, object, version;
    Shared<int> code;
    std::string text;  // under the mutex
  };
  Record& current() { return records_[(next_ - 1) % kCalls]; }
  std::string line(const Record& r, uint64_t number) const;

  const std::string comm_;
  const int rank_, nranks_;
  const TickScale scale_;
  mutable std::mutex texts_;
  Shared<uint64_t> next_;
  std::array<Record, kCalls> records_;
};

}  // namespace ulysses
