// The options that the perf binaries share, with nccl-tests' names, meanings and defaults. What has no meaning on host
// memory is refused where it asks for something, and noted in the header where nothing is lost.
#pragma once

#include <ulysses/ulysses.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/datatype.h"
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
  int warmupIters = 1;
  int aggIters = 1;
  int cycles = 1;  // 0 = for ever
  int checkIters = 1;
  int average = 1;   // 0 = rank 0, 1 = mean, 2 = min, 3 = max over ranks
  int blocking = 0;  // 1 = a barrier after every call
  bool cpuTime = false, perIteration = false, timestamps = false, memoryReport = false;
  size_t unalign = 0;  // elements by which the buffers start late
  std::string out = "window";
  std::string memory;     // host, device; "": device memory where this build and machine have it
  int graphLaunches = 0;  // replays of the timed calls as a CUDA graph; 0 = the calls themselves
  bool cold = false;      // on device memory: buffers in turn, more of them than the L2 holds
  int timeoutSeconds = 0;
  int expectRanks = 0;
  double progressSeconds = 10;
  std::string datatype;  // empty = the binary's default
  std::string jsonPath, csvPath, libraryPath;

  void addTo(CLI::App& app);         // ranks, sizes, files
  void addTableTo(CLI::App& app);    // how rows are timed, checked and printed
  void addMemoryTo(CLI::App& app);
  void addBuffersTo(CLI::App& app);  // where the operands are
  // A mode that prints no table refuses what shapes one, with the further `names`.
  static void excludeTable(CLI::App& app, const std::string& mode, const std::vector<std::string>& names = {});

  // What no single option shows: sizes that never end, several GPUs of one thread.
  Status validate();
  // Lines for the header: options and variables that were given and change nothing here.
  std::vector<std::string> notes() const;

  size_t firstBytes() const;
  size_t lastBytes() const;
  bool sizesGiven() const { return minBytes || maxBytes; }
  std::vector<size_t> sizes() const;
  std::vector<ulyssesDataType_t> datatypes() const;
  bool onDevice() const { return memory == "device"; }
  // Settles where the buffers are; `hostOnly`: what is asked for that host memory alone has, or "".
  Status chooseMemory(const std::string& hostOnly = "");
  size_t unalignBytes(ulyssesDataType_t dtype) const { return unalign * elementBytes(dtype); }

 private:
  int deviceImplementation = 0;
  std::optional<int> parallelInit, streamNull, localRegister, ctaPolicy, ctaCount;
  std::string operation, root;
  bool outGiven = false;
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
