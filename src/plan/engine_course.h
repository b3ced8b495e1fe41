// Whether, and how, copy engines make the launches of one schedule: by where the outputs lie, which calls tell that are
// agreed on the host, and plans once and for all. Pure, and the same on all ranks but for the steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "plan/contract.h"
#include "plan/copy_engine.h"

namespace ulysses::plan {

class EngineCourse {
 public:
  // `facts` without outputs. `identity` tells the schedule from others.
  EngineCourse(std::shared_ptr<const Schedule> schedule, const EngineFacts& facts, uint64_t identity)
      : schedule_(std::move(schedule)), facts_(facts), identity_(identity) {}

  // Outputs [rank][operand] as they were given when a plan was made: what is plain there may lie anywhere.
  void bind(std::vector<std::vector<Location>> outputs);
  // Those of a call that has been agreed on.
  void follow(std::span<const Contract* const> contracts);

  const EngineVerdict& verdict() const { return verdict_; }
  // Where it is chosen: what this rank does, and what all ranks must have in common, never 0.
  const std::vector<EngineStep>& steps() const { return steps_; }
  uint64_t contract() const { return contract_; }

 private:
  void choose(EngineOutputs otherwise);

  std::shared_ptr<const Schedule> schedule_;
  EngineFacts facts_;
  uint64_t identity_;
  std::vector<std::vector<Location>> outputs_;
  EngineVerdict verdict_;
  std::vector<EngineStep> steps_;
  uint64_t contract_ = 0;
};

// What all courses of a schedule have in common; `calls` is counted only where something could come of it.
EngineFacts engineFacts(const Schedule& schedule, EngineUse use, bool distinctGpus);

}  // namespace ulysses::plan
