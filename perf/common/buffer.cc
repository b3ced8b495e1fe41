#include "common/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ulysses::perf {

Status Buffer::allocate(Buffer& buffer, size_t bytes, Device* device) {
  if (bytes == 0) return {};
  if (device != nullptr) {
    ULYSSES_ASSIGN(buffer.data_, device->allocate(bytes));
    buffer.bytes_ = bytes;
    buffer.device_ = device;
    return {};
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return {ulyssesOutOfMemory, fmt::format("a buffer of {} bytes: {}", bytes, std::strerror(errno))};
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return {};
}

Status Buffer::allocateWindow(Buffer& buffer, size_t bytes, const Communicator& comm) {
  if (bytes == 0) return {};
  void* data = nullptr;
  ULYSSES_TRY(comm.status(comm.library().MemAlloc(&data, bytes, comm.get()), "ulyssesMemAlloc"));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  buffer.comm_ = &comm;
  return {};
}

void Buffer::release() {
  if (!data_) return;
  if (comm_) {
    comm_->library().MemFree(data_, comm_->get());
  } else if (device_) {
    device_->free(data_);
  } else {
    munmap(data_, bytes_);
  }
}

size_t Turns::copiesFor(const Device* device, bool cold, size_t bytes) {
  constexpr size_t kMost = 64;
  if (!device || !cold || bytes == 0) return 1;
  return std::min(kMost, 1 + 2 * device->cacheBytes() / bytes);
}

void touch(std::byte* data, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t i = 0; i < bytes; i += kLine) {
    volatile std::byte* p = data + i;
    *p = *p;
  }
}

void plainCopy(Device* device, std::byte* out, const std::byte* in, size_t bytes) {
  if (device) return device->copy(out, in, bytes);
  streamingCopy(out, in, bytes);
}

void streamingCopy(std::byte* out, const std::byte* in, size_t bytes) {
#if defined(__SSE2__)
  const size_t head = std::min(bytes, static_cast<size_t>(-reinterpret_cast<uintptr_t>(out) & 15));
  std::memcpy(out, in, head);
  size_t i = head;
  for (; i + 64 <= bytes; i += 64) {
    const auto* from = reinterpret_cast<const __m128i*>(in + i);
    auto* to = reinterpret_cast<__m128i*>(out + i);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(out + i, in + i, bytes - i);
  _mm_sfence();
#else
  std::memcpy(out, in, bytes);
#endif
}

}  // namespace ulysses::perf
