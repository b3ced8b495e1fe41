// The tensors of one rank: their shapes, strides and extents.
#include "base/format.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/checked.h"
#include "layout/operand.h"

namespace ulysses::layout {
namespace {

struct Dim {
  size_t count, stride;
};

bool isEmpty(const LocalShape& s) {
  return s.batch == 0 || s.seq == 0 || s.heads == 0 || s.headDim == 0;
}

std::array<Dim, 3> dimsOf(const LocalShape& shape, const Strides& strides) {
  return {Dim{shape.batch, strides.batch}, Dim{shape.seq, strides.seq}, Dim{shape.heads, strides.head}};
}

// Whether each dimension steps over everything inside it, as any slice or transposition of a dense tensor does.
bool nested(std::array<Dim, 3> dims, size_t run) {
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  size_t reach = run;
  for (const Dim& dim : dims) {
    if (dim.count == 1) continue;
    if (dim.stride < reach) return false;
    reach += (dim.count - 1) * dim.stride;
  }
  return true;
}

// What overlap() may take: some tens of milliseconds.
constexpr size_t kMostDifferences = size_t{1} << 23;

// Whether two of the runs share an element; nothing where that would take too long to find out. Exact for any strides: two
// runs meet when their starts are less than a run apart, so it looks at all differences of starts, the longest dimension
// in closed form.
std::optional<bool> overlap(std::array<Dim, 3> dims, size_t run) {
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.count < b.count; });
  const auto [a, b, longest] = dims;
  if (longest.stride < run) return true;
  if (const auto differences = checkedProduct(a.count, b.count, 2); !differences || *differences > kMostDifferences)
    return std::nullopt;
  for (size_t i = 0; i < a.count; ++i) {
    for (auto j = -static_cast<int64_t>(b.count - 1); j < static_cast<int64_t>(b.count); ++j) {
      if (i == 0 && j <= 0) continue;  // the longest dimension alone was looked at; negatives mirror positives
      const auto difference = static_cast<int64_t>(i * a.stride) + j * static_cast<int64_t>(b.stride);
      const auto distance = static_cast<size_t>(difference < 0 ? -difference : difference);
      const size_t below = std::min(distance / longest.stride, longest.count - 1);
      if (distance - below * longest.stride < run) return true;
      if (below + 1 < longest.count && (below + 1) * longest.stride - distance < run) return true;
    }
  }
  return false;
}

}  // namespace

LocalShape localShape(const Operand& operand, int rank, Side side) {
  const auto r = static_cast<size_t>(rank);
  const bool ownsSequence = (operand.direction == ulyssesScatterHeads) == (side == Side::In);
  LocalShape shape{operand.batch, operand.seq, operand.heads, operand.headDim, operand.elementBytes};
  if (ownsSequence) {
    shape.seq = operand.seqOf[r].count;
  } else {
    shape.heads = operand.headsOf[r].count;
  }
  return shape;
}

Strides definiteStrides(const LocalShape& shape, const Strides& strides) {
  if (strides != Strides{}) return strides;
  const size_t row = shape.heads * shape.headDim;
  return {shape.seq * row, row, shape.headDim};
}

Status checkStrides(const LocalShape& shape, const Strides& strides, Side side) {
  if (isEmpty(shape)) return {};
  const Strides definite = definiteStrides(shape, strides);
  const auto text = [&](const char* what) {
    return formatText("{} strides (batch {}, seq {}, head {}) of a [{}, {}, {}, {}] tensor of {}-byte elements {}",
                      side == Side::In ? "input" : "output", definite.batch, definite.seq, definite.head, shape.batch,
                      shape.seq, shape.heads, shape.headDim, shape.elementBytes, what);
  };
  if (!extentBytes(shape, definite)) return {ulyssesInvalidArgument, text("reach beyond 63 bits")};
  const auto dims = dimsOf(shape, definite);
  // Inputs may overlap: reading an element twice harms nothing.
  if (side == Side::In || nested(dims, shape.headDim)) return {};
  const std::optional<bool> found = overlap(dims, shape.headDim);
  if (!found) {
    return {ulyssesInvalidArgument,
            text("interleave dimensions too large to be searched for overlaps: let each step over those inside it")};
  }
  if (*found) return {ulyssesInvalidArgument, text("make elements overlap: each must have a place of its own")};
  return {};
}

std::optional<size_t> extentBytes(const LocalShape& shape, const Strides& strides) {
  if (isEmpty(shape)) return 0;
  std::optional<size_t> elements = shape.headDim;
  for (const Dim& dim : dimsOf(shape, definiteStrides(shape, strides))) {
    const auto reach = checkedMul(dim.count - 1, dim.stride);
    elements = elements && reach ? checkedAdd(*elements, *reach) : std::nullopt;
  }
  const auto bytes = elements ? checkedMul(*elements, shape.elementBytes) : std::nullopt;
  return bytes && *bytes <= static_cast<size_t>(INT64_MAX) ? bytes : std::nullopt;
}

size_t dataBytes(const LocalShape& shape) {
  return shape.batch * shape.seq * shape.heads * shape.headDim * shape.elementBytes;
}

}  // namespace ulysses::layout
