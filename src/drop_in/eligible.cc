#include "drop_in/eligible.h"

#include "base/checked.h"
#include "base/format.h"

namespace ulysses::drop_in {

size_t elementBytes(int type) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // int8 to float8e5m2
  return type >= 0 && type < static_cast<int>(std::size(kBytes)) ? kBytes[type] : 0;
}

std::string whyPassed(const CallFacts& f) {
  if (f.count == 0) return "nothing to move";
  const size_t element = elementBytes(f.type);
  if (element == 0) return formatText("data type {} is not known", f.type);
  const auto bytes = checkedProduct(f.count, element, f.nranks);
  if (!bytes || *bytes > f.mostBytes)
    return formatText("more than {} bytes a rank (ULYSSES_NCCL_MAX_BYTES)", f.mostBytes);
  return "";
}

}  // namespace ulysses::drop_in
