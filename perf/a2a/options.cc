#include "a2a/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/checked.h"

namespace ulysses::perf {
namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> names{""};
  for (const char c : list) c == ',' ? void(names.emplace_back()) : names.back().push_back(c);
  return names;
}

void addCount(CLI::App& app, const std::string& name, std::optional<size_t>& target, const std::string& text) {
  app.add_option(name, target, text)->check(CLI::Range(size_t{1}, size_t{1} << 40));
}

}  // namespace

void A2AOptions::addTo(CLI::App& app) {
  common.addTo(app);
  common.addTableTo(app);
  common.addBuffersTo(app);
  std::string names;
  for (const auto& row : namedGeometries()) names += (names.empty() ? "" : ", ") + row.name;
  app.add_option("--shape", shape, "a model's geometry, or several with commas between: " + names)
      ->check([names](const std::string& list) {
        for (const std::string& name : split(list))
          if (!findGeometry(name)) return "no geometry '" + name + "'; there are " + names;
        return std::string();
      });
  addCount(app, "--batch", batch, "planes");
  addCount(app, "--seq", seq, "global sequence length");
  addCount(app, "--heads", heads, "global number of heads (default 40)");
  addCount(app, "--head-dim", headDim, "elements of a head (default 128)");
  app.add_option("--direction", direction, "scatter, gather or both")
      ->check(CLI::IsMember({"scatter", "gather", "both"}))
      ->capture_default_str();
  app.add_flag("--baseline", baseline, "then compare in turns with a plain copy, with MPI (host memory, under mpirun), "
                                     "with permute + copies (device memory, ranks as threads)");
  app.add_flag("--latency", latency, "time small exchanges (-b, default 1K per rank) against MPI_Alltoall instead");
  app.add_flag("--agreement", agreement, "time from the last rank's entry to the last rank's exit instead");
  app.add_option("--rounds", rounds, "rounds of --baseline and --latency")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--calls", calls, "calls per round of --latency (default 1000), or of --agreement (10000)")
      ->check(CLI::Range(1, 10000000));
  // They fix their own exchange and have outputs of both kinds.
  const std::vector<std::string> fixed{"-e", "-i", "-f", "--shape", "--seq", "--out", "-R", "-u"};
  for (const char* mode : {"--latency", "--agreement"}) CommonOptions::excludeTable(app, mode, fixed);
  app.get_option("--agreement")->excludes("--lib");
}

Status A2AOptions::validate() {
  ULYSSES_TRY(common.validate());
  ULYSSES_TRY(common.chooseMemory(latency ? "--latency" : agreement ? "--agreement" : ""));
  if (baseline + latency + agreement > 1) {
    return {ulyssesInvalidArgument, "--baseline, --latency and --agreement are different runs; choose one"};
  }
  if (seq && common.sizesGiven()) {
    return {ulyssesInvalidArgument, "--seq and -b/-e both fix the sequence; use one of them"};
  }
  // Sizes beyond 64 bits show for one rank as for many: -b and -e are one rank's bytes.
  if (latency || agreement) return checkGeometry(smallGeometry(1));
  for (const Geometry& geometry : geometries(1)) ULYSSES_TRY(checkGeometry(geometry));
  return {};
}

std::vector<std::string> A2AOptions::shapes() const {
  return split(shape);
}

Geometry A2AOptions::base(const std::string& named) const {
  Geometry g = findGeometry(named).value_or(Geometry());
  g.batch = batch.value_or(g.batch);
  g.seq = seq.value_or(g.seq);
  g.heads = heads.value_or(g.heads);
  g.headDim = headDim.value_or(g.headDim);
  return g;
}

std::vector<ulyssesDataType_t> A2AOptions::datatypes(const std::string& named) const {
  const auto found = findGeometry(named);
  if (found && common.datatype.empty()) return {found->dtype};
  return common.datatypes();
}

std::vector<ulyssesDirection_t> A2AOptions::directions() const {
  if (direction == "both") return {ulyssesScatterHeads, ulyssesGatherHeads};
  return {direction == "gather" ? ulyssesGatherHeads : ulyssesScatterHeads};
}

std::vector<Geometry> A2AOptions::geometries(int nranks) const {
  std::vector<Geometry> result;
  for (const std::string& named : shapes()) {
    Geometry g = base(named);
    for (const auto dtype : datatypes(named)) {
      g.dtype = dtype;
      std::vector<size_t> sequences{base(named).seq};
      if (!sequenceFixed()) {
        sequences = common.sizes();
        const auto row = checkedProduct(g.batch, g.heads, g.headDim, elementBytes(dtype));
        for (size_t& n : sequences) n = row ? n / *row * static_cast<size_t>(nranks) : 0;
      }
      for (const size_t n : sequences) {
        g.seq = n;
        for (const auto d : directions()) {
          g.direction = d;
          result.push_back(g);
        }
      }
    }
  }
  return result;
}

SizeRange A2AOptions::sizeRange(int nranks) const {
  if (latency || agreement) {
    const size_t bytes = inputBlock(smallGeometry(nranks), nranks, 0).bytes();
    return {bytes, bytes};
  }
  if (!sequenceFixed()) return {common.firstBytes(), common.lastBytes()};
  SizeRange range{SIZE_MAX, 0};
  for (const Geometry& geometry : geometries(nranks)) {
    const size_t bytes = inputBlock(geometry, nranks, 0).bytes();
    range = {std::min(range.first, bytes), std::max(range.last, bytes)};
  }
  return range;
}

Geometry A2AOptions::smallGeometry(int nranks) const {
  Geometry g;
  g.batch = batch.value_or(1);
  g.heads = heads.value_or(static_cast<size_t>(nranks));
  g.headDim = headDim.value_or(64);
  g.dtype = common.datatype.empty() ? ulyssesBfloat16 : common.datatypes()[0];
  g.direction = directions()[0];
  const auto row = checkedProduct(g.batch, g.heads, g.headDim, elementBytes(g.dtype));
  const size_t rows = row ? smallBytes() / *row : 0;  // what does not fit is validate()'s to say
  g.seq = std::max<size_t>(rows, 1) * static_cast<size_t>(nranks);
  return g;
}

std::string A2AOptions::describe() const {
  if (latency || agreement) {
    return fmt::format("small exchange: {} bytes per rank, as near as whole rows come", smallBytes());
  }
  std::string text = shape.empty() ? "exchange:" : fmt::format("exchange {}:", shape);
  for (const std::string& named : shapes()) {
    const Geometry g = base(named);
    text += fmt::format(" batch {} seq {} heads {} headDim {}", g.batch,
                        sequenceFixed() ? std::to_string(g.seq) : "scaled", g.heads, g.headDim);
  }
  return text + fmt::format(" direction {} out {}", direction, common.out);
}

}  // namespace ulysses::perf
