#include "base/process.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <random>

#include "base/format.h"
#include "base/parameters.h"

namespace ulysses {

namespace {

uint64_t randomWord() {
  uint64_t word = 0;
  randomBytes(&word, sizeof word);
  return word;
}

// Two processes may both be pid 1, each in a namespace of its own.
uint64_t pidNamespace() {
  struct stat facts {};
  return ::stat("/proc/self/ns/pid", &facts) == 0 ? static_cast<uint64_t>(facts.st_ino) : 0;
}

// Where the kernel does not tell its boot id every process counts as a host of its own: that only costs the fast path,
// while taking two hosts for one would break it. A shortage of descriptors passes, and must not cost it for ever.
std::string bootId() {
  static std::mutex mutex;
  static std::string known;
  const std::lock_guard lock(mutex);
  if (!known.empty()) return known;
  errno = 0;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  const bool shortage = !file && (errno == EMFILE || errno == ENFILE);
  std::string id;
  if (!(file >> id)) id = formatText("unknown-{:016x}{:016x}", randomWord(), randomWord());
  if (!shortage) known = id;
  return id;
}

}  // namespace

ProcessToken processToken() {
  // A forked child inherits the word and differs by its pid, or by its pid namespace.
  static const uint64_t inherited = randomWord();
  return {static_cast<uint64_t>(::getpid()), inherited ^ (pidNamespace() * 0x9e3779b97f4a7c15u)};
}

std::string hostIdentity() {
  const std::string chosen = Parameters::fromEnvironment().hostId;
  return chosen.empty() ? bootId() : chosen;
}

std::string hostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

void randomBytes(void* data, size_t bytes) {
  auto* out = static_cast<unsigned char*>(data);
  size_t filled = 0;
  while (filled < bytes) {
    const ssize_t n = ::getrandom(out + filled, bytes - filled, 0);
    if (n > 0) filled += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) break;
  }
  // Kernels without getrandom: the standard library's source of the same bytes.
  if (filled < bytes) {
    std::random_device source;
    std::generate(out + filled, out + bytes, [&] { return static_cast<unsigned char>(source()); });
  }
}

}  // namespace ulysses
