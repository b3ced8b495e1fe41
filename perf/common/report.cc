#include "common/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/build_info.h"
#include "common/statistics.h"

extern char** environ;

namespace ulysses::perf {
namespace {

std::string timeNow() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
  return text;
}

// As many decimals, up to two, as the width leaves room for.
std::string number(double value, int width) {
  for (int decimals = 2; decimals > 0; --decimals) {
    std::string text = fmt::format("{:.{}f}", value, decimals);
    if (static_cast<int>(text.size()) <= width) return text;
  }
  return fmt::format("{:.0f}", value);
}

double algorithmBandwidth(size_t bytes, double timeUs) {
  return timeUs > 0 ? static_cast<double>(bytes) / 1e3 / timeUs : 0;
}

const char* yesNo(bool value) {
  return value ? "true" : "false";
}

std::string wrongText(const nlohmann::json& block) {
  const auto& wrong = block["nwrong"];
  return wrong.is_null() ? "N/A" : std::to_string(wrong.get<size_t>());
}

// What -I reports of the single calls; the 99th percentile by nearest rank.
nlohmann::json perIteration(std::vector<double> times) {
  nlohmann::json json = {{"times_us", times}};
  std::sort(times.begin(), times.end());
  const auto n = static_cast<double>(times.size());
  const auto percentile = [&](size_t p) { return times[(times.size() * p + 99) / 100 - 1]; };
  double sum = 0, squares = 0;
  for (const double t : times) sum += t;
  for (const double t : times) squares += (t - sum / n) * (t - sum / n);
  const double deviation = std::sqrt(squares / n);
  json["min_us"] = times.front();
  json["max_us"] = times.back();
  json["avg_us"] = sum / n;
  json["p50_us"] = times[times.size() / 2];
  json["p95_us"] = percentile(95);
  json["p99_us"] = percentile(99);
  json["stdev_us"] = deviation;
  json["cv_pct"] = sum > 0 ? deviation / (sum / n) * 100 : 0;
  return json;
}

std::string perIterationText(const nlohmann::json& json) {
  std::string text;
  for (const char* key : {"min_us", "max_us", "p99_us", "cv_pct"}) {
    text += fmt::format("  {:>7}", json.is_null() ? "N/A" : number(json[key], 7));
  }
  return text;
}

// Of the environment, what shapes a run; nccl-tests writes all of it, secrets included.
std::vector<std::string> environment() {
  std::vector<std::string> some;
  for (char** e = environ; *e; ++e) {
    const std::string_view entry(*e);
    if (entry.rfind("ULYSSES_", 0) == 0 || entry.rfind("NCCL_", 0) == 0) some.emplace_back(entry);
  }
  std::sort(some.begin(), some.end());
  return some;
}

std::string csvText(const nlohmann::json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

// The average that NCCL_TESTS_MIN_BW asks for, less than 0 where it is not set.
double demandedBandwidth() {
  const char* text = std::getenv("NCCL_TESTS_MIN_BW");
  return text ? std::atof(text) : -1;
}

}  // namespace

Report::Report(std::string program, const CommonOptions& options)
    : program_(std::move(program)), options_(options), json_(std::make_unique<nlohmann::json>()) {}

Status Report::openOutput(const char* option, const char* kind, std::string& path, FILE*& file) {
  if (path.empty()) return {};
  if (path == "-" || path == "/dev/stdout") {
    file = stdout;
    out_ = stderr;
    return {};
  }
  const std::string wanted = path;
  for (int i = 0; !(file = std::fopen(path.c_str(), "wx")); ++i) {
    if (errno != EEXIST || i == 10000) {
      return {ulyssesSystemError, fmt::format("{} {}: {}", option, path, std::strerror(errno))};
    }
    path = fmt::format("{}.{}", wanted, i);
  }
  line(fmt::format("# Writing {} output to {}", kind, path));
  return {};
}

Result<std::unique_ptr<Report>> Report::open(const std::string& program, int argc, char** argv,
                                             const CommonOptions& options) {
  std::unique_ptr<Report> report(new Report(program, options));
  ULYSSES_TRY(report->openOutput("-J", "JSON", report->jsonPath_ = options.jsonPath, report->jsonFile_));
  ULYSSES_TRY(report->openOutput("--csv", "CSV", report->csvPath_ = options.csvPath, report->csvFile_));
  if (report->csvFile_) {
    fmt::print(report->csvFile_,
               "size,count,type,redop,root,placement,build,time_us,algbw,busbw,wrong,ratio,e2e_us,variant,path,chunks,"
               "reason\n");
  }
  auto& json = *report->json_;
  json["version"] = 2;
  json["start_time"] = timeNow();
  json["args"] = {program};
  for (int i = 1; i < argc; ++i) json["args"].push_back(argv[i]);
  json["env"] = environment();
  json["ulysses_version"] = kVersion;
  json["commit"] = kCommit;
  json["build"] = fmt::format("{}, {}", kCompiler, kBuildType);
  json["machine"] = {
      {"cpu", report->machine_.cpu}, {"cores", report->machine_.cores}, {"memory_bytes", report->machine_.memoryBytes}};
  json["results"] = nlohmann::json::array();
  return report;
}

Report::~Report() {
  // A run that failed leaves no empty file in the way of the next one.
  if (jsonFile_ && jsonFile_ != stdout && std::ftell(jsonFile_) == 0) std::remove(jsonPath_.c_str());
  for (FILE* file : {jsonFile_, csvFile_}) {
    if (file && file != stdout) std::fclose(file);
  }
}

void Report::attach(const std::string& key, const nlohmann::json& value) {
  (*json_)[key] = value;
}
void Report::append(const std::string& key, const nlohmann::json& value) {
  (*json_)[key].push_back(value);
}

void Report::line(const std::string& text) {
  fmt::print(out_, "{}\n", text);
  std::fflush(out_);
}

void Report::header(const std::vector<RankPlace>& ranks, const std::string& what, const std::string& launcher,
                    const SizeRange& sizes) {
  const bool factor = options_.stepFactor > 1;
  const size_t step = factor ? options_.stepFactor : options_.stepBytes;
  line(fmt::format("# ulysses version {} commit {}", kVersion, kCommit));
  line(fmt::format("# Collective test starting: {}", program_));
  line(
      fmt::format("# nThread {} nGpus {} minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} "
                  "validation: {} graph: 0 unalign: {}",
                  options_.threads, options_.gpus, sizes.first, sizes.last, step, factor ? "factor" : "bytes",
                  options_.warmupIters, options_.iters, options_.aggIters, options_.checkIters, options_.unalign));
  for (const std::string& note : options_.notes()) line("# " + note);
  line(fmt::format("# {}", what));
  line(fmt::format("# ranks: {}", launcher));
  line("#");
  line("# Using devices");
  auto& config = (*json_)["config"];
  config = {{"nthreads", options_.threads},
            {"ngpus", options_.gpus},
            {"minimum_bytes", sizes.first},
            {"maximum_bytes", sizes.last},
            {factor ? "step_factor" : "step_bytes", step},
            {"warmup_iters", options_.warmupIters},
            {"iterations", options_.iters},
            {"aggregated_iterations", options_.aggIters},
            {"validation", options_.checkIters},
            {"graph", options_.graphLaunches},
            {"blocking_collectives", yesNo(options_.blocking > 0)},
            {"per_iter_timing", yesNo(options_.perIteration)},
            {"parallel_init", yesNo(true)},
            {"what", what},
            {"launcher", launcher},
            {"devices", nlohmann::json::array()}};
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::string where = ranks[r].device[0] ? "device memory" : "host memory";
    const std::string model = ranks[r].device[0] ? ranks[r].device : machine_.cpu;
    line(fmt::format("#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [{}] {}", r, 0, ranks[r].pid, ranks[r].host,
                     ranks[r].number, where, model));
    config["devices"].push_back({{"rank", r},
                                 {"group", 0},
                                 {"pid", ranks[r].pid},
                                 {"hostname", ranks[r].host},
                                 {"device", ranks[r].number},
                                 {"device_hex", where},
                                 {"device_info", model}});
  }
}

