#include "emulator/runtime.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "emulator/gpus.h"

using Work = std::function<void()>;

struct CUgraph_st {
  std::vector<Work> nodes;
  std::vector<CUstream_st*> streams;  // that record it
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread{};  // that began it
  bool broken = false;       // by a call that its mode forbids
};
struct CUgraphExec_st {
  std::vector<Work> nodes;
};

namespace {

struct EventState {
  std::atomic<uint64_t> recorded{0}, done{0};
  std::atomic<CUgraph_st*> graph{nullptr};  // that it was recorded in, also when that is recorded no more
};

// The thread of a stream, which may outlive the stream's handle.
struct Queue {
  const int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> work;
  bool busy = false, closed = false;

  explicit Queue(int on) : device(on) {}
  void push(Work w) {
    const std::lock_guard lock(mutex);
    work.push_back(std::move(w));
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return work.empty() && !busy; });
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return work.empty() && !busy;
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closed || !work.empty(); });
      if (work.empty()) return;
      Work w = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      w();
      w = nullptr;
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

thread_local int currentDevice = 0;

}  // namespace

struct CUstream_st {
  const int device;
  std::shared_ptr<Queue> queue = std::make_shared<Queue>(device);
  CUgraph_st* graph = nullptr;  // that it records
  bool origin = false;          // of that capture
  explicit CUstream_st(int on) : device(on) {
    std::thread([q = queue] { q->run(); }).detach();
  }
  ~CUstream_st() {
    const std::lock_guard lock(queue->mutex);
    queue->closed = true;
    queue->changed.notify_all();
  }
};
struct CUevent_st {
  const int device = currentDevice;
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

namespace {

enum class Kind { Device, Pooled, Managed, Pinned };
struct Allocation {
  size_t bytes, mapped;
  Kind kind;
  int device, fd;  // fd: of memory that other processes may map
};

constexpr size_t kShared = 4096;  // from here on memory is a file
constexpr size_t kTotal = size_t{16} << 30;

struct Process {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> memory;
  struct Opened {
    size_t bytes;
    int device;  // that it was opened for
  };
  std::map<uintptr_t, Opened> opened;
  std::vector<std::weak_ptr<Queue>> queues;
  std::atomic<size_t> used[kMostEmulatedGpus]{};
  CUstream_st* null[kMostEmulatedGpus] = {};
  std::set<std::pair<int, int>> peers;  // whose memory the first may use

  static Process& instance() {
    static Process* process = new Process;  // streams' threads may run until the end
    return *process;
  }
  CUstream_st* stream(cudaStream_t stream) {
    if (stream != nullptr) return stream;
    const std::lock_guard lock(mutex);
    CUstream_st*& own = null[currentDevice];
    if (own == nullptr) {
      own = new CUstream_st(currentDevice);
      queues.push_back(own->queue);
    }
    return own;
  }
  // As cudaFree and its like: the whole device comes to rest.
  void rest(int device) {
    std::vector<std::shared_ptr<Queue>> all;
    {
      const std::lock_guard lock(mutex);
      for (const auto& weak : queues)
        if (auto queue = weak.lock(); queue && queue->device == device) all.push_back(std::move(queue));
    }
    for (const auto& queue : all) queue->wait();
  }
  const Allocation* find(const void* ptr, uintptr_t* base = nullptr) {
    const auto address = reinterpret_cast<uintptr_t>(ptr);
    const std::lock_guard lock(mutex);
    auto at = memory.upper_bound(address);
    if (at == memory.begin()) return nullptr;
    --at;
    if (address >= at->first + std::max<size_t>(at->second.bytes, 1)) return nullptr;
    if (base != nullptr) *base = at->first;
    return &at->second;
  }
};

thread_local cudaError_t lastError = cudaSuccess;

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) lastError = error;
  return error;
}

std::atomic<int> madeEvents{0};

