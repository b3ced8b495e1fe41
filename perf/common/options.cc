#include "common/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <utility>

#include "base/checked.h"
#include "common/process_group.h"

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
  app.add_option("-n,--iters", iters, "timed calls")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("-w,--warmup_iters", warmupIters, "calls before the timed ones")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-m,--agg_iters", aggIters, "operations in one group per call")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("-c,--check", checkIters, "checked calls with fresh data (0 = no check)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-a,--average", average, "time over ranks: 0 = rank 0, 1 = mean, 2 = min, 3 = max")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("-d,--datatype", datatype, "element type, or all")->check([](const std::string& name) {
    return name == "all" || parseDatatype(name) ? std::string() : "unknown datatype '" + name + "'";
  });
  app.add_option("-T,--timeout", timeoutSeconds, "seconds a call may wait for its peers (0 = the library's default)")
      ->check(CLI::Range(0, 2000000));
  app.add_option("-J,--output_file", jsonPath, "write the results as JSON; - is stdout (the table goes to stderr)");
  app.add_option("--expect-ranks", expectRanks, "fail unless there are this many ranks")->check(CLI::PositiveNumber);
}

size_t CommonOptions::firstBytes() const {
  return minBytes ? *minBytes : std::min(kDefaultBytes, lastBytes());
}
size_t CommonOptions::lastBytes() const {
  return maxBytes ? *maxBytes : std::max(kDefaultBytes, minBytes.value_or(0));
}

Status CommonOptions::validate() const {
  if (gpus != 1) {
    return {ulyssesInvalidArgument,
            fmt::format("-g {}: on host memory every thread is one rank; use -t {} instead", gpus, gpus)};
  }
  if (firstBytes() > lastBytes()) {
    return {ulyssesInvalidArgument, fmt::format("-b {} is larger than -e {}", firstBytes(), lastBytes())};
  }
  if (firstBytes() == lastBytes()) return {};
  if (stepFactor > 1 && firstBytes() == 0) {
    return {ulyssesInvalidArgument,
            fmt::format("-b 0 never grows by -f {}; start at -b 1 or step with -i", stepFactor)};
  }
  if (stepFactor > 1) return {};
  if (stepBytes == 0) return {ulyssesInvalidArgument, "-i 0 never reaches -e; use a larger step"};
  if (const size_t count = (lastBytes() - firstBytes()) / stepBytes; count >= kMostSizes) {
    return {ulyssesInvalidArgument,
            fmt::format("-i {} makes {} sizes, more than {}; use a larger step, or a factor (-f)", stepBytes, count + 1,
                        kMostSizes)};
  }
  return {};
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
