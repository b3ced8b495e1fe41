#include "api/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/datatype.h"
#include "base/format.h"
#include "base/parameters.h"
#include "base/process.h"

namespace ulysses {
namespace {

const char* stateName(FlightRecorder::State state) {
  switch (state) {
    case FlightRecorder::State::Waiting:
      return "waiting for the ranks";
    case FlightRecorder::State::Moving:
      return "moving";
    case FlightRecorder::State::Done:
      return "done";
    case FlightRecorder::State::Failed:
      return "failed";
  }
  return "unknown";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += formatText("\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out + '"';
}

}  // namespace

void FlightRecorder::begin(Operation operation, const Contract::Geometry& g) {
  next_ = next_ + 1;
  Record& r = current();
  r.operation = operation;
  r.state = State::Waiting;
  r.path = "";
  r.began = ticks();
  r.moving = 0;
  r.ended = 0;
  r.direction = g.direction;
  r.dtype = g.dtype;
  r.batch = g.batch;
  r.seq = g.seq;
  r.heads = g.heads;
  r.headDim = g.headDim;
  r.object = g.object;
  r.version = g.version;
  r.code = ulyssesSuccess;
}

void FlightRecorder::moving() {
  current().state = State::Moving;
  current().moving = ticks();
}

void FlightRecorder::end(const Status& status, const char* path) {
  Record& r = current();
  r.path = path;
  r.state = status.ok() ? State::Done : State::Failed;
  r.ended = ticks();
  if (status.ok()) return;
  r.code = status.code();
  const std::lock_guard lock(texts_);
  r.text = status.message();
}

std::string FlightRecorder::line(const Record& r, uint64_t number) const {
  const auto time = [&](uint64_t t) { return t == 0 ? std::string("null") : std::to_string(scale_.ns(t)); };
  return formatText(
             "  {{\"number\": {}, \"operation\": {}, \"state\": {}, \"path\": {}, \"dtype\": {}, \"direction\": {}, "
             "\"batch\": {}, \"seq\": {}, \"heads\": {}, \"headDim\": {}, \"object\": {}, \"version\": {}, ",
             number, quoted(operationName(r.operation)), quoted(stateName(r.state)),
             quoted(static_cast<const char*>(r.path)),
             quoted(std::string(dataTypeFacts(static_cast<int>(static_cast<uint32_t>(r.dtype))).name)),
             static_cast<uint32_t>(r.direction), static_cast<uint64_t>(r.batch), static_cast<uint64_t>(r.seq),
             static_cast<uint64_t>(r.heads), static_cast<uint64_t>(r.headDim), static_cast<uint64_t>(r.object),
             static_cast<uint64_t>(r.version)) +
         formatText("\"began_ns\": {}, \"moving_ns\": {}, \"ended_ns\": {}, \"code\": {}, \"text\": {}}}",
                    time(r.began), time(r.moving), time(r.ended), static_cast<int>(r.code),
                    quoted(r.code == ulyssesSuccess ? std::string() : r.text));
}

std::string FlightRecorder::json() const {
  const std::lock_guard lock(texts_);
  std::string out = formatText(
      "{{\"ulysses\": {}, \"comm\": {}, \"rank\": {}, \"nranks\": {}, \"host\": {}, \"pid\": {}, \"now_ns\": {},\n "
      "\"calls\": [",
      ULYSSES_VERSION_CODE, quoted(comm_), rank_, nranks_, quoted(hostName()), getpid(), steadyNs());
  const char* separator = "\n";
  const uint64_t next = next_;
  for (uint64_t n = next - std::min<uint64_t>(next, kCalls); n < next; ++n) {
    out += separator + line(records_[n % kCalls], n + 1);
    separator = ",\n";
  }
  return out + "\n ]}\n";
}

Status FlightRecorder::write(const char* path, std::string* written) const {
  static std::atomic<unsigned> files{0};
  const std::string folder = Parameters::fromEnvironment().dumpDir;
  *written = path != nullptr
                 ? path
                 : formatText("{}/ulysses-{}-{}-rank{}-{}.json", folder, hostName(), getpid(), rank_, ++files);
  const std::string text = json();
  std::FILE* file = std::fopen(written->c_str(), "we");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (file != nullptr) good = std::fclose(file) == 0 && good;
  if (good) return {};
  return Status(ulyssesSystemError,
                formatText("the flight recorder's file {} cannot be written: {}", *written, std::strerror(error)));
}

}  // namespace ulysses
