// Runs ranks as threads or as forked processes and brings back what each of them has to say.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/socket.h"
#include "support/fork_rank.h"

namespace ulysses::test {

inline std::string describe(const Status& status) {
  return status.ok() ? "ok" : std::to_string(status.code()) + ": " + status.message();
}

inline Bytes toBytes(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(data, data + text.size());
}

inline std::string toText(const Bytes& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

class Stopwatch {
 public:
  long ms() const {
    const auto passed = std::chrono::steady_clock::now() - start_;
    return static_cast<long>(std::chrono::duration_cast<std::chrono::milliseconds>(passed).count());
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A moment that one process marks and its relatives measure from: how long a death takes to be noticed must not count
// the time that the ranks took to start.
class SharedMoment {
  using Clock = std::chrono::steady_clock;

 public:
  SharedMoment()
      : at_(static_cast<Clock::rep*>(
            ::mmap(nullptr, sizeof(Clock::rep), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  SharedMoment(const SharedMoment&) = delete;
  SharedMoment& operator=(const SharedMoment&) = delete;
  ~SharedMoment() { ::munmap(at_, sizeof(Clock::rep)); }

  void mark() { *at_ = Clock::now().time_since_epoch().count(); }
  long msSince() const {
    const Clock::duration passed = Clock::now().time_since_epoch() - Clock::duration(*at_);
    return static_cast<long>(std::chrono::duration_cast<std::chrono::milliseconds>(passed).count());
  }

 private:
  Clock::rep* at_;
};

using RankBody = std::function<std::string(int rank)>;

inline std::vector<std::string> runThreads(int nranks, const RankBody& body) {
  std::vector<std::string> said(static_cast<size_t>(nranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < nranks; ++r) threads.emplace_back([&, r] { said[static_cast<size_t>(r)] = body(r); });
  for (std::thread& t : threads) t.join();
  return said;
}

enum class ForkBeside { Nothing, Threads };

// Forked ranks. A child says one text, through a pipe, and leaves by _exit; what a killed one says is "killed".
class Processes {
 public:
  Processes(int nranks, const RankBody& body, ForkBeside beside = ForkBeside::Nothing) {
    for (int r = 0; r < nranks; ++r) {
      int ends[2] = {-1, -1};
      if (::pipe(ends) != 0) std::abort();
      const pid_t pid = beside == ForkBeside::Threads ? ::fork() : testing::forkRank();
      if (pid < 0) std::abort();
      if (pid == 0) {
        ::alarm(60);
        ::close(ends[0]);
        const std::string text = body(r);
        const ssize_t written = ::write(ends[1], text.data(), text.size());
        ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
      }
      ::close(ends[1]);
      pids_.push_back(pid);
      pipes_.emplace_back(ends[0]);
    }
  }

  void kill(int rank) { ::kill(pids_[static_cast<size_t>(rank)], SIGKILL); }

  std::vector<std::string> join() {
    std::vector<std::string> said;
    for (size_t r = 0; r < pids_.size(); ++r) {
      std::string text;
      char buffer[4096];
      for (ssize_t n = 0; (n = ::read(pipes_[r].get(), buffer, sizeof buffer)) > 0;) {
        text.append(buffer, static_cast<size_t>(n));
      }
      int status = 0;
      ::waitpid(pids_[r], &status, 0);
      if (WIFSIGNALED(status))
        text = "killed";
      else if (WEXITSTATUS(status) != 0)
        text += " (exit " + std::to_string(WEXITSTATUS(status)) + ")";
      said.push_back(std::move(text));
    }
    return said;
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<UniqueFd> pipes_;
};

inline std::vector<std::string> runProcesses(int nranks, const RankBody& body,
                                             ForkBeside beside = ForkBeside::Nothing) {
  return Processes(nranks, body, beside).join();
}

// Leaves this process room for `count` more descriptors. Gives back the limit there was.
inline rlim_t leaveDescriptors(int count) {
  // UBSan takes its first look at a type through a pipe: let it, while one can be opened.
  (void)systemError("first message", EMFILE);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t before = limit.rlim_cur;
  int fd = 0;
  for (int left = count; left > 0; ++fd) left -= ::fcntl(fd, F_GETFD) < 0;
  if (count == 0) {
    while (::fcntl(fd, F_GETFD) >= 0) ++fd;
  }
  limit.rlim_cur = static_cast<rlim_t>(fd);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return before;
}

inline void setDescriptorLimit(rlim_t descriptors) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = descriptors;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A channel over a rendezvous.
inline Result<std::unique_ptr<ControlChannel>> openChannel(const ulyssesUniqueId& id, int rank, int nranks, long ms) {
  const Deadline deadline = Deadline::afterMs(ms);
  ULYSSES_ASSIGN(const Allgather addresses, joinRendezvous(id, rank, nranks, deadline));
  return ControlChannel::open(rank, nranks, addresses, deadline);
}

inline bool allAre(const std::vector<std::string>& said, const std::string& text) {
  bool all = !said.empty();
  for (size_t r = 0; r < said.size(); ++r) {
    if (said[r] == text) continue;
    std::fprintf(stderr, "rank %zu said: %s\n", r, said[r].c_str());
    all = false;
  }
  return all;
}

}  // namespace ulysses::test
