#include "transport/host_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ulysses {
namespace {

constexpr size_t kWideMinRow = 256;           // below, a row is mostly edges
constexpr size_t kWideMinBytes = 16u << 10;  // below, memcpy has it in the cache anyway
constexpr size_t kPrefetchBytes = 1024;  // ahead of the load

#if defined(__x86_64__)
// What is fetched ahead of `at`, `left` bytes before the end of its row: there the beginning of the next row follows. The
// bytes between two rows belong to others.
inline const char* ahead(const std::byte* at, size_t left, const std::byte* nextRow) {
  return reinterpret_cast<const char*>(left > kPrefetchBytes ? at + kPrefetchBytes : nextRow + (kPrefetchBytes - left));
}

template <Store kStore>
inline void store128(__m128i* to, __m128i value) {
  kStore == Store::Streaming ? _mm_stream_si128(to, value) : _mm_store_si128(to, value);
}

// Whole cache lines; gives the bytes done. `dst` is aligned to a line.
template <Store kStore>
size_t copyLines(std::byte* dst, const std::byte* src, size_t bytes, const std::byte* nextRow) {
  size_t at = 0;
  for (; bytes - at >= 64; at += 64) {
    _mm_prefetch(ahead(src + at, bytes - at, nextRow), _MM_HINT_NTA);
    const auto* from = reinterpret_cast<const __m128i*>(src + at);
    auto* to = reinterpret_cast<__m128i*>(dst + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1), c = _mm_loadu_si128(from + 2),
                  d = _mm_loadu_si128(from + 3);
    store128<kStore>(to, a);
    store128<kStore>(to + 1, b);
    store128<kStore>(to + 2, c);
    store128<kStore>(to + 3, d);
  }
  return at;
}

template <Store kStore>
__attribute__((target("avx2"))) size_t copyLinesAvx2(std::byte* dst, const std::byte* src, size_t bytes,
                                                     const std::byte* nextRow) {
  size_t at = 0;
  for (; bytes - at >= 128; at += 128) {
    const char* next = ahead(src + at, bytes - at, nextRow);
    _mm_prefetch(next, _MM_HINT_NTA);
    _mm_prefetch(next + 64, _MM_HINT_NTA);
    const auto* from = reinterpret_cast<const __m256i*>(src + at);
    auto* to = reinterpret_cast<__m256i*>(dst + at);
    const __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1), c = _mm256_loadu_si256(from + 2),
                  d = _mm256_loadu_si256(from + 3);
    if constexpr (kStore == Store::Streaming) {
      _mm256_stream_si256(to, a);
      _mm256_stream_si256(to + 1, b);
      _mm256_stream_si256(to + 2, c);
      _mm256_stream_si256(to + 3, d);
    } else {
      _mm256_store_si256(to, a);
      _mm256_store_si256(to + 1, b);
      _mm256_store_si256(to + 2, c);
      _mm256_store_si256(to + 3, d);
    }
  }
  return at + copyLines<kStore>(dst + at, src + at, bytes - at, nextRow);
}

// One row: whole cache lines by wide stores, the edges by ordinary ones.
template <Store kStore>
void copyRow(std::byte* dst, const std::byte* src, size_t bytes, const std::byte* nextRow) {
  static const auto lines = __builtin_cpu_supports("avx2") ? copyLinesAvx2<kStore> : copyLines<kStore>;
  const size_t head = (64 - reinterpret_cast<uintptr_t>(dst) % 64) % 64;
  if (head != 0) std::memcpy(dst, src, head);
  const size_t done = head + lines(dst + head, src + head, bytes - head, nextRow);
  if (done != bytes) std::memcpy(dst + done, src + done, bytes - done);
}
#else
template <Store>
void copyRow(std::byte* dst, const std::byte* src, size_t bytes, const std::byte*) {
  std::memcpy(dst, src, bytes);
}
#endif

template <Store kStore>
void copyRows(const layout::BlockCopy& copy, const std::byte* src, std::byte* dst) {
  for (size_t i = 0; i < copy.rows; ++i)
    copyRow<kStore>(dst + i * copy.dstPitch, src + i * copy.srcPitch, copy.rowBytes, src + (i + 1) * copy.srcPitch);
}

}  // namespace

void copyBlock(const layout::BlockCopy& copy, const std::byte* src, std::byte* dst, Store store) {
  src += copy.srcOffset;
  dst += copy.dstOffset;
  if (copy.rowBytes >= kWideMinRow && copy.bytes() >= kWideMinBytes) {
    store == Store::Streaming ? copyRows<Store::Streaming>(copy, src, dst) : copyRows<Store::Cached>(copy, src, dst);
    return;
  }
  for (size_t i = 0; i < copy.rows; ++i) std::memcpy(dst + i * copy.dstPitch, src + i * copy.srcPitch, copy.rowBytes);
}

void storeFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace ulysses
