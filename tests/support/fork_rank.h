// Forks a rank of a test, and only from a process without threads: a lock that another thread holds at that moment (the
// sanitizers' allocators have some) stays locked in the child, which then hangs, once in hundreds of runs.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_THREAD__)
#define ULYSSES_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ULYSSES_THREAD_SANITIZER 1
#endif
#endif

namespace ulysses::testing {

inline int threadsOfProcess() {
  int threads = 0;
  if (DIR* tasks = opendir("/proc/self/task"); tasks != nullptr) {
    while (const dirent* entry = readdir(tasks)) threads += entry->d_name[0] != '.';
    closedir(tasks);
  }
  return threads;
}

inline pid_t forkRank() {
#ifndef ULYSSES_THREAD_SANITIZER  // which has a thread of its own
  if (threadsOfProcess() > 1) {
    std::fprintf(stderr, "a test forks ranks beside running threads: take its unique id from a RendezvousProcess\n");
    std::abort();
  }
#endif
  return fork();
}

}  // namespace ulysses::testing
