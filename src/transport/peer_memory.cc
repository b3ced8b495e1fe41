#include "transport/peer_memory.h"

#include <limits.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "base/process.h"
#include "bootstrap/gather_values.h"

namespace ulysses {
namespace {

constexpr size_t kKernelMinRow = 32u << 10;     // below, the kernel takes longer to find the pages than to copy them
constexpr size_t kMostBytes = size_t{1} << 30;  // of one system call, which gives up at 2 GiB
constexpr int kMostPieces = 64;

struct Probe {
  ProcessToken process;
  uint64_t address = 0, word = 0;  // where `word` lies: only the right process has it there
  uint64_t allow = 0;
};

bool canRead(const Probe& theirs) {
  uint64_t word = 0;
  const iovec local{&word, sizeof word};
  const iovec remote{reinterpret_cast<void*>(theirs.address), sizeof word};  // NOLINT: of another process
  return process_vm_readv(static_cast<pid_t>(theirs.process.pid), &local, 1, &remote, 1, 0) == sizeof word &&
         word == theirs.word;
}

// Pieces gathered for one system call.
class Batch {
 public:
  explicit Batch(pid_t owner) : owner_(owner) {}

  bool add(std::byte* to, uint64_t from, size_t bytes) {
    while (bytes > 0) {
      if ((count_ == kMostPieces || bytes_ == kMostBytes) && !flush()) return false;
      const size_t n = std::min(bytes, kMostBytes - bytes_);
      local_[count_] = {to, n};
      remote_[count_++] = {reinterpret_cast<void*>(from), n};  // NOLINT: of another process
      to += n;
      from += n;
      bytes -= n;
      bytes_ += n;
    }
    return true;
  }

  bool flush() {
    const auto wanted = static_cast<ssize_t>(bytes_);
    const ssize_t n = count_ == 0 ? 0
                                  : process_vm_readv(owner_, local_, static_cast<size_t>(count_), remote_,
                                                     static_cast<size_t>(count_), 0);
    if (n >= 0 && n != wanted) errno = EFAULT;
    count_ = 0;
    bytes_ = 0;
    return n == wanted;
  }

 private:
  pid_t owner_;
  int count_ = 0;
  size_t bytes_ = 0;
  iovec local_[kMostPieces], remote_[kMostPieces];
};

}  // namespace

Status PeerMemory::explore(int rank, bool allow, ControlChannel& channel, Deadline deadline) {
  Probe mine;
  mine.process = processToken();
  randomBytes(&mine.word, sizeof mine.word);
  mine.address = reinterpret_cast<uint64_t>(&mine.word);
  mine.allow = allow;
  std::vector<Probe> probes;
  ULYSSES_TRY(gatherValues(mine, probes, channel, deadline));

  const size_t nranks = probes.size();
  pids_.clear();
  Bytes row;
  for (size_t r = 0; r < nranks; ++r) {
    const Probe& theirs = probes[r];
    pids_.push_back(theirs.process.pid);
    Reach reach = Reach::None;
    if (static_cast<int>(r) != rank && allow && theirs.allow != 0)
      reach = theirs.process == mine.process ? Reach::Address : canRead(theirs) ? Reach::Kernel : Reach::None;
    row.push_back(static_cast<std::byte>(reach));
  }
  // The probes' words stay where they are until everybody has read them.
  std::vector<Bytes> blobs;
  ULYSSES_TRY(channel.allgather(row, blobs, deadline));
  std::vector<Reach> all;
  for (const Bytes& theirs : blobs)
    for (const std::byte b : theirs) all.push_back(static_cast<Reach>(b));
  if (all.size() != nranks * nranks) return Status(ulyssesInternalError, "a rank sent a malformed row of reaches");
  nranks_ = nranks;
  reach_ = std::move(all);
  return {};
}

PeerMemory::Reach PeerMemory::reach(int reader, int owner) const {
  return reach_.empty() ? Reach::None : reach_[static_cast<size_t>(reader) * nranks_ + static_cast<size_t>(owner)];
}

bool PeerMemory::fetches(int reader, int owner, size_t shortestRow) const {
  const Reach r = reach(reader, owner);
  return r == Reach::Address || (r == Reach::Kernel && shortestRow >= kKernelMinRow);
}

Status PeerMemory::fetch(int owner, std::span<const layout::BlockCopy> copies, uint64_t src, std::byte* dst,
                         Store store) const {
  if (pids_[static_cast<size_t>(owner)] != static_cast<uint64_t>(getpid()))
    return fetchThroughKernel(owner, copies, src, dst);
  const auto* from =
      reinterpret_cast<const std::byte*>(src);  // NOLINT: a pointer of this process, given by another rank
  for (const layout::BlockCopy& c : copies) copyBlock(c, from, dst, store);
  return {};
}

Status PeerMemory::fetchThroughKernel(int owner, std::span<const layout::BlockCopy> copies, uint64_t src,
                                      std::byte* dst) const {
  Batch batch(static_cast<pid_t>(pids_[static_cast<size_t>(owner)]));
  bool done = true;
  for (const layout::BlockCopy& c : copies)
    for (size_t row = 0; row < c.rows && done; ++row)
      done = batch.add(dst + c.dstOffset + row * c.dstPitch, src + c.srcOffset + row * c.srcPitch, c.rowBytes);
  if (done && batch.flush()) return {};
  return Status(ulyssesSystemError, formatText("reading the input of rank {}: {}", owner, std::strerror(errno)));
}

}  // namespace ulysses
