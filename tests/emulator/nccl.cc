// Looks like NCCL 2.30 to the library, over the emulated streams: ranks, threads or processes, meet in a file of shared
// memory that the unique id names, and pass messages through a box for each pair. Windows are memory of the emulated
// driver, mapped by all. What goes wrong with them is chosen by ULYSSES_EMULATED_NCCL:
//   old         this is 2.28
//   lsa         every rank is a team of its own
//   full        there is no memory
//   plain       nothing is registered, and nothing said of it
//   refuses     registering fails on all ranks
//   stuck       registering is never over
//   unmapped    there are no addresses
//   dies        the process ends when it registers
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

struct CUstream_st;

namespace {

constexpr int kSuccess = 0, kCudaError = 1, kInternalError = 3, kInvalidArgument = 4, kInvalidUsage = 5,
              kInProgress = 7, kMostRanks = 8;
constexpr size_t kBox = size_t{256} << 10, kGranularity = size_t{4} << 20;

constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

bool goesWrong(std::string_view how) {
  const char* text = std::getenv("ULYSSES_EMULATED_NCCL");
  return text != nullptr && how == text;
}

// One message at a time, in pieces.
struct Box {
  std::atomic<uint64_t> filled, emptied;  // pieces
  size_t bytes;                           // of the piece
  unsigned char data[kBox];
};
// What a rank registers, and where in the team's address space.
struct Offer {
  std::atomic<uint64_t> posted, mapped;  // registrations
  int pid, fd;
  size_t bytes, offset;
};
struct Shared {
  std::atomic<int> joined;
  Offer offers[kMostRanks];
  Box boxes[kMostRanks][kMostRanks];  // [from][to]
};

struct UniqueId {
  char internal[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};
struct Team {
  int nRanks, rank, stride;
};

}  // namespace

struct ncclComm {
  int rank, nranks, device;
  Shared* shared;
  std::string name;
  std::atomic<bool> aborted{false};
  bool blocking = true;
  std::thread worker;  // where it does not block
  std::atomic<int> state{kSuccess};
  uint64_t registrations = 0;
  int splits = 0;
  bool finalized = false, revoked = false;
  std::map<size_t, size_t> space;  // offset and bytes of what is registered: the same on all ranks, or nothing fits
};

struct ncclWindow_vidmem {
  ncclComm* comm;
  size_t bytes, offset;
  std::vector<CUdeviceptr> bases;  // of all ranks
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
thread_local std::vector<std::function<int()>> inits;  // of a group

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
void setDevice(int device) {
  static const auto set = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "ulyssesEmulatorSetDevice"));
  set(device);
}
template <class Function>
Function driver(const char* name) {
  static const auto give = reinterpret_cast<void* (*)(const char*)>(dlsym(RTLD_DEFAULT, "ulyssesEmulatorDriver"));
  return reinterpret_cast<Function>(give(name));
}
#define DRIVER(name) driver<decltype(&name)>(#name)

