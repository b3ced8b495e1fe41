#include "plan/policy_facts.h"

#include <algorithm>

namespace ulysses::plan {
namespace {

using layout::Operand;
using layout::Side;

constexpr Side kSides[] = {Side::In, Side::Out};

// The largest share any rank has of one plane, on either side.
size_t planeBytes(const Operand& operand) {
  size_t most = 0;
  for (int r = 0; r < operand.nranks() && operand.batch != 0; ++r)
    for (const Side side : kSides) most = std::max(most, dataBytes(localShape(operand, r, side)) / operand.batch);
  return most;
}

size_t packBytes(std::span<const Operand> operands) {
  size_t most = 0;
  for (int r = 0; r < operands.front().nranks(); ++r)
    for (const Side side : kSides) {
      size_t pack = 0;
      for (const Operand& o : operands) pack += dataBytes(localShape(o, r, side));
      most = std::max(most, pack);
    }
  return most;
}

bool isContiguous(const Operand& operand, const OperandStrides& strides) {
  for (int r = 0; r < operand.nranks(); ++r)
    for (const Side side : kSides) {
      const layout::LocalShape shape = localShape(operand, r, side);
      const layout::Strides& given = (side == Side::In ? strides.in : strides.out)[static_cast<size_t>(r)];
      if (definiteStrides(shape, given) != definiteStrides(shape, {})) return false;
    }
  return true;
}

}  // namespace

PolicyFacts policyFacts(PolicyFacts facts, ulyssesDataType_t dtype, std::span<const Operand> operands,
                        std::span<const OperandStrides> strides, const std::vector<bool>& gradTracked) {
  facts.dtype = dtype;
  if (operands.empty()) return facts;
  const Operand& first = operands.front();
  facts.seq = first.seq;
  facts.heads = first.heads;
  facts.headDim = first.headDim;
  facts.direction = first.direction;
  facts.gradTracked = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& o = operands[i];
    if (o.heads != first.heads || o.headDim != first.headDim) facts.heads = 0;  // no geometry of the tuning table
    const size_t plane = planeBytes(o);
    facts.planes += o.batch;
    facts.planeBytes = std::max(facts.planeBytes, plane);
    facts.contiguous = facts.contiguous && isContiguous(o, strides[i]);
    // Only a tracked operand's own planes count against the limit.
    facts.gradTracked = facts.gradTracked || (gradTracked[i] && plane > kLongTrainingPlaneBytes);
  }
  facts.packBytes = packBytes(operands);
  return facts;
}

PolicyFacts policyFacts(PolicyFacts facts, ulyssesDataType_t dtype, const Schedule& schedule) {
  facts.dtype = dtype;
  facts.planes = 1;
  facts.planeBytes = facts.packBytes = schedule.largestSend;
  return facts;
}

}  // namespace ulysses::plan
