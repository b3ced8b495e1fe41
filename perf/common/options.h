// The options that every perf binary shares, with nccl-tests' names, meanings and defaults.
#pragma once

#include <ulysses/ulysses.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace ulysses::perf {

struct CommonOptions {
  int threads = 1;
  int gpus = 1;
  std::optional<size_t> minBytes, maxBytes;  // both unset: the default, or the one size a geometry fixes
  size_t stepBytes = size_t{1} << 20;
  size_t stepFactor = 1;  // 1 = step by stepBytes
  int iters = 20;
  int warmupIters = 5;
  int aggIters = 1;
  int checkIters = 1;
  int average = 1;  // 0 = rank 0, 1 = mean, 2 = min, 3 = max over ranks
  int timeoutSeconds = 0;
  int expectRanks = 0;
  std::string datatype;  // empty = the binary's default
  std::string jsonPath;

  void addTo(CLI::App& app);

  // What no single option shows: sizes that never end, several GPUs of one thread.
  Status validate() const;

  size_t firstBytes() const;
  size_t lastBytes() const;
  bool sizesGiven() const { return minBytes || maxBytes; }
  std::vector<size_t> sizes() const;
  std::vector<ulyssesDataType_t> datatypes() const;
};

// "64M" -> 67108864. K, M and G are powers of 1024, upper or lower case; nothing for anything else.
std::optional<size_t> parseSize(std::string_view text);

// nccl-tests' names (half, float, f8e4m3), and the library's own (float16, float32, float8e4m3).
std::optional<ulyssesDataType_t> parseDatatype(std::string_view name);
const char* datatypeName(ulyssesDataType_t dtype);

// Parses and validates before any rank starts. Returns the exit code when the program has to end here (help, an error:
// one message, from one process of a job), nothing when it may go on.
std::optional<int> parseArguments(CLI::App& app, int argc, char** argv, const std::function<Status()>& validate);

}  // namespace ulysses::perf