// Does it now, or leaves it to a thread.
int go(const std::shared_ptr<ncclComm>& c, std::function<int()> work) {
  if (c->blocking) return work();
  if (c->worker.joinable()) c->worker.join();
  c->state = kInProgress;
  c->worker = std::thread([comm = c.get(), w = std::move(work)] { comm->state = w(); });
  return kInProgress;
}
// Until all ranks are there, or this one gives up.
template <class There>
bool await(const ncclComm& c, const There& there) {
  for (int r = 0; r < c.nranks; ++r)
    while (!there(r)) {
      if (c.aborted) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  return true;
}
void end(const std::shared_ptr<ncclComm>& c) {
  if (c->worker.joinable()) c->worker.join();
}

bool map(CUmemGenericAllocationHandle handle, size_t bytes, int device, CUdeviceptr* at) {
  if (DRIVER(cuMemAddressReserve)(at, bytes, 0, 0, 0) != CUDA_SUCCESS) return false;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return DRIVER(cuMemMap)(*at, bytes, 0, handle, 0) == CUDA_SUCCESS &&
         DRIVER(cuMemSetAccess)(*at, bytes, &access, 1) == CUDA_SUCCESS;
}
void unmap(CUdeviceptr at, size_t bytes) {
  DRIVER(cuMemUnmap)(at, bytes);
  DRIVER(cuMemAddressFree)(at, bytes);
}

struct Memory {
  size_t bytes;
  int fd;
};
std::map<void*, Memory>& memories() {
  static auto* all = new std::map<void*, Memory>;
  return *all;
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

size_t bytesOf(int type) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kBytes[type];
}

int add(ncclComm* comm, CUstream_st* stream, std::vector<Part> parts) {
  std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr) return kInvalidArgument;
  if (c->finalized || c->revoked) return kInvalidUsage;
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
  *version = goesWrong("old") ? 22809 : 23007;
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
int ncclCommInitRankConfig(ncclComm** comm, int nranks, UniqueId id, int rank, Config* config) {
  *comm = nullptr;
  if (nranks > kMostRanks || rank < 0 || rank >= nranks) return kInvalidArgument;
  if (config != nullptr && (config->magic != 0xcafebeef || config->size < 20)) return kInvalidArgument;
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
  c->name = id.internal;
  const char* blocking = std::getenv("NCCL_COMM_BLOCKING");
  c->blocking = blocking != nullptr ? std::atoi(blocking) != 0 : config == nullptr || config->blocking != 0;
  *comm = c.get();
  {
    const std::lock_guard lock(*handlesMutex());
    handles().emplace_back(c.get(), c);
  }
  const auto meet = [comm = c.get()] {
    ++comm->shared->joined;
    const bool met = await(*comm, [&](int) { return comm->shared->joined >= comm->nranks; });
    if (comm->rank == 0) shm_unlink(comm->name.c_str());
    return met ? kSuccess : kInternalError;
  };
  if (depth > 0) {
    inits.push_back(meet);
    return kSuccess;
  }
  const bool last = c->shared->joined + 1 == nranks;
  const int result = go(c, meet);
  if (result != kInProgress || !last) return result;
  end(c);  // the last one finds it done, and the others not
  return c->state;
}
int ncclCommInitRank(ncclComm** comm, int nranks, UniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}
int ncclCommAbort(ncclComm* comm) {
  const std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr) return kInvalidArgument;
  c->aborted = true;
  end(c);
  if (c->shared->joined < c->nranks) shm_unlink(c->name.c_str());
  const std::lock_guard lock(*handlesMutex());
  std::erase_if(handles(), [&](const auto& h) { return h.first == comm; });
  return kSuccess;
}
int ncclCommFinalize(ncclComm* comm) {
  const std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr) return kInvalidArgument;
  c->finalized = true;
  return kSuccess;
}
int ncclCommDestroy(ncclComm* comm) {
  const std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr) return kInvalidArgument;
  end(c);
  const std::lock_guard lock(*handlesMutex());
  std::erase_if(handles(), [&](const auto& h) { return h.first == comm; });
  return kSuccess;
}
int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  *error = comm->state;
  return kSuccess;
}

int ncclMemAlloc(void** ptr, size_t bytes) {
  *ptr = nullptr;
  if (goesWrong("full")) return kCudaError;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = currentDevice();
  prop.requestedHandleTypes = kDescriptor;
  bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  Memory m{bytes, -1};
  if (DRIVER(cuMemCreate)(&handle, bytes, &prop, 0) != CUDA_SUCCESS) return kCudaError;
  const bool mapped = map(handle, bytes, prop.location.id, &at) &&
                      DRIVER(cuMemExportToShareableHandle)(&m.fd, handle, kDescriptor, 0) == CUDA_SUCCESS;
  DRIVER(cuMemRelease)(handle);
  if (!mapped) return kCudaError;
  *ptr = reinterpret_cast<void*>(at);
  const std::lock_guard lock(*handlesMutex());
  memories()[*ptr] = m;
  return kSuccess;
}
int ncclMemFree(void* ptr) {
  Memory m{};
  {
    const std::lock_guard lock(*handlesMutex());
    const auto found = memories().find(ptr);
    if (found == memories().end()) return kInvalidArgument;
    m = found->second;
    memories().erase(found);
  }
  unmap(reinterpret_cast<CUdeviceptr>(ptr), m.bytes);
  close(m.fd);
  return kSuccess;
}

