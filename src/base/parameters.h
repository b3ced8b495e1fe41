// The environment: one table of names, types, defaults and texts, parsed strictly.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ulysses {

enum class A2AMode { Auto, Fused, Off };
enum class MemoryChoice { Auto, Host, Cuda };
enum class LongTraining { Auto, Chunked };
enum class WindowsFrom { Auto, Ipc, Nccl };

// What the environment says, read when a communicator is made. An unset or bad value leaves the default.
struct Parameters {
  A2AMode a2a = A2AMode::Auto;
  MemoryChoice memory = MemoryChoice::Auto;
  LongTraining longTraining = LongTraining::Auto;
  WindowsFrom windows = WindowsFrom::Auto;
  std::string residency;   // "", persistent, budget:BYTES, transient; parsed by src/param
  int kernelRevision = 0;  // 0 = newest
  std::optional<size_t> windowCapBytes;
  size_t stagingBytes = 64 << 20;  // most staging per rank on host memory
  int maxCtas = 0;                 // 0 = the policy's
  bool ncclCalls = true;                          // libulysses-nccl takes calls
  size_t ncclMaxBytes = size_t{1} << 20;          // per rank, that it takes
  std::string path = "auto";       // auto, direct, staged, copy-engine, nccl, mpi
  std::optional<int> timeoutMs;    // -1 = wait for ever
  std::string hostId;              // "" = the kernel's boot id
  std::string topoFile;
  std::string socketIfname;
  std::string dumpDir = ".";            // of flight records; off = none are written by themselves
  std::string debug = "warn";  // none, warn, info, trace
  std::string debugFile;       // "" = stderr; %h and %p stand for host and process

  friend bool operator==(const Parameters&, const Parameters&) = default;

  // Reads the environment; a bad value is warned of once per process and name, naming the default that is used.
  static Parameters fromEnvironment();
  // The same without a warning: for the log itself, which cannot warn before it knows its level.
  static Parameters fromEnvironmentSilently();
};

// One row of the table, for `ulysses_topo --env`.
struct ParameterRow {
  std::string name, type, defaultValue, currentValue, text;
};
std::vector<ParameterRow> parameterTable();

// "64M" -> 67108864. K, M and G are powers of 1024, upper or lower case. Nothing for anything else or an overflow.
std::optional<size_t> parseBytes(const std::string& text);

}  // namespace ulysses
