// A plan: an exchange agreed once, executed many times.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "api/communicator.h"
#include "layout/operand.h"

namespace ulysses {

class Plan : public std::enable_shared_from_this<Plan> {
 public:
  // Collective.
  static Result<std::shared_ptr<Plan>> create(std::span<const ulyssesA2ADesc_t> descs,
                                              std::shared_ptr<Communicator> comm);
  // Local: everything the inverse needs was agreed with the plan itself.
  std::shared_ptr<Plan> inverse() const;

  // Now, or at the group's end (the arrays are copied). On host memory collective and complete; on device memory it
  // launches and waits for nothing.
  Status enqueue(const void* const in[], void* const out[], ulyssesStream_t stream) const;
  void describe(ulyssesPlanInfo_t& info) const;

 private:
  Status execute(const void* const in[], void* const out[], ulyssesStream_t stream) const;
  Plan(std::shared_ptr<Communicator> comm, uint64_t number, std::vector<layout::Operand> operands,
       std::vector<OperandStrides> strides, ulyssesDataType_t dtype, std::vector<bool> gradTracked);
  DeviceTransport::Work work() const;

  std::shared_ptr<Communicator> comm_;
  uint64_t number_;  // even: as created; odd: the inverse of the one before
  std::vector<layout::Operand> operands_;
  std::vector<OperandStrides> strides_;
  ulyssesDataType_t dtype_;
  std::vector<bool> gradTracked_;  // by operand
  std::vector<void*> boundOut_;    // by operand; empty for an inverse, whose peers could not learn of it
  Schedule schedule_;
  // Device memory: what this plan's executions need, and its inverse's, made with it because an inverse is made locally.
  Communicator::Prepared prepared_, inversePrepared_;
};

}  // namespace ulysses
