#include "support/ranks.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "support/fork_rank.h"

namespace ulysses::testing {
namespace {

std::string readAll(int fd, int seconds) {
  std::string text;
  char buffer[512];
  for (;;) {
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, seconds * 1000) == 0) return "hung";
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

std::vector<std::string> runProcesses(int nranks, const RankBody& body, int seconds) {
  std::vector<pid_t> pids;
  std::vector<int> pipes;
  for (int r = 0; r < nranks; ++r) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t pid = forkRank();
    if (pid == 0) {
      close(ends[0]);
      for (int other : pipes) close(other);
      const std::string text = body(r);
      if (write(ends[1], text.data(), text.size()) < 0) _exit(99);
      _exit(0);
    }
    close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  std::vector<std::string> texts;
  for (int r = 0; r < nranks; ++r) {
    std::string text = readAll(pipes[static_cast<size_t>(r)], seconds);
    if (text == "hung") kill(pids[static_cast<size_t>(r)], SIGKILL);
    int status = 0;
    waitpid(pids[static_cast<size_t>(r)], &status, 0);
    close(pipes[static_cast<size_t>(r)]);
    if (text.empty() && WIFSIGNALED(status)) text = "killed by signal " + std::to_string(WTERMSIG(status));
    if (text.empty() && WIFEXITED(status) && WEXITSTATUS(status) != 0)
      text = "exited with " + std::to_string(WEXITSTATUS(status));
    texts.push_back(text);
  }
  return texts;
}

std::vector<std::string> runThreads(int nranks, const RankBody& body) {
  std::vector<std::string> texts(static_cast<size_t>(nranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < nranks; ++r) threads.emplace_back([&, r] { texts[static_cast<size_t>(r)] = body(r); });
  for (std::thread& t : threads) t.join();
  return texts;
}

}  // namespace

Environment::Environment(const char* name, const std::string& value) : name_(name) {
  if (const char* before = std::getenv(name); before != nullptr) before_ = before;
  setenv(name, value.c_str(), 1);
}
Environment::~Environment() {
  before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_);
}

std::vector<std::string> runRanks(As as, int nranks, const RankBody& body, int seconds) {
  setenv("ULYSSES_DUMP_DIR", "off", 0);  // ranks die here on purpose, by the hundred
  return as == As::Threads ? runThreads(nranks, body) : runProcesses(nranks, body, seconds);
}

std::vector<std::string> runComms(As as, int nranks, const CommBody& body, const ulyssesConfig_t* config, int seconds,
                                  const RankBody& first) {
  ulyssesUniqueId id;
  std::optional<RendezvousProcess> rendezvous;
  if (as == As::Processes) {
    id = rendezvous.emplace().id();
  } else if (ulyssesGetUniqueId(&id) != ulyssesSuccess) {
    return {describeFailure(__FILE__, __LINE__, "ulyssesGetUniqueId")};
  }
  return runRanks(
      as, nranks,
      [&](int rank) -> std::string {
        if (const std::string text = first ? first(rank) : ""; !text.empty()) return text;
        ulyssesComm_t comm = nullptr;
        EXPECT_OK(ulyssesCommInitRankConfig(&comm, nranks, id, rank, config));
        std::string text = body(rank, comm);
        if (ulyssesCommDestroy(comm) != ulyssesSuccess && text.empty())
          text = describeFailure(__FILE__, __LINE__, "ulyssesCommDestroy");
        return text;
      },
      seconds);
}

std::string failures(const std::vector<std::string>& texts) {
  std::string all;
  for (size_t r = 0; r < texts.size(); ++r)
    if (!texts[r].empty()) all += "rank " + std::to_string(r) + ": " + texts[r] + "\n";
  return all;
}

std::string describeFailure(const char* file, int line, const char* what) {
  const char* name = std::strrchr(file, '/');
  return std::string(name != nullptr ? name + 1 : file) + ":" + std::to_string(line) + ": " + what +
         " (last error: " + ulyssesGetLastError() + ")";
}

}  // namespace ulysses::testing
