// The flight recorder: the last calls of one rank, for the day a job hangs.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

#include "plan/contract.h"

namespace ulysses {

class FlightRecorder {
 public:
  static constexpr size_t kCalls = 256;

  enum class State { Waiting, Agreed, Done, Failed };

  // Who writes: shown in the file and its name.
  FlightRecorder(std::string commName, int rank, int nranks) : comm_(std::move(commName)), rank_(rank), nranks_(nranks) {}

  // One call from its entry to its end, by the thread that makes it.
  void begin(Operation operation, const Contract::Geometry& geometry);
  void agreed();
  void path(const char* path) { current().path = path; }
  void end(const Status& status);

  // All of it as JSON, from any thread, also while a call hangs.
  std::string json() const;
  // Writes it to `path`, or to a file of its own in ULYSSES_DUMP_DIR, whose name comes out.
  Status write(const char* path, std::string* written) const;

 private:
  struct Record {
    uint64_t number = 0;
    Operation operation{};
    Contract::Geometry geometry;
    State state = State::Waiting;
    const char* path = "";
    int64_t began = 0, agreed = 0, ended = 0;  // nanoseconds of the monotonic clock, which the ranks of a host share
    int code = 0;
    std::string text;
  };
  Record& current() { return records_[(next_ - 1) % kCalls]; }

  const std::string comm_;
  const int rank_, nranks_;
  mutable std::mutex mutex_;
  uint64_t next_ = 0;
  std::array<Record, kCalls> records_;
};

}  // namespace ulysses
