// What a rank gives or expects: a part of a tensor of the cases. Flat blocks are parts of tensors, too.
#pragma once

#include "support/tensors.h"

namespace ulysses::testing {

struct Content {
  Shape shape{1, 0, 0, 0, 1};
  Part seq{0, 0}, heads{0, 0};
  uint64_t salt = 0;

  size_t elements() const { return shape.B * seq.second * heads.second * shape.D; }
  size_t bytes() const { return elements() * shape.elementBytes; }

  void write(unsigned char* to) const { writeTensor(to, shape, seq, heads, salt); }
  bool isAt(const unsigned char* at) const {
    return shape.elementBytes == 1   ? elementsAre<uint8_t>(at)
           : shape.elementBytes == 2 ? elementsAre<uint16_t>(at)
           : shape.elementBytes == 4 ? elementsAre<uint32_t>(at)
                                     : elementsAre<uint64_t>(at);
  }

 private:
  template <class Element>
  bool elementsAre(const unsigned char* at) const {
    Element wrong = 0;
    for (size_t b = 0; b < shape.B; ++b)
      for (size_t s = seq.first; s < seq.first + seq.second; ++s)
        for (size_t h = heads.first; h < heads.first + heads.second; ++h) {
          const uint64_t first = ((b * shape.S + s) * shape.H + h) * shape.D + salt;
          for (size_t d = 0; d < shape.D; ++d, at += sizeof(Element)) {
            Element g;
            std::memcpy(&g, at, sizeof g);
            wrong |= static_cast<Element>(g ^ static_cast<Element>(first + d));
          }
        }
    return wrong == 0;
  }
};

}  // namespace ulysses::testing
