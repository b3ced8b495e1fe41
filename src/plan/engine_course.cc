#include "plan/engine_course.h"

#include <algorithm>

#include "plan/contract_hash.h"

namespace ulysses::plan {
namespace {

// Tells it from contracts of kernels.
constexpr uint64_t kByEngines = 0xce;

bool same(const Location& a, const Location& b) {
  return a.window == b.window && a.offset == b.offset;
}

}  // namespace

void EngineCourse::bind(std::vector<std::vector<Location>> outputs) {
  outputs_ = std::move(outputs);
  choose(EngineOutputs::Unknown);
}

void EngineCourse::follow(std::span<const Contract* const> contracts) {
  const auto unchanged = [&](size_t r) {
    return std::equal(outputs_[r].begin(), outputs_[r].end(), contracts[r]->out, same);
  };
  bool all = outputs_.size() == contracts.size();
  for (size_t r = 0; r < contracts.size() && all; ++r) all = unchanged(r);
  if (all) return;
  outputs_.clear();
  for (const Contract* c : contracts) outputs_.emplace_back(c->out, c->out + schedule_->operands);
  choose(EngineOutputs::Plain);
}

void EngineCourse::choose(EngineOutputs otherwise) {
  facts_.outputs = EngineOutputs::Known;
  for (int r = 0; r < schedule_->nranks; ++r)
    if (isStaged(*schedule_, r, outputs_[static_cast<size_t>(r)])) facts_.outputs = otherwise;
  verdict_ = judgeEngine(facts_);
  steps_.clear();
  if (!verdict_.chosen) return;
  contract_ = contractHash({kByEngines, identity_, facts_.chunkBytes});
  for (const std::vector<Location>& rank : outputs_)
    for (const Location& l : rank) contract_ = contractHash({contract_, l.window, l.offset});
  steps_ = engineSteps(*schedule_, outputs_, facts_.chunkBytes);
}

EngineFacts engineFacts(const Schedule& schedule, EngineUse use, bool distinctGpus) {
  EngineFacts facts;
  facts.use = use;
  facts.distinctGpus = distinctGpus;
  facts.largestPayload = schedule.largestPayload;
  facts.shortestRow = schedule.shortestRow;
  if (judgeEngine(facts).chosen) facts.calls = mostEngineCalls(schedule);
  return facts;
}

}  // namespace ulysses::plan
