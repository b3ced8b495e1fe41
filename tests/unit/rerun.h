// Runs one hidden test case of this binary in a fresh process: for what a process reads or says once.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace ulysses::test {

struct Rerun {
  pid_t pid = -1;
  int status = -1;  // of waitpid
  std::string err;  // all of its stderr
  bool passed() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

using Environment = std::vector<std::pair<std::string, std::string>>;

inline Rerun rerunTestCase(const char* name, const Environment& environment) {
  int fds[2];
  Rerun run;
  if (::pipe(fds) != 0) return run;
  run.pid = ::fork();
  if (run.pid == 0) {
    ::dup2(fds[1], STDERR_FILENO);
    ::close(fds[0]);
    ::close(fds[1]);
    for (const auto& [key, value] : environment) ::setenv(key.c_str(), value.c_str(), 1);
    ::execl("/proc/self/exe", "unit_tests", name, "--out", "/dev/null", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(fds[1]);
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(fds[0], buffer, sizeof buffer)) > 0;) run.err.append(buffer, static_cast<size_t>(n));
  ::close(fds[0]);
  ::waitpid(run.pid, &run.status, 0);
  return run;
}

inline std::vector<std::string> linesOf(const std::string& text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace ulysses::test
