#include "param/model.h"

#include <fmt/format.h>
#include <ulysses/ulysses.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "common/options.h"

namespace ulysses::perf {

extern const char kModelsCsv[];

namespace {

constexpr size_t kElementBytes = 2;
constexpr size_t kColumns = 7;  // name, groups, four parameters, their sum

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<size_t> parseNumber(std::string_view text) {
  size_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

size_t Model::groupBytes() const {
  return kElementBytes * std::accumulate(counts.begin(), counts.end(), size_t{0});
}

Result<Model> findModel(std::string_view name, std::string_view scale) {
  const std::optional<size_t> divisor = scale == "1"                 ? std::optional<size_t>(1)
                                        : scale.substr(0, 2) == "1/" ? parseNumber(scale.substr(2))
                                                                     : std::nullopt;
  if (!divisor || *divisor == 0) return Status(ulyssesInvalidArgument, fmt::format("--scale {}: 1, or 1/N", scale));
  for (const std::string_view line : split(kModelsCsv, '\n')) {
    const std::vector<std::string_view> cells = split(line, ',');
    if (cells.size() != kColumns || cells[0] != name) continue;
    Model model{std::string(name), parseNumber(cells[1]).value_or(0), {}};
    for (size_t i = 2; i + 1 < kColumns; ++i)
      model.counts.push_back(std::max<size_t>(parseNumber(cells[i]).value_or(0) / *divisor, 1));
    return model;
  }
  return Status(ulyssesInvalidArgument, fmt::format("--model {}: not in the table of models", name));
}

Result<std::vector<ResidencyChoice>> parseResidencies(std::string_view text, const Model& model) {
  const auto percent = [&](size_t n) {
    return ResidencyChoice{
        fmt::format("budget:{}%", n), ulyssesResidencyBudget,
        model.groupBytes() * model.groups / 100 * n + model.groupBytes() * model.groups % 100 * n / 100};
  };
  const ResidencyChoice persistent{"persistent", ulyssesResidencyPersistent, 0};
  const ResidencyChoice transient{"transient", ulyssesResidencyTransient, 0};
  if (text == "all")
    return std::vector{persistent, percent(100), percent(75), percent(50), percent(25), percent(0), transient};
  if (text == "persistent") return std::vector{persistent};
  if (text == "transient") return std::vector{transient};
  if (constexpr std::string_view kBudget = "budget:"; text.substr(0, kBudget.size()) == kBudget) {
    const std::string_view amount = text.substr(kBudget.size());
    if (!amount.empty() && amount.back() == '%') {
      if (const auto n = parseNumber(amount.substr(0, amount.size() - 1)); n && *n <= 100)
        return std::vector{percent(*n)};
    } else if (const auto bytes = parseSize(amount)) {
      return std::vector{ResidencyChoice{std::string(text), ulyssesResidencyBudget, *bytes}};
    }
  }
  return Status(ulyssesInvalidArgument,
                fmt::format("--residency {}: persistent, budget:BYTES, budget:N%, transient, or all", text));
}

}  // namespace ulysses::perf
