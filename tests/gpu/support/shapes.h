// Shapes by the way they go on device memory.
#pragma once

#include "support/tensors.h"

namespace ulysses::testing {

inline constexpr Shape kSmall{2, 4, 4, 3, 4};       // fits the small path
inline constexpr Shape kStaged{2, 4300, 4, 31, 4};  // through slots where it is not direct, of up to four ranks
inline constexpr Shape kMedium{1, 2400, 8, 32, 2};  // likewise, of two

}  // namespace ulysses::testing
