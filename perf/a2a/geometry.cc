#include "a2a/geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <sstream>

#include "base/checked.h"
#include "common/options.h"

namespace ulysses::perf {

extern const char kGeometriesCsv[];  // generated from geometries.csv

Status checkGeometry(const Geometry& g) {
  // A sequence that was scaled down to nothing does not hide the rest.
  const auto bytes = checkedProduct(std::max<size_t>(g.seq, 1), g.batch, g.heads, g.headDim, elementBytes(g.dtype));
  if (bytes && *bytes <= static_cast<size_t>(INT64_MAX)) return {};
  return {ulyssesInvalidArgument, fmt::format("batch {} x seq {} x heads {} x headDim {} of {} does not fit 63 bits",
                                              g.batch, g.seq, g.heads, g.headDim, datatypeName(g.dtype))};
}

Part partOf(size_t n, int nranks, int rank) {
  const size_t ranks = static_cast<size_t>(nranks), r = static_cast<size_t>(rank);
  const size_t each = n / ranks, more = n % ranks;
  return {r * each + std::min(r, more), each + (r < more)};
}

namespace {

Block block(const Geometry& g, Part seq, Part heads) {
  return {g.batch, g.seq, g.heads, g.headDim, elementBytes(g.dtype), seq, heads};
}

Block sequenceSharded(const Geometry& g, int nranks, int rank) {
  return block(g, partOf(g.seq, nranks, rank), {0, g.heads});
}

Block headSharded(const Geometry& g, int nranks, int rank) {
  return block(g, {0, g.seq}, partOf(g.heads, nranks, rank));
}

}  // namespace

Block inputBlock(const Geometry& g, int nranks, int rank) {
  return g.direction == ulyssesScatterHeads ? sequenceSharded(g, nranks, rank) : headSharded(g, nranks, rank);
}

Block outputBlock(const Geometry& g, int nranks, int rank) {
  return g.direction == ulyssesScatterHeads ? headSharded(g, nranks, rank) : sequenceSharded(g, nranks, rank);
}

const std::vector<NamedGeometry>& namedGeometries() {
  static const std::vector<NamedGeometry> all = [] {
    std::vector<NamedGeometry> rows;
    std::istringstream csv(kGeometriesCsv);
    for (std::string line; std::getline(csv, line);) {
      if (line.empty() || line[0] == '#' || line.rfind("name,", 0) == 0) continue;
      std::istringstream fields(line);
      std::string name, planes, seq, heads, kvHeads, headDim, dtype;
      for (std::string* field : {&name, &planes, &seq, &heads, &kvHeads, &headDim, &dtype}) {
        std::getline(fields, *field, ',');
      }
      Geometry g;
      g.batch = parseSize(planes).value_or(0);
      g.seq = parseSize(seq).value_or(0);
      g.heads = parseSize(heads).value_or(0);
      g.headDim = parseSize(headDim).value_or(0);
      g.dtype = parseDatatype(dtype).value_or(ulyssesBfloat16);
      rows.push_back({name, g});
    }
    return rows;
  }();
  return all;
}

std::optional<Geometry> findGeometry(std::string_view name) {
  for (const auto& row : namedGeometries()) {
    if (row.name == name) return row.geometry;
  }
  return std::nullopt;
}

}  // namespace ulysses::perf
