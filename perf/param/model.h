// Parameter groups of real models, scaled down where asked.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ulysses::perf {

// One group a block, all alike, of bfloat16.
struct Model {
  std::string name;
  size_t groups = 0;
  std::vector<size_t> counts;  // elements of each parameter of a group

  size_t groupBytes() const;
};

// "1/64" divides every count. ulyssesInvalidArgument for a model that is not in the table, or a scale that is not one.
Result<Model> findModel(std::string_view name, std::string_view scale);

// How a run keeps its parameters: "persistent", "transient", "budget:BYTES" or "budget:PERCENT%" of all groups.
struct ResidencyChoice {
  std::string name;
  int kind = 0;  // ulyssesResidency_t
  size_t budgetBytes = 0;
};
// "all" is persistent, budgets of 0, 25, 50, 75 and 100 %, and transient.
Result<std::vector<ResidencyChoice>> parseResidencies(std::string_view text, const Model& model);

}  // namespace ulysses::perf