int ncclCommWindowRegister(ncclComm* comm, void* ptr, size_t bytes, ncclWindow_vidmem** window, int) {
  *window = nullptr;
  const std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr || ptr == nullptr || bytes == 0) return kInvalidArgument;
  const char* cuMem = std::getenv("NCCL_CUMEM_ENABLE");
  if (goesWrong("plain") || (cuMem != nullptr && std::string_view(cuMem) == "0")) return kSuccess;
  if (goesWrong("dies")) _exit(9);
  if (goesWrong("refuses")) return kInvalidUsage;
  Memory memory{};
  {
    const std::lock_guard lock(*handlesMutex());
    const auto found = memories().find(ptr);
    if (found == memories().end() || bytes > found->second.bytes) return kInvalidArgument;
    memory = found->second;
  }
  return go(c, [comm, memory, window] {
    if (goesWrong("stuck")) {
      while (!comm->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      *window = nullptr;
      return kInternalError;
    }
    setDevice(comm->device);
    size_t offset = 0;  // the first gap
    for (const auto& [at, size] : comm->space) {
      if (offset + memory.bytes <= at) break;
      offset = at + size;
    }
    const uint64_t k = ++comm->registrations;
    Offer& mine = comm->shared->offers[comm->rank];
    mine.pid = getpid();
    mine.fd = memory.fd;
    mine.bytes = memory.bytes;
    mine.offset = offset;
    mine.posted = k;
    if (!await(*comm, [&](int r) { return comm->shared->offers[r].posted >= k; })) return kInternalError;
    auto made = std::make_unique<ncclWindow_vidmem>();
    made->comm = comm;
    made->bytes = memory.bytes;
    made->offset = offset;
    bool good = true;
    for (int r = 0; r < comm->nranks && good; ++r) {
      const Offer& theirs = comm->shared->offers[r];
      good = theirs.bytes == memory.bytes && theirs.offset == offset;
      char path[64];
      std::snprintf(path, sizeof path, "/proc/%d/fd/%d", theirs.pid, theirs.fd);
      const int fd = good ? open(path, O_RDWR | O_CLOEXEC) : -1;
      CUmemGenericAllocationHandle handle = 0;
      CUdeviceptr at = 0;
      void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
      good = fd >= 0 && DRIVER(cuMemImportFromShareableHandle)(&handle, descriptor, kDescriptor) == CUDA_SUCCESS;
      if (fd >= 0) close(fd);
      if (!good) break;
      good = map(handle, memory.bytes, comm->device, &at);
      DRIVER(cuMemRelease)(handle);
      made->bases.push_back(at);
    }
    mine.mapped = k;
    if (!await(*comm, [&](int r) { return comm->shared->offers[r].mapped >= k; })) return kInternalError;
    if (!good) return kInternalError;
    comm->space[offset] = memory.bytes;
    *window = made.release();
    return kSuccess;
  });
}
int ncclCommWindowDeregister(ncclComm* comm, ncclWindow_vidmem* window) {
  if (window == nullptr) return kSuccess;
  if (find(comm) == nullptr || window->comm != comm) return kInvalidArgument;
  for (const CUdeviceptr at : window->bases) unmap(at, window->bytes);
  comm->space.erase(window->offset);
  delete window;
  return kSuccess;
}
int ncclGetLsaDevicePointer(ncclWindow_vidmem* window, size_t offset, int rank, void** ptr) {
  if (goesWrong("unmapped") || window == nullptr || rank < 0 || rank >= window->comm->nranks || offset >= window->bytes)
    return kInvalidArgument;
  *ptr = reinterpret_cast<void*>(window->bases[static_cast<size_t>(rank)] + offset);
  return kSuccess;
}
Team ncclTeamLsa(ncclComm* comm) {
  return goesWrong("lsa") ? Team{1, 0, 1} : Team{comm->nranks, comm->rank, 1};
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
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (auto& init : std::exchange(inits, {}))
    threads.emplace_back([&failed, init] {
      if (const int result = init(); result != kSuccess) failed = result;
    });
  for (std::thread& thread : threads) thread.join();
  if (failed != 0) return failed;
  for (Operation& op : std::exchange(group, {})) enqueue(op.stream, [op] { perform(op); });
  return kSuccess;
}
int ncclSend(const void* data, size_t count, int type, int peer, ncclComm* comm, CUstream_st* stream) {
  return add(comm, stream, {{true, peer, static_cast<unsigned char*>(const_cast<void*>(data)), count * bytesOf(type)}});
}
int ncclRecv(void* data, size_t count, int type, int peer, ncclComm* comm, CUstream_st* stream) {
  return add(comm, stream, {{false, peer, static_cast<unsigned char*>(data), count * bytesOf(type)}});
}
int ncclAllGather(const void* send, void* recv, size_t count, int type, ncclComm* comm, CUstream_st* stream) {
  if (find(comm) == nullptr) return kInvalidArgument;
  count *= bytesOf(type);
  std::vector<Part> parts;
  for (int p = 0; p < comm->nranks; ++p) {
    parts.push_back({true, p, static_cast<unsigned char*>(const_cast<void*>(send)), count});
    parts.push_back({false, p, static_cast<unsigned char*>(recv) + static_cast<size_t>(p) * count, count});
  }
  return add(comm, stream, std::move(parts));
}
#ifndef ULYSSES_EMULATED_NCCL_HAS_NO_ALLTOALL  // as none had before 2.28
int ncclAlltoAll(const void* send, void* recv, size_t count, int type, ncclComm* comm, CUstream_st* stream) {
  if (find(comm) == nullptr) return kInvalidArgument;
  const size_t bytes = count * bytesOf(type);
  std::vector<Part> parts;
  for (int p = 0; p < comm->nranks; ++p) {
    const size_t at = static_cast<size_t>(p) * bytes;
    parts.push_back({true, p, static_cast<unsigned char*>(const_cast<void*>(send)) + at, bytes});
    parts.push_back({false, p, static_cast<unsigned char*>(recv) + at, bytes});
  }
  return add(comm, stream, std::move(parts));
}
#endif

