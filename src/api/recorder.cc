#include "api/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/datatype.h"
#include "base/format.h"
#include "base/parameters.h"
#include "base/process.h"

namespace ulysses {
namespace {

int64_t nowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const char* stateName(FlightRecorder::State state) {
  switch (state) {
    case FlightRecorder::State::Waiting: return "waiting for the ranks";
    case FlightRecorder::State::Agreed: return "moving";
    case FlightRecorder::State::Done: return "done";
    case FlightRecorder::State::Failed: return "failed";
  }
  return "unknown";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) out += formatText("\\u{:04x}", static_cast<int>(c));
    else out += c;
  }
  return out + '"';
}

}  // namespace

void FlightRecorder::begin(Operation operation, const Contract::Geometry& geometry) {
  const std::lock_guard lock(mutex_);
  ++next_;
  Record& r = current();
  r.number = next_;
  r.operation = operation;
  r.geometry = geometry;
  r.state = State::Waiting;
  r.path = "";
  r.began = nowNs();
  r.agreed = r.ended = 0;
  r.code = 0;
  r.text.clear();
}

void FlightRecorder::agreed() {
  const std::lock_guard lock(mutex_);
  current().state = State::Agreed;
  current().agreed = nowNs();
}

void FlightRecorder::end(const Status& status) {
  const std::lock_guard lock(mutex_);
  Record& r = current();
  r.state = status.ok() ? State::Done : State::Failed;
  r.ended = nowNs();
  r.code = status.code();
  if (!status.ok()) r.text = status.message();
}

std::string FlightRecorder::json() const {
  const std::lock_guard lock(mutex_);
  std::string out = formatText(
      "{{\"ulysses\": {}, \"comm\": {}, \"rank\": {}, \"nranks\": {}, \"host\": {}, \"pid\": {}, \"now_ns\": {},\n \"calls\": [",
      ULYSSES_VERSION_CODE, quoted(comm_), rank_, nranks_, quoted(hostName()), getpid(), nowNs());
  const char* separator = "\n";
  for (uint64_t n = next_ - std::min<uint64_t>(next_, kCalls); n < next_; ++n) {
    const Record& r = records_[n % kCalls];
    const Contract::Geometry& g = r.geometry;
    out += formatText("{}  {{\"number\": {}, \"operation\": {}, \"state\": {}, \"path\": {}, \"dtype\": {}, \"direction\": {}, "
                      "\"batch\": {}, \"seq\": {}, \"heads\": {}, \"headDim\": {}, \"object\": {}, \"version\": {}, ",
                      separator, r.number, quoted(operationName(r.operation)), quoted(stateName(r.state)), quoted(r.path),
                      quoted(std::string(dataTypeFacts(static_cast<int>(g.dtype)).name)), g.direction, g.batch, g.seq,
                      g.heads, g.headDim, g.object, g.version);
    out += formatText("\"began_ns\": {}, \"agreed_ns\": {}, \"ended_ns\": {}, \"code\": {}, \"text\": {}}}", r.began, r.agreed,
                      r.ended, r.code, quoted(r.text));
    separator = ",\n";
  }
  return out + "\n ]}\n";
}

Status FlightRecorder::write(const char* path, std::string* written) const {
  static std::atomic<unsigned> files{0};
  const std::string folder = Parameters::fromEnvironment().dumpDir;
  *written = path != nullptr ? path
                             : formatText("{}/ulysses-{}-{}-rank{}-{}.json", folder, hostName(), getpid(), rank_, ++files);
  const std::string text = json();
  std::FILE* file = std::fopen(written->c_str(), "we");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (file != nullptr) good = std::fclose(file) == 0 && good;
  if (good) return {};
  return Status(ulyssesSystemError, formatText("the flight recorder's file {} cannot be written: {}", *written, std::strerror(error)));
}

}  // namespace ulysses
