#include "param/cast.h"

#include <algorithm>

namespace ulysses {

void castShard(const float* in, uint16_t* out, size_t count, ulyssesDataType_t type) {
  std::transform(in, in + count, out, type == ulyssesBfloat16 ? toBfloat16 : toFloat16);
}

}  // namespace ulysses
