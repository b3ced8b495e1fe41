// Makes a unique id and serves its rendezvous from a process of its own. Tests that fork ranks (fork_rank.h) take their
// id from here, so that no thread runs beside them.
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
    if (read(ends[0], &id_, sizeof id_) != sizeof id_) std::abort();
    close(ends[0]);
  }
  RendezvousProcess(const RendezvousProcess&) = delete;
  RendezvousProcess& operator=(const RendezvousProcess&) = delete;
  ~RendezvousProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  const ulyssesUniqueId& id() const { return id_; }

 private:
  pid_t pid_ = -1;
  ulyssesUniqueId id_{};
};

}  // namespace ulysses::testing
