// 64-bit arithmetic that says when it does not fit. Every size that comes from a caller goes through it.
#pragma once

#include <cstddef>
#include <optional>

namespace ulysses {

inline std::optional<size_t> checkedMul(size_t a, size_t b) {
  size_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

inline std::optional<size_t> checkedAdd(size_t a, size_t b) {
  size_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

// The product of all factors, or nothing when it does not fit.
template <class... Sizes>
std::optional<size_t> checkedProduct(Sizes... factors) {
  std::optional<size_t> r = 1;
  ((r = r ? checkedMul(*r, static_cast<size_t>(factors)) : std::nullopt), ...);
  return r;
}

inline size_t alignUp(size_t n, size_t alignment) { return (n + alignment - 1) / alignment * alignment; }
inline size_t ceilDiv(size_t n, size_t d) { return n / d + (n % d != 0); }

}  // namespace ulysses
