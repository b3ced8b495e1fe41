// Descriptors of a plan: checked on one rank, then compared across all. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "layout/operand.h"
#include "plan/schedule.h"

namespace ulysses {

// Checks what this rank was given and makes every operand definite. ulyssesInvalidArgument names operand and field.
Status resolveDescs(std::span<const ulyssesA2ADesc_t> descs, int rank, int nranks, std::vector<layout::Operand>* operands);

// What all ranks must know of each other's descriptors.
Bytes encodeDescs(std::span<const ulyssesA2ADesc_t> descs, int nranks);

// From the records of all ranks: ulyssesMismatch names the operand, the field and both values; strides may differ, and
// come out for all ranks.
Status agreeDescs(const std::vector<Bytes>& records, std::vector<OperandStrides>* strides);

}  // namespace ulysses