void Report::builds(const std::vector<const Communicator*>& comms) {
  attach("nccl_version", comms[0]->info().ncclVersion);
  if (comms.size() < 2) return;
  const std::string version = comms[1]->library().version();
  line("#");
  line(fmt::format("# In turns with --lib {}, version {}: its time, #wrong, and its time over this build's",
                   options_.libraryPath, version));
  attach("lib", {{"path", options_.libraryPath}, {"version", version}});
}

void Report::columns() {
  const auto left = [](const char* size, const char* count, const char* type, const char* op, const char* root) {
    return fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", size, count, type, op, root);
  };
  const auto block = [this](const char* time, const char* alg, const char* bus, const char* wrong, bool names) {
    std::string text = fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", time, alg, bus, wrong);
    if (!options_.perIteration) return text;
    for (const char* name : {"i_min", "i_max", "i_p99", "i_cv%"}) {
      text += fmt::format("  {:>7}", names ? name : std::string_view(name) == "i_cv%" ? "(%)" : "(us)");
    }
    return text;
  };
  const auto right = [this](const char* stamp, const char* variant, const char* path, const char* chunks,
                            const char* completion, const char* time, const char* wrong, const char* ratio,
                            const char* reason) {
    std::string text = options_.timestamps ? fmt::format("  {:>19}", stamp) : "";
    text += fmt::format("  {:>8}  {:>8}  {:>6}  {:>8}", variant, path, chunks, completion);
    for (int i = 0; i < 2 && !options_.libraryPath.empty(); ++i) {
      text += fmt::format("  {:>8}  {:>6}  {:>6}", time, wrong, ratio);
    }
    return text + (*reason ? fmt::format("  {}", reason) : "");
  };
  const char* time = options_.cpuTime ? "cputime" : "time";
  line("#");
  line(left("", "", "", "", "") +
       (options_.perIteration
            ? "              out-of-place (+ per-iteration)                                in-place (+ per-iteration)"
            : "           out-of-place                       in-place          "));
  line(left("size", "count", "type", "redop", "root") + block(time, "algbw", "busbw", "#wrong", true) +
       block(time, "algbw", "busbw", "#wrong", true) +
       right("timestamp", "variant", "path", "chunks", "e2e", "lib time", "#wrong", "ratio", "reason"));
  line(left("(B)", "(elements)", "", "", "") + block("(us)", "(GB/s)", "(GB/s)", "", false) +
       block("(us)", "(GB/s)", "(GB/s)", "", false) +
       right("%Y-%m-%d %H:%M:%S", "", "", "", "(us)", "(us)", "", "", ""));
}

