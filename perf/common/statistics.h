// Medians: what noisy shared machines leave standing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ulysses::perf {

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The median over rounds of a[i] / b[i]: what slows a whole round cancels.
inline double medianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (b[i] > 0) ratios.push_back(a[i] / b[i]);
  }
  return median(std::move(ratios));
}

}  // namespace ulysses::perf