int ncclCommInitAll(ncclComm** comms, int n, const int* devices) {
  UniqueId id{};
  (void)ncclGetUniqueId(&id);
  const int before = currentDevice();
  ++depth;
  for (int i = 0; i < n; ++i) {
    setDevice(devices != nullptr ? devices[i] : i);
    if (const int result = ncclCommInitRank(&comms[i], n, id, i); result != kSuccess) return --depth, result;
  }
  setDevice(before);
  return ncclGroupEnd();
}

// The ranks tell each other colour and key by messages, and a name made of what the parent and the split are.
int ncclCommSplit(ncclComm* comm, int color, int key, ncclComm** child, Config* config) {
  *child = nullptr;
  const std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr) return kInvalidArgument;
  struct Wish {
    int color, key, rank;
  };
  const auto n = static_cast<size_t>(c->nranks);
  std::vector<Wish> wishes(n), mine(n, {color, key, c->rank});
  Operation op{c, nullptr, {}};
  for (int p = 0; p < c->nranks; ++p) {
    op.parts.push_back({true, p, reinterpret_cast<unsigned char*>(&mine[static_cast<size_t>(p)]), sizeof(Wish)});
    op.parts.push_back({false, p, reinterpret_cast<unsigned char*>(&wishes[static_cast<size_t>(p)]), sizeof(Wish)});
  }
  perform(op);
  const int number = ++c->splits;
  if (color < 0) return kSuccess;
  std::erase_if(wishes, [&](const Wish& w) { return w.color != color; });
  std::stable_sort(wishes.begin(), wishes.end(), [](const Wish& a, const Wish& b) { return a.key < b.key; });
  const auto me = std::find_if(wishes.begin(), wishes.end(), [&](const Wish& w) { return w.rank == c->rank; });
  UniqueId id{};
  std::snprintf(id.internal, sizeof id.internal, "%.80s-%d-%d", c->name.c_str(), number, color);
  return ncclCommInitRankConfig(child, static_cast<int>(wishes.size()), id, static_cast<int>(me - wishes.begin()),
                                config);
}

// Those that are left agree on the name without a word: others may hang.
int ncclCommShrink(ncclComm* comm, const int* excluded, int count, ncclComm** child, Config* config, int flags) {
  *child = nullptr;
  const std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr) return kInvalidArgument;
  if (flags == 1) c->aborted = c->revoked = true;
  int place = 0, size = 0;
  for (int r = 0; r < c->nranks; ++r) {
    if (std::find(excluded, excluded + count, r) != excluded + count) continue;
    place = r == c->rank ? size : place;
    ++size;
  }
  UniqueId id{};
  std::snprintf(id.internal, sizeof id.internal, "%.80s-shrunk-%d", c->name.c_str(), ++c->splits);
  return ncclCommInitRankConfig(child, size, id, place, config);
}
int ncclCommRevoke(ncclComm* comm, int) {
  const std::shared_ptr<ncclComm> c = find(comm);
  if (c == nullptr) return kInvalidArgument;
  c->aborted = c->revoked = true;
  return kSuccess;
}

}  // extern "C"
