#include "transport/host_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ulysses {
namespace {

constexpr size_t kStreamMinRow = 256;  // below, a row is mostly edges

#if defined(__SSE2__)
// One row past the cache: whole cache lines by streaming stores, the edges by ordinary ones.
void streamRow(std::byte* dst, const std::byte* src, size_t bytes) {
  const size_t head = (64 - reinterpret_cast<uintptr_t>(dst) % 64) % 64;
  if (head != 0) std::memcpy(dst, src, head);
  dst += head;
  src += head;
  bytes -= head;
  for (; bytes >= 64; bytes -= 64, src += 64, dst += 64) {
    // Not into a cache line that holds what streams by once: fetched some lines ahead.
    _mm_prefetch(reinterpret_cast<const char*>(src) + 512, _MM_HINT_NTA);
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 16));
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 32));
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 48));
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + 16), b);
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + 32), c);
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + 48), d);
  }
  if (bytes != 0) std::memcpy(dst, src, bytes);
}
#else
void streamRow(std::byte* dst, const std::byte* src, size_t bytes) { std::memcpy(dst, src, bytes); }
#endif

}  // namespace

void copyBlock(const layout::BlockCopy& copy, const std::byte* src, std::byte* dst, Store store) {
  src += copy.srcOffset;
  dst += copy.dstOffset;
  if (store == Store::Streaming && copy.rowBytes >= kStreamMinRow) {
    for (size_t i = 0; i < copy.rows; ++i) streamRow(dst + i * copy.dstPitch, src + i * copy.srcPitch, copy.rowBytes);
  } else {
    for (size_t i = 0; i < copy.rows; ++i)
      std::memcpy(dst + i * copy.dstPitch, src + i * copy.srcPitch, copy.rowBytes);
  }
}

void storeFence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace ulysses
