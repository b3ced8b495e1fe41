// Reads values out of a fuzzer's bytes; past their end it gives zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace ulysses::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  template <class T>
  T take() {
    T value{};
    const size_t n = std::min(sizeof value, size_);
    if (n != 0) std::memcpy(&value, data_, n);
    skip(n);
    return value;
  }
  // One byte, as a number below `n`.
  size_t below(size_t n) { return take<uint8_t>() % n; }
  bool flag() { return below(2) == 1; }

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  std::string rest() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  void skip(size_t n) {
    data_ += n;
    size_ -= n;
  }
  const uint8_t* data_;
  size_t size_;
};

}  // namespace ulysses::fuzz

// What must hold, or the fuzzer has found something.
#define FUZZ_REQUIRE(condition)                                            \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                        \
    }                                                                      \
  } while (0)
