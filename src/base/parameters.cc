#include "base/parameters.h"

#include <charconv>
#include <climits>
#include <cstdlib>
#include <initializer_list>
#include <mutex>
#include <set>
#include <string_view>

#include "base/log.h"

namespace ulysses {
namespace {

// ASCII only: the caller's locale has no say in what a value means.
std::string lowered(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// The whole text as a decimal number, or nothing.
template <class Number>
std::optional<Number> parseNumber(std::string_view text) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

bool parseIntIn(const std::string& text, int least, int most, int& out) {
  const std::optional<int> value = parseNumber<int>(text);
  if (!value || *value < least || *value > most) return false;
  out = *value;
  return true;
}

// Zero bytes mean "default" in the configuration, so in the environment they can only be a mistake.
template <class Target>
bool parseSize(const std::string& text, Target& out) {
  const std::optional<size_t> bytes = parseBytes(text);
  if (!bytes || *bytes == 0) return false;
  out = *bytes;
  return true;
}

template <class Enum>
struct Choice {
  std::string_view name;
  Enum value;
};

template <class Enum>
bool parseChoice(const std::string& text, std::initializer_list<Choice<Enum>> choices, Enum& out) {
  const std::string wanted = lowered(text);
  for (const Choice<Enum>& choice : choices) {
    if (wanted != choice.name) continue;
    out = choice.value;
    return true;
  }
  return false;
}

bool parseWord(const std::string& text, std::initializer_list<std::string_view> words, std::string& out) {
  const std::string wanted = lowered(text);
  for (const std::string_view word : words) {
    if (wanted != word) continue;
    out = wanted;
    return true;
  }
  return false;
}

bool parseResidency(const std::string& text, std::string& out) {
  if (parseWord(text, {"persistent", "transient"}, out)) return true;
  constexpr std::string_view kBudget = "budget:";
  const std::string wanted = lowered(text);
  if (wanted.compare(0, kBudget.size(), kBudget) != 0 || !parseBytes(wanted.substr(kBudget.size()))) return false;
  out = wanted;
  return true;
}

struct Row {
  const char* name;
  const char* alias;  // read where `name` is unset; nullptr = none
  const char* type;   // what a value looks like
  const char* defaultValue;
  const char* text;
  bool (*parse)(const std::string& value, Parameters& out);  // false: a bad value, `out` untouched
};

const Row kRows[] = {
    {"ULYSSES_A2A", "FASTVIDEO_ULYSSES_A2A", "auto|fused|off", "auto",
     "The fused path: where it can be had (auto), there or an error (fused), never (off).",
     [](const std::string& v, Parameters& p) {
       return parseChoice<A2AMode>(v, {{"auto", A2AMode::Auto}, {"fused", A2AMode::Fused}, {"off", A2AMode::Off}},
                                   p.a2a);
     }},
    {"ULYSSES_MEMORY", nullptr, "auto|host|cuda", "auto", "The memory of a communicator whose configuration says auto.",
     [](const std::string& v, Parameters& p) {
       return parseChoice<MemoryChoice>(
           v, {{"auto", MemoryChoice::Auto}, {"host", MemoryChoice::Host}, {"cuda", MemoryChoice::Cuda}}, p.memory);
     }},
    {"ULYSSES_A2A_LONG_TRAINING", "FASTVIDEO_ULYSSES_A2A_LONG_TRAINING", "auto|chunked", "auto",
     "How a grad-tracked operand with planes above 512 MiB is staged: as one whole pack or NCCL, or in chunks.",
     [](const std::string& v, Parameters& p) {
       return parseChoice<LongTraining>(v, {{"auto", LongTraining::Auto}, {"chunked", LongTraining::Chunked}},
                                        p.longTraining);
     }},
    {"ULYSSES_RESIDENCY", nullptr, "persistent|budget:BYTES|transient", "the configuration's",
     "What happens to gathered parameters; overrides the configuration.",
     [](const std::string& v, Parameters& p) { return parseResidency(v, p.residency); }},
    {"ULYSSES_KERNEL_REVISION", nullptr, "0|1|2", "0",
     "The newest kernel revision to use: 1 = whole pack, 36 CTAs; 2 = tuned; 0 = the newest. The smallest of all ranks "
     "holds.",
     [](const std::string& v, Parameters& p) { return parseIntIn(v, 0, 2, p.kernelRevision); }},
    {"ULYSSES_WINDOWS", nullptr, "auto|ipc|nccl", "auto",
     "Who maps windows of device memory: CUDA's handles (ipc), or NCCL 2.29 and later (nccl; ipc where it can't). auto = "
     "nccl where every rank has a GPU of its own. One rank's ipc holds for all.",
     [](const std::string& v, Parameters& p) {
       return parseChoice<WindowsFrom>(
           v, {{"auto", WindowsFrom::Auto}, {"ipc", WindowsFrom::Ipc}, {"nccl", WindowsFrom::Nccl}}, p.windows);
     }},
    {"ULYSSES_WINDOW_CAP", nullptr, "bytes (K, M, G)", "the configuration's, or 1G",
     "Most window bytes a rank may register per communicator. The smallest of all ranks holds.",
     [](const std::string& v, Parameters& p) { return parseSize(v, p.windowCapBytes); }},
    {"ULYSSES_STAGING", nullptr, "bytes (K, M, G)", "64M", "Most staging bytes per rank; on device memory where an exchange is staged in chunks.",
     [](const std::string& v, Parameters& p) { return parseSize(v, p.stagingBytes); }},
    {"ULYSSES_MAX_CTAS", nullptr, "number", "0",
     "Most CTAs of one launch; 0 = the configuration's, or as many as the policy says.",
     [](const std::string& v, Parameters& p) { return parseIntIn(v, 0, INT_MAX, p.maxCtas); }},
    {"ULYSSES_PATH", nullptr, "auto|direct|staged|copy-engine|nccl|mpi", "auto",
     "The path to take where it can be had; for measuring.",
     [](const std::string& v, Parameters& p) {
       return parseWord(v, {"auto", "direct", "staged", "copy-engine", "nccl", "mpi"}, p.path);
     }},
    {"ULYSSES_NCCL", nullptr, "on|off", "on", "libulysses-nccl: whether it takes calls of NCCL's. The same on all ranks.",
     [](const std::string& v, Parameters& p) { return parseChoice<bool>(v, {{"on", true}, {"off", false}}, p.ncclCalls); }},
    {"ULYSSES_NCCL_MAX_BYTES", nullptr, "bytes (K, M, G)", "1M",
     "libulysses-nccl: the largest buffer per rank of a call that it takes; the least of what the ranks say.",
     [](const std::string& v, Parameters& p) { return parseSize(v, p.ncclMaxBytes); }},
    {"ULYSSES_TIMEOUT", nullptr, "milliseconds, or -1", "the configuration's, or 600000 (init: 120000)",
     "How long a rank waits for its peers; -1 = for ever.",
     [](const std::string& v, Parameters& p) {
       int ms = 0;
       if (!parseIntIn(v, -1, INT_MAX, ms) || ms == 0) return false;
       p.timeoutMs = ms;
       return true;
     }},
    {"ULYSSES_HOSTID", nullptr, "text", "the kernel's boot id",
     "What this host is called; ranks with one id count as one host.",
     [](const std::string& v, Parameters& p) { return p.hostId = v, true; }},
    {"ULYSSES_TOPO_FILE", nullptr, "path", "none", "Topology facts to use in place of what is probed.",
     [](const std::string& v, Parameters& p) { return p.topoFile = v, true; }},
    {"ULYSSES_SOCKET_IFNAME", nullptr, "text", "the first that is up",
     "The network interface whose address the unique id carries.",
     [](const std::string& v, Parameters& p) { return p.socketIfname = v, true; }},
    {"ULYSSES_DUMP_DIR", nullptr, "path, or off", ".",
     "Where the flight recorder is written on a timeout, an abort or a remote error; off = only on request.",
     [](const std::string& v, Parameters& p) { return p.dumpDir = v, true; }},
    {"ULYSSES_DEBUG", nullptr, "NONE|WARN|INFO|TRACE", "WARN", "What is logged.",
     [](const std::string& v, Parameters& p) {
       return parseWord(v, {"none", "warn", "info", "trace"}, p.debug);
     }},
    {"ULYSSES_DEBUG_FILE", nullptr, "path", "stderr",
     "The file log lines are appended to; %h stands for the host's name, %p for the process id.",
     [](const std::string& v, Parameters& p) { return p.debugFile = v, true; }},
};

// One row's setting in the environment. An empty variable counts as unset.
struct Setting {
  const char* variable = nullptr;
  std::string value;
  explicit operator bool() const { return variable != nullptr; }
};

Setting settingOf(const Row& row) {
  for (const char* name : {row.name, row.alias}) {
    const char* value = name ? std::getenv(name) : nullptr;
    if (value && *value) return {name, value};
  }
  return {};
}

void warnOnce(const Row& row, const Setting& setting) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!warned.insert(setting.variable).second) return;
  }
  ULYSSES_LOG(Warn, -1, "{}={} is ignored: expected {}; using the default, {}", setting.variable, setting.value,
              row.type, row.defaultValue);
}

