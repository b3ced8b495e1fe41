// ulysses_a2a_perf's own options.
#pragma once

#include <string>
#include <vector>

#include "a2a/geometry.h"
#include "common/options.h"
#include "common/report.h"

namespace ulysses::perf {

struct A2AOptions {
  CommonOptions common;
  std::string shape;  // or several, with commas between
  std::optional<size_t> batch, seq, heads, headDim;
  std::string direction = "scatter";
  bool baseline = false, latency = false, agreement = false;
  int rounds = 30;
  int calls = 0;  // 0 = the mode's default

  void addTo(CLI::App& app);
  Status validate();

  // One per datatype, size and direction. The sequence follows from -b and -e where those are given, so it needs the
  // number of ranks.
  std::vector<Geometry> geometries(int nranks) const;
  SizeRange sizeRange(int nranks) const;
  // The exchange of --latency and --agreement: one head per rank, and rows of -b bytes (1K by default) in all.
  Geometry smallGeometry(int nranks) const;
  std::string describe() const;

 private:
  size_t smallBytes() const { return common.minBytes.value_or(1024); }
  std::vector<std::string> shapes() const;  // one "" where none is named
  Geometry base(const std::string& named) const;
  std::vector<ulyssesDataType_t> datatypes(const std::string& named) const;
  std::vector<ulyssesDirection_t> directions() const;
  bool sequenceFixed() const { return !common.sizesGiven() && (seq || !shape.empty()); }
};

}  // namespace ulysses::perf