std::mutex capturesMutex;
std::vector<CUgraph_st*> captures;  // that are being recorded
bool recording(CUgraph_st* graph) {
  const std::lock_guard lock(capturesMutex);
  return std::find(captures.begin(), captures.end(), graph) != captures.end();
}

thread_local cudaStreamCaptureMode threadMode = cudaStreamCaptureModeGlobal;

// For calls that a graph would not repeat. Where a capture forbids them, they end it.
bool forbidden() {
  if (threadMode == cudaStreamCaptureModeRelaxed) return false;
  bool found = false;
  const std::lock_guard lock(capturesMutex);
  for (CUgraph_st* graph : captures) {
    const bool own = graph->thread == std::this_thread::get_id();
    if (own ? graph->mode == cudaStreamCaptureModeRelaxed
            : graph->mode != cudaStreamCaptureModeGlobal || threadMode != cudaStreamCaptureModeGlobal)
      continue;
    graph->broken = found = true;
  }
  return found;
}
#define OUTSIDE_CAPTURES \
  if (forbidden()) return failed(cudaErrorStreamCaptureUnsupported)

cudaError_t allocate(void** ptr, size_t bytes, Kind kind) {
  *ptr = nullptr;
  OUTSIDE_CAPTURES;
  if (bytes == 0) return cudaSuccess;
  Process& process = Process::instance();
  if (bytes > kTotal || process.used[currentDevice] + bytes > kTotal) return failed(cudaErrorMemoryAllocation);
  Allocation a{bytes, (bytes + 4095) / 4096 * 4096, kind, currentDevice, -1};
  if (kind == Kind::Device && bytes >= kShared) {
    a.fd = memfd_create("emulated", MFD_CLOEXEC);
    if (a.fd < 0 || ftruncate(a.fd, static_cast<off_t>(a.mapped)) != 0) return failed(cudaErrorMemoryAllocation);
  }
  void* memory =
      mmap(nullptr, a.mapped, PROT_READ | PROT_WRITE, a.fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, a.fd, 0);
  if (memory == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
  const std::lock_guard lock(process.mutex);
  process.memory[reinterpret_cast<uintptr_t>(memory)] = a;
  process.used[a.device] += bytes;
  *ptr = memory;
  return cudaSuccess;
}

cudaError_t release(void* ptr) {
  if (ptr == nullptr) return cudaSuccess;
  OUTSIDE_CAPTURES;
  Process& process = Process::instance();
  const Allocation* a = process.find(ptr);
  if (a == nullptr) return failed(cudaErrorInvalidValue);
  process.rest(a->device);
  const std::lock_guard lock(process.mutex);
  const auto found = process.memory.find(reinterpret_cast<uintptr_t>(ptr));
  if (found == process.memory.end()) return failed(cudaErrorInvalidValue);
  munmap(ptr, found->second.mapped);
  if (found->second.fd >= 0) close(found->second.fd);
  process.used[found->second.device] -= found->second.bytes;
  process.memory.erase(found);
  return cudaSuccess;
}

void nap() {
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace

namespace ulysses::emulator {

int enqueue(CUstream_st* stream, Work work) {
  CUstream_st* s = Process::instance().stream(stream);
  if (s->graph != nullptr) {
    if (s->graph->broken) return failed(cudaErrorStreamCaptureInvalidated);
    s->graph->nodes.push_back(std::move(work));
  } else {
    s->queue->push(std::move(work));
  }
  return cudaSuccess;
}

int launch(CUstream_st* stream, Work work) {
  if (Process::instance().stream(stream)->device != currentDevice) return failed(cudaErrorInvalidResourceHandle);
  return enqueue(stream, std::move(work));
}

bool reaches(int device, const void* ptr) {
  bool all = false;
  if (letsIn(ptr, device, &all)) return all;
  Process& process = Process::instance();
  const Allocation* a = process.find(ptr);
  const auto address = reinterpret_cast<uintptr_t>(ptr);
  const std::lock_guard lock(process.mutex);
  if (a != nullptr)
    return a->device == device || a->kind == Kind::Pinned || a->kind == Kind::Managed ||
           process.peers.count({device, a->device}) != 0;
  auto at = process.opened.upper_bound(address);
  if (at == process.opened.begin()) return false;
  --at;
  return address < at->first + at->second.bytes && at->second.device == device;
}

int currentGpu() {
  return currentDevice;
}
int eventsMade() {
  return madeEvents;
}

bool allocationOf(const void* ptr, unsigned long long* base, size_t* bytes) {
  uintptr_t start = 0;
  const Allocation* a = Process::instance().find(ptr, &start);
  if (a == nullptr || a->kind == Kind::Pinned) return false;
  *base = start;
  *bytes = a->bytes;
  return true;
}

}  // namespace ulysses::emulator

using ulysses::emulator::enqueue;

// For emulated libraries (nccl.cc), which are loaded at run time.
extern "C" __attribute__((visibility("default"))) void ulyssesEmulatorEnqueue(CUstream_st* stream, Work* work) {
  enqueue(stream, std::move(*work));
}
extern "C" __attribute__((visibility("default"))) int ulyssesEmulatorDevice() {
  return ulysses::emulator::currentGpu();
}
extern "C" __attribute__((visibility("default"))) int ulyssesEmulatorSetDevice(int device) {
  return cudaSetDevice(device);
}
extern "C" __attribute__((visibility("default"))) void* ulyssesEmulatorDriver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  (void)cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  return function;
}

extern "C" {

const char* cudaGetErrorName(cudaError_t) {
  return "emulated error";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    default:
      return "an error of the emulator";
  }
}
cudaError_t cudaGetLastError() {
  return std::exchange(lastError, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return lastError;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulatedVisible();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = currentDevice;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= emulatedVisible()) return failed(cudaErrorInvalidDevice);
  currentDevice = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  OUTSIDE_CAPTURES;
  Process::instance().rest(currentDevice);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Emulated");
  properties->l2CacheSize = 1 << 20;
  properties->multiProcessorCount = 132;
  properties->maxThreadsPerMultiProcessor = 2048;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (std::min(device, peer) < 0 || std::max(device, peer) >= emulatedVisible()) return failed(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (peer < 0 || peer >= emulatedVisible() || peer == currentDevice) return failed(cudaErrorInvalidDevice);
  Process& process = Process::instance();
  const std::lock_guard lock(process.mutex);
  const bool added = process.peers.emplace(currentDevice, peer).second;
  return added ? cudaSuccess : failed(cudaErrorPeerAccessAlreadyEnabled);
}
cudaError_t cudaMalloc(void** ptr, size_t bytes) {
  return allocate(ptr, bytes, Kind::Device);
}
cudaError_t cudaMallocManaged(void** ptr, size_t bytes, unsigned) {
  return allocate(ptr, bytes, Kind::Managed);
}
cudaError_t cudaMallocAsync(void** ptr, size_t bytes, cudaStream_t) {
  return allocate(ptr, bytes, Kind::Pooled);
}
cudaError_t cudaFreeAsync(void* ptr, cudaStream_t) {
  return release(ptr);
}
cudaError_t cudaFree(void* ptr) {
  return release(ptr);
}
cudaError_t cudaHostAlloc(void** ptr, size_t bytes, unsigned) {
  return allocate(ptr, bytes, Kind::Pinned);
}
cudaError_t cudaMallocHost(void** ptr, size_t bytes) {
  return allocate(ptr, bytes, Kind::Pinned);
}
cudaError_t cudaFreeHost(void* ptr) {
  return release(ptr);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = kTotal;
  *free = kTotal - Process::instance().used[currentDevice];
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  *attributes = {};
  const Allocation* a = Process::instance().find(ptr);
  int device = -1;
  const bool mapped = a == nullptr && ulysses::emulator::isMapped(ptr, &device);
  attributes->type = mapped                     ? cudaMemoryTypeDevice
                     : a == nullptr             ? cudaMemoryTypeUnregistered
                     : a->kind == Kind::Pinned  ? cudaMemoryTypeHost
                     : a->kind == Kind::Managed ? cudaMemoryTypeManaged
                                                : cudaMemoryTypeDevice;
  attributes->device = a != nullptr ? a->device : device;
  attributes->devicePointer = attributes->hostPointer = const_cast<void*>(ptr);
  return cudaSuccess;
}

// What a handle says: the process, its file, the bytes.
struct Handle {
  int pid, fd;
  size_t bytes;
};
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* ptr) {
  uintptr_t base = 0;
  const Allocation* a = Process::instance().find(ptr, &base);
  *handle = {};
  if (a == nullptr || a->kind != Kind::Device) return failed(cudaErrorInvalidValue);
  const Handle h{getpid(), a->fd, a->mapped};  // without a file it can't be opened
  std::memcpy(handle, &h, sizeof h);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** ptr, cudaIpcMemHandle_t handle, unsigned) {
  Handle h{};
  std::memcpy(&h, &handle, sizeof h);
  if (h.fd < 0) return failed(cudaErrorInvalidValue);
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return failed(cudaErrorInvalidValue);
  *ptr = mmap(nullptr, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (*ptr == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
  Process& process = Process::instance();
  const std::lock_guard lock(process.mutex);
  process.opened[reinterpret_cast<uintptr_t>(*ptr)] = {h.bytes, currentDevice};
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* ptr) {
  Process& process = Process::instance();
  process.rest(currentDevice);
  const std::lock_guard lock(process.mutex);
  const auto found = process.opened.find(reinterpret_cast<uintptr_t>(ptr));
  if (found == process.opened.end()) return failed(cudaErrorInvalidValue);
  munmap(ptr, found->second.bytes);
  process.opened.erase(found);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st(currentDevice);
  Process& process = Process::instance();
  const std::lock_guard lock(process.mutex);
  std::erase_if(process.queues, [](const auto& weak) { return weak.expired(); });
  process.queues.push_back((*stream)->queue);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUstream_st* s = Process::instance().stream(stream);
  if (s->graph != nullptr) return failed(cudaErrorStreamCaptureUnsupported);
  OUTSIDE_CAPTURES;
  s->queue->wait();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CUstream_st* s = Process::instance().stream(stream);
  if (s->graph != nullptr) return failed(cudaErrorStreamCaptureUnsupported);
  OUTSIDE_CAPTURES;
  return s->queue->idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  ++madeEvents;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CUstream_st* s = Process::instance().stream(stream);
  if (s->device != event->device) return failed(cudaErrorInvalidResourceHandle);
  event->state->graph = s->graph;
  if (s->graph != nullptr) return cudaSuccess;
  const uint64_t ticket = ++event->state->recorded;
  s->queue->push([state = event->state, ticket] {
    uint64_t before = state->done;
    while (before < ticket && !state->done.compare_exchange_weak(before, ticket)) {
    }
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->state->graph != nullptr) return failed(cudaErrorCapturedEvent);
  OUTSIDE_CAPTURES;
  return event->state->done >= event->state->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->state->graph != nullptr) return failed(cudaErrorCapturedEvent);
  OUTSIDE_CAPTURES;
  const uint64_t ticket = event->state->recorded;
  while (event->state->done < ticket) nap();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CUstream_st* s = Process::instance().stream(stream);
  if (CUgraph_st* graph = event->state->graph; graph != nullptr) {  // the stream joins the capture
    if (!recording(graph) || (s->graph != nullptr && s->graph != graph)) return failed(cudaErrorStreamCaptureIsolation);
    if (s->graph == nullptr) graph->streams.push_back(s);
    s->graph = graph;
    return cudaSuccess;
  }
  if (s->graph != nullptr) return failed(cudaErrorStreamCaptureIsolation);
  const uint64_t ticket = event->state->recorded;
  s->queue->push([state = event->state, ticket] {
    while (state->done < ticket) nap();
  });
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(threadMode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr || stream->graph != nullptr) return failed(cudaErrorStreamCaptureUnsupported);
  stream->graph = new CUgraph_st{{}, {stream}, mode, std::this_thread::get_id()};
  stream->origin = true;
  const std::lock_guard lock(capturesMutex);
  captures.push_back(stream->graph);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream != nullptr && stream->graph != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr || stream->graph == nullptr || !stream->origin)
    return failed(cudaErrorStreamCaptureUnsupported);
  *graph = stream->graph;
  for (CUstream_st* s : (*graph)->streams) s->graph = nullptr;
  stream->origin = false;
  const std::lock_guard lock(capturesMutex);
  std::erase(captures, *graph);
  if (!(*graph)->broken) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return failed(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& node : exec->nodes) enqueue(stream, node);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

// Between allocations of any GPUs; what the driver has mapped must be open to the stream's.
static bool copies(const void* to, const void* from, cudaStream_t stream) {
  const int device = Process::instance().stream(stream)->device;
  bool in = true;
  for (const void* p : {to, from})
    if (ulysses::emulator::letsIn(p, device, &in) && !in) return false;
  return true;
}
#define REACHED_BY_COPIES(to, from, stream) \
  if (!copies(to, from, stream)) return failed(cudaErrorInvalidValue)

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  REACHED_BY_COPIES(to, from, stream);
  const int error = enqueue(stream, [=] { std::memmove(to, from, bytes); });
  // What CUDA has not pinned it reads before it returns.
  const auto unpinned = [](const void* p) {
    return Process::instance().find(p) == nullptr && !ulysses::emulator::isMapped(p, nullptr);
  };
  CUstream_st* s = Process::instance().stream(stream);
  if (s->graph == nullptr && (unpinned(from) || unpinned(to))) s->queue->wait();
  return static_cast<cudaError_t>(error);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  OUTSIDE_CAPTURES;
  REACHED_BY_COPIES(to, from, nullptr);
  enqueue(nullptr, [=] { std::memmove(to, from, bytes); });
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t toPitch, const void* from, size_t fromPitch, size_t width, size_t rows,
                              cudaMemcpyKind, cudaStream_t stream) {
  if (width > toPitch || width > fromPitch) return failed(cudaErrorInvalidPitchValue);
  REACHED_BY_COPIES(to, from, stream);
  const int error = enqueue(stream, [=] {
    for (size_t row = 0; row < rows; ++row)
      std::memmove(static_cast<char*>(to) + row * toPitch, static_cast<const char*>(from) + row * fromPitch, width);
  });
  return static_cast<cudaError_t>(error);
}
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* parameters, cudaStream_t stream) {
  const cudaMemcpy3DParms p = *parameters;
  if (p.srcArray != nullptr || p.dstArray != nullptr) return failed(cudaErrorInvalidValue);
  if (p.extent.width > p.srcPtr.pitch || p.extent.width > p.dstPtr.pitch) return failed(cudaErrorInvalidPitchValue);
  REACHED_BY_COPIES(p.dstPtr.ptr, p.srcPtr.ptr, stream);
  const int error = enqueue(stream, [p] {
    const auto at = [](const cudaPitchedPtr& ptr, const cudaPos& pos, size_t row, size_t slice) {
      return static_cast<char*>(ptr.ptr) + ((pos.z + slice) * ptr.ysize + pos.y + row) * ptr.pitch + pos.x;
    };
    for (size_t slice = 0; slice < p.extent.depth; ++slice)
      for (size_t row = 0; row < p.extent.height; ++row)
        std::memmove(at(p.dstPtr, p.dstPos, row, slice), at(p.srcPtr, p.srcPos, row, slice), p.extent.width);
  });
  return static_cast<cudaError_t>(error);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  REACHED_BY_COPIES(to, to, stream);
  const int error = enqueue(stream, [=] { std::memset(to, value, bytes); });
  return static_cast<cudaError_t>(error);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  OUTSIDE_CAPTURES;
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

}  // extern "C"
