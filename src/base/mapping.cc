#include "base/mapping.h"

#include <fcntl.h>
#include "base/format.h"
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ulysses {
namespace {

size_t availableBytes() {
  const long pages = sysconf(_SC_AVPHYS_PAGES), pageBytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && pageBytes > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(pageBytes) : 0;
}

Status memoryFailure(const char* step, size_t bytes, int error) {
  const bool exhausted = error == ENOMEM || error == ENOSPC || error == EFBIG;
  return Status(exhausted ? ulyssesOutOfMemory : ulyssesSystemError,
                formatText("{} of {} bytes of shared memory: {}; {} bytes available", step, bytes,
                            std::strerror(error), availableBytes()));
}

}  // namespace

Result<std::shared_ptr<Mapping>> Mapping::create(size_t bytes) {
  UniqueFd fd(memfd_create("ulysses", MFD_CLOEXEC));
  if (!fd) return memoryFailure("memfd_create", bytes, errno);
  // fallocate and not ftruncate alone: a page that cannot be had is an error here and not a SIGBUS later.
  int error = 0;
  do {
    error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) return memoryFailure("reservation", bytes, error);
  return open(std::move(fd), bytes);
}

Result<std::shared_ptr<Mapping>> Mapping::open(UniqueFd fd, size_t bytes) {
  struct stat facts {};
  if (fstat(fd.get(), &facts) != 0) return memoryFailure("fstat", bytes, errno);
  if (static_cast<size_t>(facts.st_size) < bytes)
    return Status(ulyssesSystemError, formatText("a peer's shared memory has {} bytes, {} were announced",
                                                  static_cast<size_t>(facts.st_size), bytes));
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) return memoryFailure("mmap", bytes, errno);
  return std::shared_ptr<Mapping>(new Mapping(std::move(fd), static_cast<std::byte*>(data), bytes));
}

Mapping::~Mapping() { munmap(data_, bytes_); }

}  // namespace ulysses