Parameters read(void (*onBadValue)(const Row&, const Setting&)) {
  Parameters parameters;
  for (const Row& row : kRows) {
    const Setting setting = settingOf(row);
    if (setting && !row.parse(setting.value, parameters)) onBadValue(row, setting);
  }
  return parameters;
}

}  // namespace

std::optional<size_t> parseBytes(const std::string& text) {
  std::string_view digits = text;
  int shift = 0;
  if (!digits.empty()) {
    switch (digits.back()) {
      case 'k':
      case 'K':
        shift = 10;
        break;
      case 'm':
      case 'M':
        shift = 20;
        break;
      case 'g':
      case 'G':
        shift = 30;
        break;
      default:
        break;
    }
  }
  if (shift) digits.remove_suffix(1);
  const std::optional<size_t> value = parseNumber<size_t>(digits);
  if (!value || *value > (SIZE_MAX >> shift)) return std::nullopt;
  return *value << shift;
}

Parameters Parameters::fromEnvironment() {
  return read(warnOnce);
}

Parameters Parameters::fromEnvironmentSilently() {
  return read([](const Row&, const Setting&) {});
}

std::vector<ParameterRow> parameterTable() {
  std::vector<ParameterRow> table;
  for (const Row& row : kRows) {
    const Setting setting = settingOf(row);
    Parameters scratch;
    const bool used = setting && row.parse(setting.value, scratch);
    table.push_back({row.name, row.type, row.defaultValue, used ? setting.value : row.defaultValue, row.text});
  }
  return table;
}

}  // namespace ulysses
