#include "common/report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/build_info.h"

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

}  // namespace

Report::Report(std::string program, const CommonOptions& options)
    : program_(std::move(program)), options_(options), json_(std::make_unique<nlohmann::json>()) {}

Result<std::unique_ptr<Report>> Report::open(const std::string& program, int argc, char** argv,
                                             const CommonOptions& options) {
  std::unique_ptr<Report> report(new Report(program, options));
  std::string path = options.jsonPath;
  if (path == "-" || path == "/dev/stdout") {
    report->jsonFile_ = stdout;
    report->out_ = stderr;
  } else if (!path.empty()) {
    for (int i = 0; !(report->jsonFile_ = std::fopen(path.c_str(), "wx")); ++i) {
      if (errno != EEXIST || i == 10000) {
        return Status(ulyssesSystemError, fmt::format("-J {}: {}", path, std::strerror(errno)));
      }
      path = fmt::format("{}.{}", options.jsonPath, i);
    }
    report->line(fmt::format("# Writing JSON output to {}", path));
  }
  auto& json = *report->json_;
  json["version"] = 2;
  json["start_time"] = timeNow();
  json["args"] = {program};
  for (int i = 1; i < argc; ++i) json["args"].push_back(argv[i]);
  json["ulysses_version"] = kVersion;
  json["commit"] = kCommit;
  json["build"] = fmt::format("{}, {}", kCompiler, kBuildType);
  json["machine"] = {
      {"cpu", report->machine_.cpu}, {"cores", report->machine_.cores}, {"memory_bytes", report->machine_.memoryBytes}};
  json["results"] = nlohmann::json::array();
  return report;
}

Report::~Report() {
  if (jsonFile_ && jsonFile_ != stdout) std::fclose(jsonFile_);
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
                  "validation: {} graph: 0",
                  options_.threads, options_.gpus, sizes.first, sizes.last, step, factor ? "factor" : "bytes",
                  options_.warmupIters, options_.iters, options_.aggIters, options_.checkIters));
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
            {"what", what},
            {"launcher", launcher},
            {"devices", nlohmann::json::array()}};
  for (size_t r = 0; r < ranks.size(); ++r) {
    line(fmt::format("#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [host memory] {}", r, 0, ranks[r].pid,
                     ranks[r].host, 0, machine_.cpu));
    config["devices"].push_back(
        {{"rank", r}, {"group", 0}, {"pid", ranks[r].pid}, {"device", 0}, {"device_info", "host memory"}});
  }
}

void Report::columns() {
  const auto left = [](const char* size, const char* count, const char* type, const char* op, const char* root) {
    return fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", size, count, type, op, root);
  };
  const auto block = [](const char* time, const char* alg, const char* bus, const char* wrong) {
    return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", time, alg, bus, wrong);
  };
  line("#");
  line(left("", "", "", "", "") + "           out-of-place                       in-place          ");
  line(left("size", "count", "type", "redop", "root") + block("time", "algbw", "busbw", "#wrong") +
       block("time", "algbw", "busbw", "#wrong") + fmt::format("  {:>8}  {:>8}", "variant", "path"));
  line(left("(B)", "(elements)", "", "", "") + block("(us)", "(GB/s)", "(GB/s)", "") +
       block("(us)", "(GB/s)", "(GB/s)", ""));
}

nlohmann::json Report::block(const Collective& collective, int nranks, const Measurement& m) {
  const double alg = algorithmBandwidth(collective.bytes(), m.timeUs);
  const double bus = alg * collective.busFactor(nranks);
  busBandwidths_ += bus;
  ++bandwidthCount_;
  wrong_ += m.wrong.value_or(0);
  nlohmann::json json = {{"time", m.timeUs}, {"alg_bw", alg}, {"bus_bw", bus}, {"nwrong", nullptr}};
  if (m.wrong) json["nwrong"] = *m.wrong;
  return json;
}

void Report::row(const Collective& collective, int nranks, const Measurement& outOfPlace,
                 const std::optional<Measurement>& inPlace, const ulyssesCommInfo_t& info) {
  const auto text = [](const nlohmann::json& json) {
    if (json.is_null()) return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
    const auto& wrong = json["nwrong"];
    return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", number(json["time"], 7), number(json["alg_bw"], 6),
                       number(json["bus_bw"], 6), wrong.is_null() ? "N/A" : std::to_string(wrong.get<size_t>()));
  };
  nlohmann::json json = {{"size", collective.bytes()},
                         {"count", collective.count()},
                         {"type", datatypeName(collective.dtype())},
                         {"redop", "none"},
                         {"root", "-1"},
                         {"variant", collective.variant()},
                         {"path", info.lastPath},
                         {"reason", info.lastReason},
                         {"window_bytes", info.windowBytes}};
  json["out_of_place"] = block(collective, nranks, outOfPlace);
  json["in_place"] = inPlace ? block(collective, nranks, *inPlace) : nlohmann::json();
  line(fmt::format("{:12}  {:12}  {:>8}  {:>6}  {:>6}", collective.bytes(), collective.count(),
                   datatypeName(collective.dtype()), "none", -1) +
       text(json["out_of_place"]) + text(json["in_place"]) +
       fmt::format("  {:>8}  {:>8}", collective.variant(), *info.lastPath ? info.lastPath : "-"));
  (*json_)["results"].push_back(std::move(json));
}

void Report::footer() {
  const double average = bandwidthCount_ ? busBandwidths_ / bandwidthCount_ : 0;
  line(fmt::format("# {:<20} : {} {}", "Out of bounds values", wrong_, wrong_ ? "FAILED" : "OK"));
  line(fmt::format("# {:<20} : {:g} ", "Avg bus bandwidth", average));
  line("#");
  (*json_)["out_of_bounds"] = {{"count", wrong_}, {"okay", yesNo(wrong_ == 0)}};
  (*json_)["average_bus_bandwidth"] = {{"bandwidth", average}, {"okay", "unchecked"}};
}

Status Report::finish() {
  line(fmt::format("# Collective test concluded: {}", program_));
  if (!jsonFile_) return {};
  (*json_)["end_time"] = timeNow();
  const std::string text = json_->dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), jsonFile_) != text.size() || std::fflush(jsonFile_) != 0) {
    return {ulyssesSystemError, fmt::format("-J {}: {}", options_.jsonPath, std::strerror(errno))};
  }
  return {};
}

}  // namespace ulysses::perf
