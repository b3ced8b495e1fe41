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
};

}  // namespace ulysses::testing
