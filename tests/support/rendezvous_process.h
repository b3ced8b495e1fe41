// Serves one rendezvous from a process of its own: ranks are forked from a process without threads, whose locks (the
// sanitizers' allocator has some) no thread can hold at that moment.
#pragma once

#include <ulysses/ulysses.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace ulysses::testing {

class RendezvousProcess {
 public:
  RendezvousProcess() {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      ulyssesUniqueId id;
      if (ulyssesGetUniqueId(&id) == ulyssesSuccess && write(ends[1], &id, sizeof id) == sizeof id)
        for (;;) pause();
      _exit(1);
    }
    close(ends[1]);
    known_ = read(ends[0], &id_, sizeof id_) == sizeof id_;
    close(ends[0]);
  }
  RendezvousProcess(const RendezvousProcess&) = delete;
  ~RendezvousProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  bool get(ulyssesUniqueId* id) const {
    *id = id_;
    return known_;
  }

 private:
  pid_t pid_ = -1;
  bool known_ = false;
  ulyssesUniqueId id_{};
};

}  // namespace ulysses::testing
