#include "param/device_shards.h"

#include "base/format.h"

#ifdef ULYSSES_HAVE_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "base/cuda_support.h"
#include "base/datatype.h"
#include "device/cast.h"
#include "transport/device.h"

namespace ulysses {

namespace {

// Events of one device that no moment has. What waits for an event's record goes on waiting for that one when the event is
// recorded anew.
class IdleEvents {
 public:
  ~IdleEvents() {
    for (const cudaEvent_t event : idle_)
      if (cudaEventDestroy(event) != cudaSuccess) (void)cudaGetLastError();
  }

  Result<cudaEvent_t> take() {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const cudaEvent_t event = idle_.back();
      idle_.pop_back();
      return event;
    }
    idle_.reserve(made_ + 1);  // so that giving back never fails
    cudaEvent_t event = nullptr;
    ULYSSES_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    ++made_;
    return event;
  }
  void giveBack(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;
  size_t made_ = 0;
};

}  // namespace

class DeviceShards::Moment {
 public:
  Moment(std::shared_ptr<IdleEvents> idle, cudaEvent_t of, cudaStream_t on)
      : event(of), stream(on), idle_(std::move(idle)) {}
  ~Moment() { idle_->giveBack(event); }
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;

  const cudaEvent_t event;
  const cudaStream_t stream;
  bool known = false;  // to be over

 private:
  const std::shared_ptr<IdleEvents> idle_;  // moments may outlive who marked them
};

namespace {

constexpr size_t kPlace = 256;  // shards in the room start on this boundary

class CudaShards final : public DeviceShards {
 public:
  explicit CudaShards(int device) : device_(device) {}
  ~CudaShards() override {
    const DeviceGuard guard(device_);
    for (const Half& half : halves_) wait(half.read);
    if (prefetch_ != nullptr) (void)cudaStreamDestroy(prefetch_);
    for (Half& half : halves_) half.memory.reset();
    (void)cudaGetLastError();
  }

  Status setUp() {
    const DeviceGuard guard(device_);
    ULYSSES_TRY(guard.status());
    ULYSSES_CUDA(static_cast<cudaError_t>(device::loadCast()));
    ULYSSES_CUDA(cudaStreamCreateWithFlags(&prefetch_, cudaStreamNonBlocking));
    return {};
  }

  Result<MomentRef> mark(ulyssesStream_t stream) override {
    const LaunchGuard guard(device_);
    ULYSSES_TRY(guard.status());
    if (isCapturing(stream)) return MomentRef();
    ULYSSES_ASSIGN(const cudaEvent_t event, idle_->take());
    auto moment = std::make_shared<Moment>(idle_, event, stream);
    ULYSSES_CUDA(cudaEventRecord(event, stream));
    return moment;
  }

  Status follow(const MomentRef& moment, ulyssesStream_t stream) override {
    if (!moment || moment->known) return {};
    const LaunchGuard guard(device_);
    ULYSSES_TRY(guard.status());
    const bool recording = isCapturing(stream);
    if (!recording && moment->stream == stream) return {};
    if (over(moment)) return {};
    if (recording)
      return Status(ulyssesInvalidUsage,
                    "the stream records a graph, and work that the group waits for is not over: wait for "
                    "its stream first");
    return cudaStatus(cudaStreamWaitEvent(stream, moment->event, 0), "cudaStreamWaitEvent");
  }

  bool over(const MomentRef& moment) override {
    if (!moment || moment->known) return true;
    const RelaxedCapture relaxed;
    const cudaError_t state = cudaEventQuery(moment->event);
    if (state != cudaSuccess) (void)cudaGetLastError();
    moment->known = state != cudaErrorNotReady;
    return moment->known;
  }

  void wait(const MomentRef& moment) override {
    if (!moment || moment->known) return;
    const RelaxedCapture relaxed;
    if (cudaEventSynchronize(moment->event) != cudaSuccess) (void)cudaGetLastError();
    moment->known = true;
  }

  ulyssesStream_t prefetchStream() const override { return prefetch_; }