nlohmann::json Report::block(const Collective& collective, int nranks, const Measurement& m) {
  const double alg = algorithmBandwidth(collective.bytes(), m.timeUs);
  wrong_ += m.wrong.value_or(0);
  windowBytes_ = std::max(windowBytes_, m.info.windowBytes);
  nlohmann::json json = {{options_.cpuTime ? "cpu_time" : "time", m.timeUs},
                         {"alg_bw", alg},
                         {"bus_bw", alg * collective.busFactor(nranks)},
                         {"nwrong", nullptr},
                         {"completion_us", nullptr}};
  if (m.wrong) json["nwrong"] = *m.wrong;
  if (m.completionUs) json["completion_us"] = *m.completionUs;
  return json;
}

void Report::row(const Collective& collective, int nranks, const std::vector<Measurement>& outOfPlace,
                 const std::vector<Measurement>& inPlace) {
  const char* time = options_.cpuTime ? "cpu_time" : "time";
  nlohmann::json json = {{"size", collective.bytes()},
                         {"count", collective.count()},
                         {"type", datatypeName(collective.dtype())},
                         {"redop", "none"},
                         {"root", "-1"},
                         {"actual_iterations", options_.iters},
                         {"experiment_name", ""},
                         {"variant", collective.variant()}};
  const auto describe = [](nlohmann::json& target, const Measurement& m) {
    target["path"] = m.info.lastPath;
    target["reason"] = m.info.lastReason;
    target["chunks"] = m.chunks;
    target["window_bytes"] = m.info.windowBytes;
  };
  describe(json, outOfPlace[0]);
  const bool second = outOfPlace.size() > 1;
  if (second) describe(json["lib"], outOfPlace[1]);
  std::string left, right;
  for (const auto* measured : {&outOfPlace, &inPlace}) {
    const char* placement = measured == &outOfPlace ? "out_of_place" : "in_place";
    const std::string perIterationKey = std::string(placement) + "_per_iter";
    json[placement] = nullptr;
    nlohmann::json single;
    if (measured->empty()) {
      left += fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
      if (second) right += fmt::format("  {:>8}  {:>6}  {:>6}", "N/A", "N/A", "N/A");
    } else {
      const auto first = block(collective, nranks, (*measured)[0]);
      busBandwidths_ += first["bus_bw"].get<double>();
      ++bandwidthCount_;
      left += fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", number(first[time], 7), number(first["alg_bw"], 6),
                          number(first["bus_bw"], 6), wrongText(first));
      json[placement] = first;
      if (const auto& times = (*measured)[0].iterationsUs; !times.empty()) {
        json[perIterationKey] = single = perIteration(times);
      }
      csvRow(json, first, placement, "this");
      if (second) {
        auto other = block(collective, nranks, (*measured)[1]);
        other["ratio"] = (*measured)[1].ratio;
        right +=
            fmt::format("  {:>8}  {:>6}  {:>6}", number(other[time], 8), wrongText(other), number(other["ratio"], 6));
        json["lib"][placement] = other;
        csvRow(json, other, placement, options_.libraryPath);
      }
    }
    if (options_.perIteration) left += perIterationText(single);
  }
  const auto& completion = json["out_of_place"]["completion_us"];
  std::string text = fmt::format("{:12}  {:12}  {:>8}  {:>6}  {:>6}", collective.bytes(), collective.count(),
                                 datatypeName(collective.dtype()), "none", -1) +
                     left + (options_.timestamps ? "  " + timeNow() : "") +
                     fmt::format("  {:>8}  {:>8}  {:>6}  {:>8}", collective.variant(),
                                 *outOfPlace[0].info.lastPath ? outOfPlace[0].info.lastPath : "-", outOfPlace[0].chunks,
                                 completion.is_null() ? "N/A" : number(completion, 8)) +
                     right;
  if (*outOfPlace[0].info.lastReason) text += fmt::format("  {}", outOfPlace[0].info.lastReason);
  line(text);
  if (csvFile_) std::fflush(csvFile_);
  // Cycles without end are not kept.
  if (options_.cycles > 0) (*json_)["results"].push_back(std::move(json));
}

