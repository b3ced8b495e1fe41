// Jobs of forked ranks under conditions that each rank makes for itself before it joins.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/rendezvous_process.h"
#include "support/tensors.h"

namespace ulysses::testing {

// What a rank does to itself first; "" when that worked.
using Preparation = std::function<std::string(int rank)>;

inline ulyssesConfig_t hostConfig(int timeoutMs) {
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.memory = ulyssesMemoryHost;
  config.timeoutMs = timeoutMs;
  return config;
}

// Runs a job; `body` gets the outcome of init, and the communicator where there is one. The id's process stands apart:
// it is under no condition.
using JobBody = std::function<std::string(int rank, ulyssesResult_t init, ulyssesComm_t comm)>;
inline std::vector<std::string> runJob(int nranks, const Preparation& prepare, const JobBody& body,
                                       int timeoutMs = 20000, int seconds = 60) {
  const RendezvousProcess rendezvous;
  const ulyssesUniqueId id = rendezvous.id();
  return runRanks(
      As::Processes, nranks,
      [&](int rank) -> std::string {
        if (std::string text = prepare(rank); !text.empty()) return text;
        const ulyssesConfig_t config = hostConfig(timeoutMs);
        ulyssesComm_t comm = nullptr;
        const ulyssesResult_t init = ulyssesCommInitRankConfig(&comm, nranks, id, rank, &config);
        std::string text = body(rank, init, comm);
        if (comm != nullptr && ulyssesCommDestroy(comm) != ulyssesSuccess && text.empty()) text = "destroy";
        return text;
      },
      seconds);
}

inline bool lastErrorHas(const std::string& text) {
  return std::string(ulyssesGetLastError()).find(text) != std::string::npos;
}

inline constexpr Shape kSmall{2, 4, 4, 3, 4};       // beside the contract
inline constexpr Shape kStaged{1, 600, 12, 16, 4};  // through the staging window

// One exchange of float32 and what it must give.
inline std::string exchangeExact(const Shape& t, int P, int rank, ulyssesComm_t comm) {
  const std::vector<unsigned char> in = sequenceSide(t, P, rank), expected = headSide(t, P, rank);
  std::vector<unsigned char> out(expected.size(), 0xEE);
  EXPECT_OK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
  EXPECT_RANK(out == expected);
  return "";
}

// The kernel refuses one call from now on, with EPERM.
inline bool refuse(int number) {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Mounts seen by this process alone; false where that is not allowed.
inline bool ownMounts() {
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// Words that the ranks of a job share.
class SharedWords {
 public:
  SharedWords()
      : words_(static_cast<std::atomic<int>*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;
  ~SharedWords() { munmap(words_, 4096); }
  std::atomic<int>& operator[](int i) { return words_[i]; }

 private:
  std::atomic<int>* words_;
};

}  // namespace ulysses::testing
