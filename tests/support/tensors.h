// The tensors of the cases: the global [B,S,H,D] holds g(b,s,h,d) = ((b*S+s)*H+h)*D+d + salt as the raw bits of its
// element (low bits for narrow types). Written from that definition alone, without the library's layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace ulysses::testing {

struct Shape {
  size_t B, S, H, D, elementBytes;
};

using Part = std::pair<size_t, size_t>;  // begin, count

// The balanced split of the cases: the first n mod P parts get one more.
inline Part balanced(size_t n, int P, int r) {
  const size_t p = static_cast<size_t>(P), i = static_cast<size_t>(r), base = n / p, more = n % p;
  return {i * base + std::min(i, more), base + (i < more ? 1 : 0)};
}

// The part [all B, seq, heads, all D] of the global tensor, contiguous.
template <class Element>
void writeElements(unsigned char* to, const Shape& t, Part seq, Part heads, uint64_t salt) {
  for (size_t b = 0; b < t.B; ++b)
    for (size_t s = seq.first; s < seq.first + seq.second; ++s)
      for (size_t h = heads.first; h < heads.first + heads.second; ++h) {
        const uint64_t first = ((b * t.S + s) * t.H + h) * t.D + salt;
        for (size_t d = 0; d < t.D; ++d, to += sizeof(Element)) {
          const auto g = static_cast<Element>(first + d);  // the low bytes
          std::memcpy(to, &g, sizeof g);
        }
      }
}
inline void writeTensor(unsigned char* to, const Shape& t, Part seq, Part heads, uint64_t salt) {
  const auto write = t.elementBytes == 1   ? writeElements<uint8_t>
                     : t.elementBytes == 2 ? writeElements<uint16_t>
                     : t.elementBytes == 4 ? writeElements<uint32_t>
                                           : writeElements<uint64_t>;
  write(to, t, seq, heads, salt);
}
inline std::vector<unsigned char> tensor(const Shape& t, Part seq, Part heads, uint64_t salt = 0) {
  std::vector<unsigned char> out(t.B * seq.second * heads.second * t.D * t.elementBytes);
  writeTensor(out.data(), t, seq, heads, salt);
  return out;
}

// What rank r passes to scatter-heads (and gets from gather-heads), and what it gets from scatter-heads.
inline std::vector<unsigned char> sequenceSide(const Shape& t, int P, int r, uint64_t salt = 0) {
  return tensor(t, balanced(t.S, P, r), {0, t.H}, salt);
}
inline std::vector<unsigned char> headSide(const Shape& t, int P, int r, uint64_t salt = 0) {
  return tensor(t, {0, t.S}, balanced(t.H, P, r), salt);
}

// zlib's CRC32 as eight hex digits.
inline std::string crc(const std::vector<unsigned char>& bytes) {
  uint32_t c = ~0u;
  for (unsigned char byte : bytes) {
    c ^= byte;
    for (int k = 0; k < 8; ++k) c = (c >> 1) ^ (0xedb88320u & (0u - (c & 1)));
  }
  char text[9];
  std::snprintf(text, sizeof text, "%08x", ~c);
  return text;
}

// A buffer between 64 canary bytes on both sides, aligned to 64 bytes plus `shift`.
class Fenced {
 public:
  explicit Fenced(size_t bytes, size_t shift = 0, unsigned char fill = 0xEE)
      : bytes_(bytes), memory_(bytes + 256 + shift, fill) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + 64;
    data_ = memory_.data() + 64 + (64 - address % 64) % 64 + shift;
    std::memset(data_ - 64, 0xA5, 64);
    std::memset(data_ + bytes, 0xA5, 64);
  }
  explicit Fenced(const std::vector<unsigned char>& content, size_t shift = 0) : Fenced(content.size(), shift) {
    if (!content.empty()) std::memcpy(data_, content.data(), content.size());
  }
  unsigned char* data() { return data_; }
  std::vector<unsigned char> content() const { return {data_, data_ + bytes_}; }
  bool intact() const {
    for (size_t i = 1; i <= 64; ++i)
      if (data_[-static_cast<ptrdiff_t>(i)] != 0xA5 || data_[bytes_ + i - 1] != 0xA5) return false;
    return true;
  }
  bool untouched() const {
    for (size_t i = 0; i < bytes_; ++i)
      if (data_[i] != 0xEE) return false;
    return intact();
  }

 private:
  size_t bytes_;
  std::vector<unsigned char> memory_;
  unsigned char* data_;
};

}  // namespace ulysses::testing
