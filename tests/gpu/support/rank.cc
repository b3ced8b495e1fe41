#include "gpu/support/rank.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace ulysses::testing {

namespace {

std::shared_ptr<DeviceMemory> newMemory(size_t bytes, int device) {
  auto created = DeviceMemory::create(bytes, device);
  if (!created.ok()) throw std::runtime_error(created.status().message());
  check(cudaMemset(created.value()->data(), 0, bytes), "clearing new memory");
  check(cudaDeviceSynchronize(), "clearing new memory");
  return created.take();
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

std::shared_ptr<void> deviceBytes(size_t bytes) {
  void* ptr = nullptr;
  check(cudaMalloc(&ptr, bytes == 0 ? 1 : bytes), "cudaMalloc");
  return {ptr, [](void* p) { cudaFree(p); }};
}

std::shared_ptr<void> uploadTable(const std::vector<unsigned char>& table) {
  auto memory = deviceBytes(table.size());
  check(cudaMemcpy(memory.get(), table.data(), table.size(), cudaMemcpyHostToDevice), "uploading a work table");
  return memory;
}

GpuRank::GpuRank(Party& party, const RankSizes& sizes) : party_(party) {
  const int device = deviceOf(rank());
  check(cudaSetDevice(device), "cudaSetDevice");
  check(static_cast<cudaError_t>(device::loadKernels()), "loadKernels");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  const auto shared = [&](size_t bytes) { return party.share(newMemory(bytes == 0 ? 1 : bytes, device), device); };
  flags_ = shared(device::flagsBytes(nranks(), sizes.lineBytes));
  staging_ = shared(sizes.stagingBytes);
  window_ = shared(sizes.windowBytes);
  epoch_ = deviceBytes(sizeof(device::Epoch));
  check(cudaMemset(epoch_.get(), 0, sizeof(device::Epoch)), "clearing the epoch");
  rows_ = deviceBytes(2 * sizeof(device::WindowRow));
  device::WindowRow rows[2] = {};
  for (int r = 0; r < nranks(); ++r) {
    channel_.flags[r] = reinterpret_cast<char*>(flags_[r]->data());
    channel_.staging[r] = reinterpret_cast<char*>(staging_[r]->data());
    rows[1].base[r] = reinterpret_cast<uint64_t>(window_[r]->data());
  }
  check(cudaMemcpy(rows_.get(), rows, sizeof rows, cudaMemcpyHostToDevice), "uploading window rows");
  void* host = nullptr;
  check(cudaHostAlloc(&host, sizeof(device::HostWords), cudaHostAllocMapped), "cudaHostAlloc");
  host_ = new (host) device::HostWords{};
  channel_.rank = rank();
  channel_.nranks = nranks();
  channel_.lineBytes = sizes.lineBytes;
  channel_.epoch = static_cast<device::Epoch*>(epoch_.get());
  channel_.windows = static_cast<device::WindowRow*>(rows_.get());
  void* mapped = nullptr;
  check(cudaHostGetDevicePointer(&mapped, host, 0), "cudaHostGetDevicePointer");
  channel_.host = static_cast<device::HostWords*>(mapped);
  check(cudaDeviceSynchronize(), "setting up");
  party.barrier();
}

GpuRank::~GpuRank() {
  cudaStreamDestroy(stream_);
  cudaFreeHost(host_);
}

void GpuRank::presetEpoch(uint32_t epoch) {
  device::Flags flags{};
  const auto fill = [](auto& words, uint64_t value) {
    for (auto& row : words) {
      for (auto& word : row) word = value;
    }
  };
  fill(flags.landed, static_cast<uint64_t>(epoch) << 32);
  fill(flags.credit, static_cast<uint64_t>(epoch) << 32);
  for (auto& slot : flags.entry) {
    for (auto& peer : slot) {
      for (device::Line& line : peer) line = {0, epoch, 0, epoch};
    }
  }
  const device::Epoch value{epoch, 0};
  party_.barrier();
  check(cudaMemcpy(flags_[rank()]->data(), &flags, sizeof flags, cudaMemcpyHostToDevice), "presetting flags");
  check(cudaMemcpy(epoch_.get(), &value, sizeof value, cudaMemcpyHostToDevice), "presetting the epoch");
  check(cudaDeviceSynchronize(), "presetting the epoch");
  party_.barrier();
}

void GpuRank::finish(int timeoutMs) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeoutMs);
  bool late = false;
  for (;;) {
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state == cudaSuccess) break;
    if (state != cudaErrorNotReady) check(state, "the kernel");
    if (!late && std::chrono::steady_clock::now() > deadline) {
      late = true;
      reinterpret_cast<std::atomic<uint32_t>*>(&host_->abort)->store(1);
    }
    std::this_thread::yield();
  }
  cudaGetLastError();  // cudaErrorNotReady is not to be found by whoever asks next
  if (late) throw std::runtime_error("the kernel did not finish in time and was aborted");
}

}  // namespace ulysses::testing
