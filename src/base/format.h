// fmt's formatting, compiled once: including all of fmt in every file would cost more time than everything else here.
#pragma once

#include <fmt/core.h>

#include <string>

namespace ulysses {

std::string formatArguments(fmt::string_view format, fmt::format_args arguments);

// As fmt::format; the format string is checked at compile time.
template <class... Args>
std::string formatText(fmt::format_string<Args...> format, Args&&... arguments) {
  return formatArguments(format, fmt::make_format_args(arguments...));
}

// "1, 2, 3"
template <class Range>
std::string joinText(const Range& values, const char* separator) {
  std::string text;
  for (const auto& v : values) {
    if (!text.empty()) text += separator;
    text += formatText("{}", v);
  }
  return text;
}

}  // namespace ulysses
