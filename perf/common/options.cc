#include "common/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/checked.h"
#include "common/process_group.h"
#include "device/device.h"

namespace ulysses::perf {
namespace {

constexpr size_t kMostSizes = 100000;
constexpr size_t kDefaultBytes = size_t{32} << 20;

struct DatatypeName {
  const char* name;
  const char* alias;
  ulyssesDataType_t dtype;
};

constexpr std::array<DatatypeName, 12> kDatatypes{{{"int8", "int8", ulyssesInt8},
                                                   {"uint8", "uint8", ulyssesUint8},
                                                   {"int32", "int32", ulyssesInt32},
                                                   {"uint32", "uint32", ulyssesUint32},
                                                   {"int64", "int64", ulyssesInt64},
                                                   {"uint64", "uint64", ulyssesUint64},
                                                   {"half", "float16", ulyssesFloat16},
                                                   {"float", "float32", ulyssesFloat32},
                                                   {"double", "float64", ulyssesFloat64},
                                                   {"bfloat16", "bfloat16", ulyssesBfloat16},
                                                   {"f8e4m3", "float8e4m3", ulyssesFloat8e4m3},
                                                   {"f8e5m2", "float8e5m2", ulyssesFloat8e5m2}}};

// A size option: K, M, G understood, anything else refused by name.
void addSize(CLI::App& app, const std::string& names, const std::string& text, const std::function<void(size_t)>& set) {
  app.add_option_function<std::string>(
         names,
         [names, set](const std::string& value) {
           const auto bytes = parseSize(value);
           if (!bytes) throw CLI::ValidationError(names, "not a size: '" + value + "' (a number, with K, M or G)");
           set(*bytes);
         },
         text)
      ->type_name("SIZE");
}

}  // namespace

std::optional<size_t> parseSize(std::string_view text) {
  size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  if (rest == end) return number;
  if (rest + 1 != end) return std::nullopt;
  switch (*rest) {
    case 'k':
    case 'K':
      return checkedMul(number, size_t{1} << 10);
    case 'm':
    case 'M':
      return checkedMul(number, size_t{1} << 20);
    case 'g':
    case 'G':
      return checkedMul(number, size_t{1} << 30);
    default:
      return std::nullopt;
  }
}

std::optional<ulyssesDataType_t> parseDatatype(std::string_view name) {
  for (const auto& row : kDatatypes) {
    if (name == row.name || name == row.alias) return row.dtype;
  }
  return std::nullopt;
}

const char* datatypeName(ulyssesDataType_t dtype) {
  for (const auto& row : kDatatypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "unknown";
}

void CommonOptions::addTo(CLI::App& app) {
  // Given twice, the last one counts, as with getopt.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("-t,--nthreads", threads, "threads per process, each of them a rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("-g,--ngpus", gpus, "GPUs per thread (1 on host memory)")->check(CLI::Range(1, 1024));
  addSize(app, "-b,--minbytes", "smallest size (default 32M)", [this](size_t n) { minBytes = n; });
  addSize(app, "-e,--maxbytes", "largest size (default 32M)", [this](size_t n) { maxBytes = n; });
  addSize(app, "-i,--stepbytes", "increment between sizes (default 1M)", [this](size_t n) { stepBytes = n; });
  app.add_option("-f,--stepfactor", stepFactor, "factor between sizes (1 = use the increment)")
      ->check(CLI::Range(size_t{1}, size_t{1} << 30));
  app.add_option("-d,--datatype", datatype, "element type, or all")->check([](const std::string& name) {
    return name == "all" || parseDatatype(name) ? std::string() : "unknown datatype '" + name + "'";
  });
  app.add_option("-T,--timeout", timeoutSeconds, "seconds a call may wait for its peers (0 = the library's default)")
      ->check(CLI::Range(0, 2000000));
  app.add_option("-J,--output_file", jsonPath, "write the results as JSON; - is stdout (the table goes to stderr)");
  app.add_option("--lib", libraryPath,
                 "another build of the library (a libulysses.so), measured in turns with this one");
  app.add_option("--expect-ranks", expectRanks, "fail unless there are this many ranks")->check(CLI::PositiveNumber);
  app.add_option("--progress", progressSeconds, "seconds between lines on stderr that say what a run is at (0 = none)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void CommonOptions::addTableTo(CLI::App& app) {
  const auto number = [&app](const char* names, auto& target, const char* text, int least, int most) {
    return app.add_option(names, target, text)->check(CLI::Range(least, most));
  };
  constexpr int kMost = std::numeric_limits<int>::max();
  number("-n,--iters", iters, "timed calls", 0, kMost)->capture_default_str();
  number("-w,--warmup_iters", warmupIters, "calls before the timed ones", 0, kMost - 1)->capture_default_str();
  number("-m,--agg_iters", aggIters, "operations in one group per call", 1, kMost)->capture_default_str();
  number("-N,--run_cycles", cycles, "times the table is measured and printed (0 = for ever)", 0, kMost)
      ->capture_default_str();
  number("-c,--check", checkIters, "checked calls with fresh data (0 = no check)", 0, kMost)->capture_default_str();
  number("-a,--average", average, "time over ranks: 0 = rank 0, 1 = mean, 2 = min, 3 = max", 0, 3)
      ->capture_default_str();
  number("-z,--blocking", blocking, "1 = barrier after every call (calls on host memory always wait)", 0, 2)
      ->capture_default_str();
  number("-C,--report_cputime", cpuTime, "1 = until the calls return (on host memory they are complete then)", 0, 1);
  number("-I,--per_iter_timing", perIteration, "1 = columns of the single calls, slowest rank", 0, 1);
  number("-S,--report_timestamps", timestamps, "1 = time of day in every row", 0, 1);
  number("-M,--memory_report", memoryReport, "1 = report of the memory used", 0, 1);
  number("-G,--cudagraph", graphLaunches, "device memory: replays of the timed calls as a CUDA graph", 0, kMost);
  app.add_flag("--cold", cold, "device memory: buffers take turns, more of them than the L2 cache holds");
  app.add_option("--csv", csvPath, "write the results as CSV; - is stdout (the table goes to stderr)");

  // NCCL's own, accepted so that command lines of nccl-tests work.
  constexpr const char* kGroup = "nccl-tests' options without effect here: noted, or refused where they ask for more";
  number("-p,--parallel_init", parallelInit, "ranks always initialise in parallel", 0, 1)->group(kGroup);
  number("-y,--stream_null", streamNull, "host memory has no streams", 0, 1)->group(kGroup);
  app.add_option("-o,--op", operation, "nothing is reduced")
      ->check(CLI::IsMember({"sum", "prod", "min", "max", "avg", "mulsum", "all"}))
      ->group(kGroup);
  app.add_option("-r,--root", root, "no rank is special")
      ->check([](const std::string& text) {
        int rank = 0;
        const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
        const bool isNumber = error == std::errc() && rest == text.data() + text.size();
        return text == "all" || isNumber ? std::string() : "not a rank: '" + text + "'";
      })
      ->group(kGroup);
  number("-D,--device_implementation", deviceImplementation, "NCCL's device API", 0, kMost)->group(kGroup);
  number("-V,--device_cta_count", ctaCount, "NCCL's device API", 1, 128)->group(kGroup);
  number("-x,--cta_policy", ctaPolicy, "NCCL's CTA policy", 0, 2)->group(kGroup);
}

void CommonOptions::addMemoryTo(CLI::App& app) {
  app.add_option("--memory", memory,
                 "host or device (default: device where there is a GPU, unless ULYSSES_MEMORY=host)")
      ->check(CLI::IsMember({"host", "device"}));
}

void CommonOptions::addBuffersTo(CLI::App& app) {
  app.add_option_function<std::string>(
         "--out",
         [this](const std::string& value) {
           out = value;
           outGiven = true;
         },
         "outputs in a window (peers write them directly) or plain (staged) (default window)")
      ->check(CLI::IsMember({"window", "plain"}));
  addMemoryTo(app);
  app.add_option("-R,--local_register", localRegister, "nccl-tests' name for it: 0 = plain, 1 and 2 = window")
      ->check(CLI::Range(0, 2));
  app.add_option("-u,--unalign", unalign, "index of the first element in the buffers: misaligns them")
      ->check(CLI::Range(size_t{0}, size_t{1} << 20))
      ->capture_default_str();
}

void CommonOptions::excludeTable(CLI::App& app, const std::string& mode, const std::vector<std::string>& names) {
  std::vector<std::string> all{"-n", "-w", "-m", "-N", "-c", "-a", "-z", "-C", "-I", "-S", "-M", "--csv"};
  all.insert(all.end(), names.begin(), names.end());
  for (const std::string& name : all) app.get_option(mode)->excludes(app.get_option(name));
}

Status CommonOptions::validate() {
  const auto bad = [](std::string text) { return Status(ulyssesInvalidArgument, std::move(text)); };
  if (gpus != 1) return bad(fmt::format("-g {}: every thread is one rank; use -t {} instead", gpus, gpus));
  if (deviceImplementation > 0 || ctaCount) return bad("-D and -V: NCCL's device API has no counterpart here");
  if (ctaPolicy) return bad(fmt::format("-x {}: NCCL's CTA policies have no counterpart here", *ctaPolicy));
  for (const char* name : {"NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK"}) {
    if (std::getenv(name)) return bad(std::string(name) + " is set: all ranks are one group here; unset it");
  }
  if (localRegister) {
    const std::string chosen = *localRegister == 0 ? "plain" : "window";
    if (outGiven && out != chosen)
      return bad(fmt::format("-R {} and --out {} contradict each other", *localRegister, out));
    out = chosen;
  }
  const std::string suffix = ".csv";
  if (jsonPath.size() > suffix.size() &&
      jsonPath.compare(jsonPath.size() - suffix.size(), suffix.size(), suffix) == 0) {
    return bad(fmt::format("-J {}: -J writes JSON; for CSV use --csv", jsonPath));
  }
  if (jsonPath == "-" && csvPath == "-") return bad("-J - and --csv -: only one of them can have stdout");
  if (cycles == 0 && !jsonPath.empty()) return bad("-N 0 never ends, so that -J is never written; use --csv");

  if (firstBytes() > lastBytes()) return bad(fmt::format("-b {} is larger than -e {}", firstBytes(), lastBytes()));
  if (firstBytes() == lastBytes()) return {};
  if (stepFactor > 1 && firstBytes() == 0) {
    return bad(fmt::format("-b 0 never grows by -f {}; start at -b 1 or step with -i", stepFactor));
  }
  if (stepFactor > 1) return {};
  if (stepBytes == 0) return bad("-i 0 never reaches -e; use a larger step");
  if (const size_t count = (lastBytes() - firstBytes()) / stepBytes; count >= kMostSizes) {
    return bad(fmt::format("-i {} makes {} sizes, more than {}; use a larger step, or a factor (-f)", stepBytes,
                           count + 1, kMostSizes));
  }
  return {};
}

Status CommonOptions::chooseMemory(const std::string& hostOnly) {
  const std::string why = Device::whyNone();
  if (memory == "device" && !why.empty()) return {ulyssesNotSupported, "--memory device: " + why};
  if (memory == "device" && !hostOnly.empty())
    return {ulyssesInvalidArgument, fmt::format("--memory device: {} is for host memory", hostOnly)};
  const char* asked = std::getenv("ULYSSES_MEMORY");
  const bool host = asked && std::string_view(asked) == "host";
  if (memory == "device" && host)
    return {ulyssesInvalidArgument, "--memory device, and ULYSSES_MEMORY=host: the library would take host memory"};
  if (memory.empty()) memory = why.empty() && hostOnly.empty() && !host ? "device" : "host";
  if (onDevice()) return {};
  if (graphLaunches > 0)
    return {ulyssesInvalidArgument, fmt::format("-G {}: host memory has no CUDA graphs", graphLaunches)};
  if (cold) return {ulyssesInvalidArgument, "--cold is for device memory"};
  return {};
}

std::vector<std::string> CommonOptions::notes() const {
  std::vector<std::string> lines;
  if (blocking == 1) lines.push_back("Blocking Enabled: wait for completion and barrier after each collective ");
  if (blocking == 2) lines.push_back("Blocking Enabled: wait for completion after each collective (no barrier) ");
  if (perIteration) lines.push_back("Per-Iteration Report: clock of the host; i_* uses max over ranks ");
  if (onDevice())
    lines.push_back("Times: of the GPU, by events; in JSON and CSV also from the host's call to completion ");
  if (graphLaunches > 0)
    lines.push_back(fmt::format("Graph Enabled: the timed calls are recorded and replayed {} times ", graphLaunches));
  if (cold) lines.push_back("Cold: buffers take turns beyond the L2 cache ");
  if (parallelInit.value_or(0) == 1) {
    lines.push_back("Parallel Init Enabled: threads call into CommInitRank concurrently ");
  } else if (parallelInit) {
    lines.push_back("-p 0 changes nothing: ranks always initialise in parallel");
  }
  if (streamNull)
    lines.push_back(fmt::format("-y {} changes nothing: every rank has a stream of its own", *streamNull));
  if (!operation.empty()) lines.push_back(fmt::format("-o {} changes nothing: nothing is reduced", operation));
  if (!root.empty()) lines.push_back(fmt::format("-r {} changes nothing: no rank is special", root));
  if (std::getenv("NCCL_TESTS_DEVICE"))
    lines.push_back("NCCL_TESTS_DEVICE changes nothing: the data is in host memory");
  return lines;
}

size_t CommonOptions::firstBytes() const {
  return minBytes ? *minBytes : std::min(kDefaultBytes, lastBytes());
}
size_t CommonOptions::lastBytes() const {
  return maxBytes ? *maxBytes : std::max(kDefaultBytes, minBytes.value_or(0));
}

std::vector<size_t> CommonOptions::sizes() const {
  std::vector<size_t> result;
  for (std::optional<size_t> size = firstBytes(); size && *size <= lastBytes();) {
    result.push_back(*size);
    if (*size == lastBytes()) break;
    size = stepFactor > 1 ? checkedMul(*size, stepFactor) : checkedAdd(*size, stepBytes);
  }
  return result;
}

std::vector<ulyssesDataType_t> CommonOptions::datatypes() const {
  if (const auto dtype = parseDatatype(datatype)) return {*dtype};
  if (datatype != "all") return {ulyssesFloat32};
  std::vector<ulyssesDataType_t> all;
  for (const auto& row : kDatatypes) all.push_back(row.dtype);
  return all;
}

std::optional<int> parseArguments(CLI::App& app, int argc, char** argv, const std::function<Status()>& validate) {
  const bool speaks = launchedRank() == 0;
  const auto fail = [&](const std::string& text) {
    if (speaks) fmt::print(stderr, "{}: {}\n", app.get_name(), text);
    return 2;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (speaks) fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& e) {
    return fail(e.what());
  }
  if (const Status status = validate(); !status.ok()) return fail(status.message());
  return std::nullopt;
}

}  // namespace ulysses::perf