  Status prepare(std::span<const ParamGroup* const> groups, int rank) override {
    const DeviceGuard guard(device_);
    ULYSSES_TRY(guard.status());
    size_t room = 0;
    for (const ParamGroup* group : groups) {
      std::vector<Shard>& shards = groups_.emplace_back();
      size_t at = 0;
      const auto take = [&at](size_t bytes) { return std::exchange(at, alignUp(at + bytes, kPlace)); };
      for (const Parameter& p : group->parameters) {
        Shard s;
        s.data = p.shard;
        s.count = p.splits[static_cast<size_t>(rank)];
        s.bytes = s.count * elementBytes(p.shardType);
        s.type = p.gatherType;
        if (s.count != 0) {
          ULYSSES_ASSIGN(s.onHost, liesOnHost(p.shard));
          s.cast = p.cast();
          if (s.onHost) s.copyAt = take(s.bytes);
          if (s.cast) s.castAt = take(s.count * elementBytes(p.gatherType));
        }
        shards.push_back(s);
      }
      room = std::max(room, at);
    }
    for (size_t i = 0; i < halves_.size() && room != 0; ++i) {
      ULYSSES_ASSIGN(halves_[i].memory, deviceBuffer(room));
    }
    return {};
  }

  Status stage(size_t group, ulyssesStream_t stream, std::vector<const void*>* in) override {
    const LaunchGuard guard(device_);
    ULYSSES_TRY(guard.status());
    Half& half = halves_[turn_];
    auto* room = static_cast<std::byte*>(half.memory.get());
    in->clear();
    used_ = false;
    for (const Shard& s : groups_[group]) {
      const void* data = s.data;
      if ((s.onHost || s.cast) && !std::exchange(used_, true)) ULYSSES_TRY(follow(half.read, stream));
      if (s.onHost) {
        ULYSSES_CUDA(cudaMemcpyAsync(room + s.copyAt, data, s.bytes, cudaMemcpyHostToDevice, stream));
        data = room + s.copyAt;
      }
      if (s.cast) {
        ULYSSES_CUDA(static_cast<cudaError_t>(
            device::launchCast(data, room + s.castAt, s.count, s.type == ulyssesBfloat16, stream)));
        data = room + s.castAt;
      }
      in->push_back(data);
    }
    return {};
  }

  Status staged(ulyssesStream_t stream) override {
    if (!used_) return {};
    ULYSSES_ASSIGN(halves_[turn_].read, mark(stream));
    turn_ ^= 1;
    return {};
  }

 private:
  struct Shard {
    const void* data = nullptr;
    size_t count = 0, bytes = 0;  // as it lies there
    ulyssesDataType_t type{};     // as it is gathered
    bool onHost = false, cast = false;
    size_t copyAt = 0, castAt = 0;  // in the room
  };
  struct Half {
    DeviceBuffer memory;
    MomentRef read;  // by the gather before
  };

  // Pinned or not: CUDA copies from either.
  static Result<bool> liesOnHost(const void* shard) {
    cudaPointerAttributes attributes{};
    ULYSSES_TRY(cudaStatus(cudaPointerGetAttributes(&attributes, shard), "where a shard lies"));
    return attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged;
  }

  const int device_;
  const std::shared_ptr<IdleEvents> idle_ = std::make_shared<IdleEvents>();
  cudaStream_t prefetch_ = nullptr;
  std::vector<std::vector<Shard>> groups_;
  std::array<Half, 2> halves_;
  size_t turn_ = 0;
  bool used_ = false;  // this turn's half, by the last stage()
};

}  // namespace

Result<std::unique_ptr<DeviceShards>> DeviceShards::create(int device) {
  auto shards = std::make_unique<CudaShards>(device);
  ULYSSES_TRY(shards->setUp());
  return std::unique_ptr<DeviceShards>(std::move(shards));
}

Result<std::byte*> allocateDeviceMemory(size_t bytes, int device) {
  const DeviceGuard guard(device);
  ULYSSES_TRY(guard.status());
  void* memory = nullptr;
  ULYSSES_TRY(cudaStatus(cudaMalloc(&memory, bytes), "cudaMalloc"));
  if (const Status cleared = clearNow(memory, bytes); !cleared.ok()) {
    (void)cudaFree(memory);
    return cleared;
  }
  return static_cast<std::byte*>(memory);
}

void freeDeviceMemory(std::byte* memory, int device) {
  const DeviceGuard guard(device);
  if (memory != nullptr && cudaFree(memory) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace ulysses
#else
namespace ulysses {

class DeviceShards::Moment {};

namespace {

Status absent() {
  return Status(ulyssesNotSupported, "this library was built without CUDA");
}

}  // namespace

Result<std::unique_ptr<DeviceShards>> DeviceShards::create(int) {
  return absent();
}
Result<std::byte*> allocateDeviceMemory(size_t, int) {
  return absent();
}
void freeDeviceMemory(std::byte*, int) {}

}  // namespace ulysses
#endif