void Report::csvRow(const nlohmann::json& row, const nlohmann::json& block, const char* placement,
                    const std::string& build) {
  if (!csvFile_) return;
  const nlohmann::json& how = build == "this" ? row : row["lib"];
  std::string text;
  for (const nlohmann::json& value :
       {row["size"], row["count"], row["type"], row["redop"], row["root"], nlohmann::json(placement),
        nlohmann::json(build), block[options_.cpuTime ? "cpu_time" : "time"], block["alg_bw"], block["bus_bw"],
        block["nwrong"], block.value("ratio", nlohmann::json()), block["completion_us"], row["variant"], how["path"],
        how["chunks"], how["reason"]}) {
    text += (text.empty() ? "" : ",") + csvText(value);
  }
  fmt::print(csvFile_, "{}\n", text);
}

void Report::footer() {
  const double average = bandwidthCount_ ? busBandwidths_ / bandwidthCount_ : 0, demanded = demandedBandwidth();
  tooSlow_ = average < demanded * 0.9;
  line(fmt::format("# {:<20} : {} {}", "Out of bounds values", wrong_, wrong_ ? "FAILED" : "OK"));
  line(fmt::format("# {:<20} : {:g} {}", "Avg bus bandwidth", average, demanded < 0 ? "" : tooSlow_ ? "FAILED" : "OK"));
  if (options_.memoryReport) {
    const double mb = 1 << 20, window = static_cast<double>(windowBytes_), peak = static_cast<double>(peakMemory());
    line(fmt::format("# {:<20} : Windows of rank 0 {:.1f} MB | Peak of its process {:.1f} MB", "Host memory usage",
                     window / mb, peak / mb));
    attach("memory", {{"window_bytes", windowBytes_}, {"peak_bytes", peakMemory()}});
  }
  line("#");
  attach("out_of_bounds", {{"count", wrong_}, {"okay", yesNo(wrong_ == 0)}});
  attach("average_bus_bandwidth", {{"bandwidth", average}, {"okay", demanded < 0 ? "unchecked" : yesNo(!tooSlow_)}});
}

Status Report::finish() {
  line(fmt::format("# Collective test concluded: {}", program_));
  if (csvFile_ && (std::fflush(csvFile_) != 0 || std::ferror(csvFile_))) {
    return {ulyssesSystemError, fmt::format("--csv {}: {}", options_.csvPath, std::strerror(errno))};
  }
  if (!jsonFile_) return {};
  attach("end_time", timeNow());
  attach("errors", nlohmann::json::array());
  const std::string text = json_->dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), jsonFile_) != text.size() || std::fflush(jsonFile_) != 0) {
    return {ulyssesSystemError, fmt::format("-J {}: {}", options_.jsonPath, std::strerror(errno))};
  }
  return {};
}

}  // namespace ulysses::perf
