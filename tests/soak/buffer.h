// What a soak gives to the library: host memory, or in a build with CUDA the current GPU's.
#pragma once

#ifdef ULYSSES_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#include <cstring>
#include <utility>
#include <vector>

namespace ulysses::testing {

enum class Memory { Host, Device };

#ifdef ULYSSES_HAVE_CUDA
inline constexpr bool kSoakKnowsDevice = true;
#else
inline constexpr bool kSoakKnowsDevice = false;
#endif

// What lies at `from`, wherever that is, after all that was launched before.
inline std::vector<unsigned char> contentOf([[maybe_unused]] Memory memory, const void* from, size_t bytes) {
  std::vector<unsigned char> content(bytes);
  if (bytes == 0) return content;
#ifdef ULYSSES_HAVE_CUDA
  if (memory == Memory::Device) {
    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(content.data(), from, bytes, cudaMemcpyDeviceToHost) != cudaSuccess)
      content.clear();  // equals nothing that is expected
    return content;
  }
#endif
  std::memcpy(content.data(), from, bytes);
  return content;
}

class Buffer {
 public:
  Buffer(Memory memory, std::vector<unsigned char> content)
      : memory_(memory), bytes_(content.size()), host_(std::move(content)) {
#ifdef ULYSSES_HAVE_CUDA
    if (memory_ == Memory::Host || bytes_ == 0) return;
    if (cudaMalloc(&device_, bytes_) != cudaSuccess ||
        cudaMemcpy(device_, host_.data(), bytes_, cudaMemcpyHostToDevice) != cudaSuccess)
      device_ = nullptr;  // refused by the library
    host_ = {};
#endif
  }
  Buffer(Memory memory, size_t bytes) : Buffer(memory, std::vector<unsigned char>(bytes)) {}
  Buffer(Buffer&& other) noexcept
      : memory_(other.memory_),
        bytes_(other.bytes_),
        host_(std::move(other.host_)),
        device_(std::exchange(other.device_, nullptr)) {}
  ~Buffer() {
#ifdef ULYSSES_HAVE_CUDA
    if (device_ != nullptr) (void)cudaFree(device_);
#endif
  }

  void* data() {
    return memory_ == Memory::Device ? device_ : host_.data();
  }
  const void* data() const {
    return memory_ == Memory::Device ? device_ : host_.data();
  }
  size_t size() const {
    return bytes_;
  }
  bool holds(const std::vector<unsigned char>& expected) const {
    return memory_ == Memory::Host ? host_ == expected : contentOf(memory_, device_, bytes_) == expected;
  }

 private:
  Memory memory_;
  size_t bytes_;
  std::vector<unsigned char> host_;
  void* device_ = nullptr;
};

}  // namespace ulysses::testing
