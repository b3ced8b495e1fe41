// The one file that compiles fmt itself (FMT_HEADER_ONLY is set for it alone).
#include <fmt/format.h>

#include "base/format.h"

namespace ulysses {

std::string formatArguments(fmt::string_view format, fmt::format_args arguments) {
  return fmt::vformat(format, arguments);
}

}  // namespace ulysses
