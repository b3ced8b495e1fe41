// What a soak gives to the library: host memory, or in a build with CUDA the current GPU's.
#pragma once

#include <memory>
#include <utility>

#include "soak/content.h"

namespace ulysses::testing {

enum class Memory { Host, Device };

#ifdef ULYSSES_HAVE_CUDA
inline constexpr bool kSoakKnowsDevice = true;
#else
inline constexpr bool kSoakKnowsDevice = false;
#endif

// Of the current GPU, written and compared there, as the host would take most of a soak's time for it. Memory is taken
// from what a process keeps; null where there is no more, which the library refuses.
void* takeOnDevice(size_t bytes);
void giveBackOnDevice(void* memory, size_t bytes);
void fillOnDevice(void* to, const Content& content);
bool heldOnDevice(const void* at, const Content& content);  // after all that was launched before
size_t usedOnDevice();                                      // bytes, by everyone
void chooseDevice(int rank);                                // ranks are dealt the GPUs in turn

// Whether `content` lies there.
inline bool holds(Memory memory, const void* at, const Content& content) {
  if (content.bytes() == 0) return true;
  if (memory == Memory::Device) return heldOnDevice(at, content);
  return content.isAt(static_cast<const unsigned char*>(at));
}

class Buffer {
 public:
  Buffer(Memory memory, size_t bytes) : memory_(memory), bytes_(bytes) {
    if (memory_ == Memory::Host)
      host_ = std::make_unique_for_overwrite<unsigned char[]>(bytes);
    else
      device_ = takeOnDevice(bytes);
  }
  Buffer(Memory memory, const Content& content) : Buffer(memory, content.bytes()) { write(content); }
  Buffer(Buffer&& other) noexcept
      : memory_(other.memory_),
        bytes_(other.bytes_),
        host_(std::move(other.host_)),
        device_(std::exchange(other.device_, nullptr)) {}
  ~Buffer() {
    if (device_ != nullptr) giveBackOnDevice(device_, bytes_);
  }

  void* data() { return memory_ == Memory::Device ? device_ : host_.get(); }
  const void* data() const { return memory_ == Memory::Device ? device_ : host_.get(); }
  size_t size() const { return bytes_; }
  // In its place, and as large as what is there.
  void write(const Content& content) {
    if (memory_ == Memory::Host)
      content.write(host_.get());
    else if (device_ != nullptr)
      fillOnDevice(device_, content);
  }
  bool holds(const Content& content) const {
    return content.bytes() == bytes_ && testing::holds(memory_, data(), content);
  }

 private:
  Memory memory_;
  size_t bytes_;
  std::unique_ptr<unsigned char[]> host_;
  void* device_ = nullptr;
};

}  // namespace ulysses::testing
