#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/parameters.h"
#include "base/process.h"

namespace ulysses {
namespace {

LogLevel levelNamed(const std::string& name) {
  if (name == "none") return LogLevel::None;
  if (name == "info") return LogLevel::Info;
  if (name == "trace") return LogLevel::Trace;
  return LogLevel::Warn;
}

const char* nameOf(LogLevel level) {
  switch (level) {
    case LogLevel::Info:
      return "INFO";
    case LogLevel::Trace:
      return "TRACE";
    default:
      return "WARN";
  }
}

// %h is the host's name, %p the process id, %% a percent sign; anything else stands for itself.
std::string expanded(const std::string& pattern, pid_t pid) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    switch (next) {
      case 'h':
        path += hostName();
        break;
      case 'p':
        path += std::to_string(pid);
        break;
      case '%':
        path += '%';
        break;
      default:
        path += pattern[i];
        continue;
    }
    ++i;
  }
  return path;
}

// One write per line, so that lines of threads and processes which share the file do not mix.
void writeLine(int fd, pid_t pid, LogLevel level, int device, const std::string& text) {
  std::string line = formatText("{}:{}:{} [{}] ULYSSES {} {}", hostName(), pid, ::gettid(),
                                 device < 0 ? std::string("host") : std::to_string(device), nameOf(level), text);
  for (char& c : line)
    if (c == '\n') c = ' ';
  line += '\n';
  while (::write(fd, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

// Appends: the processes of a job may share the file. Falls back to stderr, saying so.
int openSink(pid_t pid) {
  const std::string pattern = Parameters::fromEnvironmentSilently().debugFile;
  if (pattern.empty()) return STDERR_FILENO;
  const std::string path = expanded(pattern, pid);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd >= 0) return fd;
  const int error = errno;
  writeLine(
      STDERR_FILENO, pid, LogLevel::Warn, -1,
      formatText("ULYSSES_DEBUG_FILE={}: {} cannot be opened (errno {}); logging to stderr", pattern, path, error));
  return STDERR_FILENO;
}

// The descriptor of this process: a forked child opens its own file. Pid and descriptor share one word rather than a
// lock, which a fork could leave held in the child for ever.
int sinkOf(pid_t pid) {
  static std::atomic<uint64_t> sink{0};
  uint64_t seen = sink.load(std::memory_order_acquire);
  if (static_cast<pid_t>(seen >> 32) == pid) return static_cast<int>(seen & 0xffffffffu);
  const int fd = openSink(pid);
  const uint64_t mine = static_cast<uint64_t>(pid) << 32 | static_cast<uint32_t>(fd);
  if (sink.compare_exchange_strong(seen, mine, std::memory_order_acq_rel)) return fd;
  if (fd != STDERR_FILENO) ::close(fd);
  return static_cast<int>(seen & 0xffffffffu);
}

}  // namespace

LogLevel logLevel() {
  static const LogLevel level = levelNamed(Parameters::fromEnvironmentSilently().debug);
  return level;
}

void logLine(LogLevel level, int device, const std::string& text) {
  const int error = errno;  // a log line between a failed call and its report must not change the report
  const pid_t pid = ::getpid();
  writeLine(sinkOf(pid), pid, level, device, text);
  errno = error;
}

}  // namespace ulysses
