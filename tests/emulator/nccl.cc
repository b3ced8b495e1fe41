// Looks like NCCL 2.30 to the library, over the emulated streams: ranks, threads or processes, meet in a file of shared
// memory that the unique id names, and pass messages through a box for each pair.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

struct CUstream_st;

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kMostRanks = 8;
constexpr size_t kBox = size_t{256} << 10;

// One message at a time, in pieces.
struct Box {
  std::atomic<uint64_t> filled, emptied;  // pieces
  size_t bytes;                           // of the piece
  unsigned char data[kBox];
};
struct Shared {
  std::atomic<int> joined;
  Box boxes[kMostRanks][kMostRanks];  // [from][to]
};

struct UniqueId {
  char internal[128];
};

}  // namespace

struct ncclComm {
  int rank, nranks, device;
  Shared* shared;
  std::atomic<bool> aborted{false};
};

namespace {

struct Part {
  bool sending;
  int peer;
  unsigned char* data;
  size_t bytes, done = 0;
  bool over = false;
};
struct Operation {
  std::shared_ptr<ncclComm> comm;
  CUstream_st* stream;
  std::vector<Part> parts;
};

thread_local int depth = 0;
thread_local std::vector<Operation> group;

// Handles live as long as what streams still do with them.
std::vector<std::pair<ncclComm*, std::shared_ptr<ncclComm>>>& handles() {
  static auto* all = new std::vector<std::pair<ncclComm*, std::shared_ptr<ncclComm>>>;
  return *all;
}
std::mutex* handlesMutex() {
  static auto* mutex = new std::mutex;
  return mutex;
}
std::shared_ptr<ncclComm> find(ncclComm* comm) {
  const std::lock_guard lock(*handlesMutex());
  for (const auto& [handle, object] : handles())
    if (handle == comm) return object;
  return nullptr;
}

// The runtime is in the program: it gives this one function away.
void enqueue(CUstream_st* stream, std::function<void()> work) {
  using Enqueue = void (*)(CUstream_st*, std::function<void()>*);
  static const auto give = reinterpret_cast<Enqueue>(dlsym(RTLD_DEFAULT, "ulyssesEmulatorEnqueue"));
  give(stream, &work);
}

int currentDevice() {
  static const auto give = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "ulyssesEmulatorDevice"));
  return give();
}

bool advance(ncclComm& comm, Part& p) {
  Box& box = p.sending ? comm.shared->boxes[comm.rank][p.peer] : comm.shared->boxes[p.peer][comm.rank];
  const size_t n = std::min(kBox, p.bytes - p.done);
  if (p.sending) {
    if (box.filled != box.emptied) return false;
    std::memcpy(box.data, p.data + p.done, n);
    box.bytes = n;
    ++box.filled;
  } else {
    if (box.filled == box.emptied) return false;
    std::memcpy(p.data + p.done, box.data, std::min(n, box.bytes));
    ++box.emptied;
  }
  p.done += n;
  p.over = p.done == p.bytes;
  return true;
}

// Messages of one pair go in their order, those of different pairs beside each other.
void perform(Operation op) {
  const auto first = [&](const Part& p) {
    const Part* all = op.parts.data();
    return std::none_of(all, &p, [&](const Part& q) { return q.peer == p.peer && q.sending == p.sending && !q.over; });
  };
  for (bool left = true; left && !op.comm->aborted;) {
    bool some = left = false;
    for (Part& p : op.parts) {
      if (p.over) continue;
      left = true;
      some = (first(p) && advance(*op.comm, p)) || some;
    }
    if (left && !some) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

int add(ncclComm* comm, CUstream_st* stream, std::vector<Part> parts) {
  std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr) return kInvalidArgument;
  std::erase_if(parts, [](const Part& p) { return p.bytes == 0; });
  const auto same =
      std::find_if(group.begin(), group.end(), [&](const Operation& o) { return o.comm == c && o.stream == stream; });
  if (same != group.end()) {
    same->parts.insert(same->parts.end(), parts.begin(), parts.end());
  } else {
    group.push_back({std::move(c), stream, std::move(parts)});
  }
  if (depth > 0) return kSuccess;
  for (Operation& op : std::exchange(group, {})) enqueue(op.stream, [op] { perform(op); });
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 23007;
  return kSuccess;
}
const char* ncclGetErrorString(int) {
  return "an error of the emulator";
}
const char* ncclGetLastError(const ncclComm*) {
  return "";
}

int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> count{0};
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/ulysses-emulated-%d-%d", getpid(), ++count);
  return kSuccess;
}
int ncclCommInitRank(ncclComm** comm, int nranks, UniqueId id, int rank) {
  *comm = nullptr;
  if (nranks > kMostRanks || rank < 0 || rank >= nranks) return kInvalidArgument;
  const int fd = shm_open(id.internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) return kInvalidUsage;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return kInvalidUsage;
  auto c = std::make_shared<ncclComm>();
  c->rank = rank;
  c->nranks = nranks;
  c->device = currentDevice();
  c->shared = static_cast<Shared*>(memory);
  ++c->shared->joined;
  while (c->shared->joined < nranks) std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (rank == 0) shm_unlink(id.internal);
  *comm = c.get();
  const std::lock_guard lock(*handlesMutex());
  handles().emplace_back(c.get(), std::move(c));
  return kSuccess;
}
int ncclCommAbort(ncclComm* comm) {
  const std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr) return kInvalidArgument;
  c->aborted = true;
  const std::lock_guard lock(*handlesMutex());
  std::erase_if(handles(), [&](const auto& h) { return h.first == comm; });
  return kSuccess;
}
int ncclCommDestroy(ncclComm* comm) {
  const std::lock_guard lock(*handlesMutex());
  return std::erase_if(handles(), [&](const auto& h) { return h.first == comm; }) == 1 ? kSuccess : kInvalidArgument;
}
int ncclCommGetAsyncError(ncclComm*, int* error) {
  *error = kSuccess;
  return kSuccess;
}
int ncclCommCount(const ncclComm* comm, int* count) {
  *count = comm->nranks;
  return kSuccess;
}
int ncclCommUserRank(const ncclComm* comm, int* rank) {
  *rank = comm->rank;
  return kSuccess;
}
int ncclCommCuDevice(const ncclComm* comm, int* device) {
  *device = comm->device;
  return kSuccess;
}

int ncclGroupStart() {
  ++depth;
  return kSuccess;
}
int ncclGroupEnd() {
  if (depth == 0) return kInvalidUsage;
  if (--depth > 0) return kSuccess;
  for (Operation& op : std::exchange(group, {})) enqueue(op.stream, [op] { perform(op); });
  return kSuccess;
}
int ncclSend(const void* data, size_t count, int, int peer, ncclComm* comm, CUstream_st* stream) {
  return add(comm, stream, {{true, peer, static_cast<unsigned char*>(const_cast<void*>(data)), count}});
}
int ncclRecv(void* data, size_t count, int, int peer, ncclComm* comm, CUstream_st* stream) {
  return add(comm, stream, {{false, peer, static_cast<unsigned char*>(data), count}});
}
int ncclAllGather(const void* send, void* recv, size_t count, int, ncclComm* comm, CUstream_st* stream) {
  std::vector<Part> parts;
  for (int p = 0; p < comm->nranks; ++p) {
    parts.push_back({true, p, static_cast<unsigned char*>(const_cast<void*>(send)), count});
    parts.push_back({false, p, static_cast<unsigned char*>(recv) + static_cast<size_t>(p) * count, count});
  }
  return add(comm, stream, std::move(parts));
}

}  // extern "C"
