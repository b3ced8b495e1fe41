// Log lines that look like NCCL's, to stderr or ULYSSES_DEBUG_FILE, at the level of ULYSSES_DEBUG.
#pragma once

#include "base/format.h"

#include <string>

namespace ulysses {

enum class LogLevel { None, Warn, Info, Trace };

LogLevel logLevel();  // of ULYSSES_DEBUG, read once; WARN by default
void logLine(LogLevel level, int device, const std::string& text);  // device -1: host memory

}  // namespace ulysses

#define ULYSSES_LOG(level, device, ...)                                                     \
  do {                                                                                      \
    if (::ulysses::logLevel() >= ::ulysses::LogLevel::level)                                \
      ::ulysses::logLine(::ulysses::LogLevel::level, (device), ::ulysses::formatText(__VA_ARGS__)); \
  } while (0)
