// What the policy has to know of a call: from its operands, and from what its communicator agreed on at init. Pure.
#pragma once

#include <vector>

#include "plan/policy.h"
#include "plan/schedule.h"

namespace ulysses::plan {

// `common` has the communicator's part: gpu, ranks, longTraining, capBytes, kernelRevision. gradTracked: per operand.
PolicyFacts policyFacts(PolicyFacts common, ulyssesDataType_t dtype, std::span<const layout::Operand> operands,
                        std::span<const OperandStrides> strides, const std::vector<bool>& gradTracked);

// Of a flat collective: one plane without heads, so that no geometry of the tuning table is its own.
PolicyFacts policyFacts(PolicyFacts common, ulyssesDataType_t dtype, const Schedule& schedule);

}  // namespace ulysses::plan
