// The geometries an exchange is measured at.
#pragma once

#include <ulysses/ulysses.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/datatype.h"
#include "base/status.h"

namespace ulysses::perf {

// One operand; seq and heads are global.
struct Geometry {
  size_t batch = 1, seq = 0, heads = 40, headDim = 128;
  ulyssesDataType_t dtype = ulyssesFloat32;
  ulyssesDirection_t direction = ulyssesScatterHeads;

  size_t headBytes() const { return headDim * elementBytes(dtype); }
  // Bytes of one position of the sequence, all planes and heads.
  size_t rowBytes() const { return batch * heads * headBytes(); }
};

// What fits 63 bits in bytes over all ranks; everything else is refused before a rank starts.
Status checkGeometry(const Geometry& geometry);

// n over P ranks, the first n mod P get one more.
struct Part {
  size_t begin = 0, count = 0;
};
Part partOf(size_t n, int nranks, int rank);

// What one rank holds of the global tensor [batch, seq, heads, headDim].
struct Block {
  size_t batch = 0, seqTotal = 0, headsTotal = 0, headDim = 0, elementBytes = 0;
  Part seq, heads;

  size_t elements() const { return batch * seq.count * heads.count * headDim; }
  size_t bytes() const { return elements() * elementBytes; }

  // Calls fn(first local element, first global element, n) for every contiguous run of elements.
  template <class Fn>
  void forEachRun(Fn&& fn) const {
    const size_t n = heads.count * headDim;
    size_t local = 0;
    for (size_t b = 0; b < batch; ++b) {
      for (size_t s = seq.begin; s < seq.begin + seq.count; ++s, local += n) {
        fn(local, ((b * seqTotal + s) * headsTotal + heads.begin) * headDim, n);
      }
    }
  }
};
Block inputBlock(const Geometry& geometry, int nranks, int rank);
Block outputBlock(const Geometry& geometry, int nranks, int rank);

// A row of geometries.csv, which is compiled in.
struct NamedGeometry {
  std::string name;
  Geometry geometry;
};
const std::vector<NamedGeometry>& namedGeometries();
std::optional<Geometry> findGeometry(std::string_view name);

}  // namespace ulysses::perf
