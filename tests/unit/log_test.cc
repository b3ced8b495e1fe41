#include "base/log.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "support/catch.h"
#include "unit/rerun.h"

namespace {

using ulysses::hostName;
using ulysses::LogLevel;
using ulysses::test::linesOf;
using ulysses::test::Rerun;
using ulysses::test::rerunTestCase;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ulysses-log-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string contents(const std::string& path) {
  std::ifstream in(path);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

// A line taken apart at its first separators, in their order: host:pid:tid [device] ULYSSES level text.
struct LogRecord {
  std::string host, pid, tid, device, level, text;
};

LogRecord parsed(const std::string& line) {
  LogRecord record;
  size_t begin = 0;
  const auto upTo = [&](const std::string& separator) {
    const size_t end = line.find(separator, begin);
    INFO("no '" << separator << "' where it belongs in: " << line);
    REQUIRE(end != std::string::npos);
    const std::string field = line.substr(begin, end - begin);
    begin = end + separator.size();
    return field;
  };
  record.host = upTo(":");
  record.pid = upTo(":");
  record.tid = upTo(" [");
  record.device = upTo("] ULYSSES ");
  record.level = upTo(" ");
  record.text = line.substr(begin);
  return record;
}

// The part of a line behind its prefix, which must be whole and name this host and `pid`.
std::string checkedText(const std::string& line, pid_t pid, const std::string& device, const std::string& level) {
  const LogRecord record = parsed(line);
  INFO(line);
  CHECK(record.host == hostName());
  CHECK(record.pid == std::to_string(pid));
  CHECK_FALSE(record.tid.empty());
  CHECK(record.tid.find_first_not_of("0123456789") == std::string::npos);
  CHECK(record.device == device);
  CHECK(record.level == level);
  return record.text;
}

constexpr int kThreads = 4, kLinesPerThread = 100;

}  // namespace

TEST_CASE("log child levels", "[.child]") {
  ULYSSES_LOG(Warn, -1, "a warning of {}", 1);
  ULYSSES_LOG(Info, 3, "an info\nof {} lines", 2);
  ULYSSES_LOG(Trace, 0, "a trace");
  errno = ENOENT;
  ulysses::logLine(LogLevel::Warn, -1, "between a failure and its report");
  CHECK(errno == ENOENT);
}

TEST_CASE("log child threads and fork", "[.child]") {
  ULYSSES_LOG(Warn, -1, "before the fork");
  const pid_t child = ::fork();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < kLinesPerThread; ++i)
        ULYSSES_LOG(Warn, t, "{}", std::string(200, static_cast<char>('a' + t)));
    });
  for (std::thread& thread : threads) thread.join();
  if (child == 0) ::_exit(0);
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("log lines look like NCCL's and the level chooses them") {
  SECTION("WARN is the default") {
    const Rerun run = rerunTestCase("log child levels", {{"ULYSSES_DEBUG", ""}});
    CHECK(run.passed());
    const auto lines = linesOf(run.err);
    REQUIRE(lines.size() == 2);
    CHECK(checkedText(lines[0], run.pid, "host", "WARN") == "a warning of 1");
    CHECK(checkedText(lines[1], run.pid, "host", "WARN") == "between a failure and its report");
  }
  SECTION("INFO, in any case, adds what is not a trace; a record stays one line") {
    const Rerun run = rerunTestCase("log child levels", {{"ULYSSES_DEBUG", "info"}});
    CHECK(run.passed());
    const auto lines = linesOf(run.err);
    REQUIRE(lines.size() == 3);
    CHECK(checkedText(lines[1], run.pid, "3", "INFO") == "an info of 2 lines");
  }
  SECTION("TRACE shows all") {
    const Rerun run = rerunTestCase("log child levels", {{"ULYSSES_DEBUG", "TRACE"}});
    const auto lines = linesOf(run.err);
    REQUIRE(lines.size() == 4);
    CHECK(checkedText(lines[2], run.pid, "0", "TRACE") == "a trace");
  }
  SECTION("NONE shows nothing that asks for the level") {
    const Rerun run = rerunTestCase("log child levels", {{"ULYSSES_DEBUG", "NONE"}});
    CHECK(run.passed());
    CHECK(linesOf(run.err).size() == 1);
  }
  SECTION("a bad level is WARN") {
    CHECK(linesOf(rerunTestCase("log child levels", {{"ULYSSES_DEBUG", "verbose"}}).err).size() == 2);
  }
}

TEST_CASE("log file names expand host and process, and a forked child has its own") {
  const TemporaryFolder folder;
  const Rerun run =
      rerunTestCase("log child threads and fork", {{"ULYSSES_DEBUG_FILE", folder.file("log.%h.%p.%%.%q.%")}});
  CHECK(run.passed());
  CHECK(run.err.empty());
  std::map<std::string, size_t> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(folder.file("")).parent_path()))
    files[entry.path().filename().string()] = linesOf(contents(entry.path().string())).size();
  REQUIRE(files.size() == 2);
  const std::string parent = "log." + hostName() + "." + std::to_string(run.pid) + ".%.%q.%";
  REQUIRE(files.count(parent) == 1);
  CHECK(files[parent] == 1 + kThreads * kLinesPerThread);
  files.erase(parent);
  CHECK(files.begin()->second == kThreads * kLinesPerThread);
}

TEST_CASE("log lines of threads and processes that share a file stay whole, and an earlier file is kept") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("log")) << "of an earlier run\n";
  const Rerun run = rerunTestCase("log child threads and fork", {{"ULYSSES_DEBUG_FILE", folder.file("log")}});
  CHECK(run.passed());
  const auto lines = linesOf(contents(folder.file("log")));
  REQUIRE(lines.size() == 2 + 2 * kThreads * kLinesPerThread);
  CHECK(lines[0] == "of an earlier run");
  for (size_t i = 2; i < lines.size(); ++i) {
    const LogRecord record = parsed(lines[i]);
    INFO(lines[i]);
    CHECK(record.host == hostName());
    REQUIRE(record.device.size() == 1);
    CHECK(record.text == std::string(200, static_cast<char>('a' + (record.device[0] - '0'))));
  }
}

TEST_CASE("a log file that cannot be opened is said on stderr, and so are the lines") {
  const TemporaryFolder folder;
  const Rerun run = rerunTestCase("log child levels", {{"ULYSSES_DEBUG_FILE", folder.file("absent/log")}});
  CHECK(run.passed());
  const auto lines = linesOf(run.err);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].find("ULYSSES_DEBUG_FILE=" + folder.file("absent/log")) != std::string::npos);
  CHECK(checkedText(lines[1], run.pid, "host", "WARN") == "a warning of 1");
}
