#include "api/plan.h"

#include "base/format.h"

#include <algorithm>
#include <cstring>

#include "api/buffers.h"
#include "api/group.h"
#include "base/caught.h"
#include "base/checked.h"
#include "plan/contract_hash.h"
#include "plan/desc_record.h"
#include "plan/policy_facts.h"

namespace ulysses {
Plan::Plan(std::shared_ptr<Communicator> comm, uint64_t number, std::vector<layout::Operand> operands,
           std::vector<OperandStrides> strides, ulyssesDataType_t dtype, std::vector<bool> gradTracked)
    : comm_(std::move(comm)),
      number_(number),
      operands_(std::move(operands)),
      strides_(std::move(strides)),
      dtype_(dtype),
      gradTracked_(std::move(gradTracked)),
      schedule_(exchangeSchedule(operands_, strides_, comm_->rank())) {}

Result<std::shared_ptr<Plan>> Plan::create(std::span<const ulyssesA2ADesc_t> descs,
                                           std::shared_ptr<Communicator> comm) {
  const int nranks = comm->nranks(), rank = comm->rank();
  // The descriptors are checked before the agreement, so that what is wrong with them is everybody's result.
  std::vector<layout::Operand> operands;
  Call call;
  call.operation = Operation::PlanCreate;
  call.local = caught([&] { return resolveDescs(descs, rank, nranks, &operands); });
  ULYSSES_TRY(comm->run(call));

  std::vector<Bytes> records;
  ULYSSES_TRY(comm->allgather(encodeDescs(descs, nranks), records));
  std::vector<OperandStrides> strides;
  ULYSSES_TRY(agreeDescs(records, &strides));
  const uint64_t number = comm->nextPlanNumber() * 2;
  std::shared_ptr<Plan> plan;
  ULYSSES_TRY(comm->agreeLocal(caught([&]() -> Status {
    ULYSSES_TRY(checkCopies(operands, strides));
    std::vector<bool> gradTracked;
    for (const ulyssesA2ADesc_t& d : descs) gradTracked.push_back(d.gradTracked != 0);
    plan.reset(new Plan(comm, number, std::move(operands), std::move(strides), descs[0].dtype, std::move(gradTracked)));
    for (const ulyssesA2ADesc_t& d : descs) plan->boundOut_.push_back(d.boundOut);
    return {};
  })));
  if (comm->onDevice() && nranks > 1) {
    const std::shared_ptr<Plan> inverse = plan->inverse();
    const DeviceTransport::Work works[] = {plan->work(), inverse->work()};
    std::vector<Communicator::Prepared> prepared;
    ULYSSES_TRY(comm->prepareOnDevice(works, &prepared));
    plan->prepared_ = prepared[0];
    plan->inversePrepared_ = prepared[1];
  }
  return plan;
}

std::shared_ptr<Plan> Plan::inverse() const {
  std::vector<layout::Operand> operands;
  std::vector<OperandStrides> strides;
  for (size_t i = 0; i < operands_.size(); ++i) {
    operands.push_back(layout::inverse(operands_[i]));
    // A replicating operand's inverse has more heads than its forward input had: its output is contiguous.
    const bool sameHeads = operands.back().heads == operands_[i].heads;
    strides.push_back(
        {strides_[i].out, sameHeads ? strides_[i].in : std::vector<layout::Strides>(strides_[i].in.size())});
  }
  std::shared_ptr<Plan> plan(
      new Plan(comm_, number_ ^ 1, std::move(operands), std::move(strides), dtype_, gradTracked_));
  plan->prepared_ = inversePrepared_;
  plan->inversePrepared_ = prepared_;
  return plan;
}

DeviceTransport::Work Plan::work() const {
  return {&schedule_, contractHash({static_cast<uint64_t>(Operation::PlanExecute), number_}),
          plan::policyFacts(comm_->policyFacts(), dtype_, operands_, strides_, gradTracked_),
          boundOut_.empty() ? nullptr : boundOut_.data()};
}

Status Plan::enqueue(const void* const in[], void* const out[], ulyssesStream_t stream) const {
  if (!group::active()) return execute(in, out, stream);
  const size_t n = schedule_.operands;
  std::vector<const void*> ins(n);
  std::vector<void*> outs(n);
  if (in != nullptr) std::copy(in, in + n, ins.begin());
  if (out != nullptr) std::copy(out, out + n, outs.begin());
  group::add(comm_.get(), [self = shared_from_this(), ins = std::move(ins), outs = std::move(outs), stream] {
    return self->execute(ins.data(), outs.data(), stream);
  });
  return {};
}

Status Plan::execute(const void* const in[], void* const out[], ulyssesStream_t stream) const {
  Call call;
  call.operation = Operation::PlanExecute;
  call.geometry.object = number_;
  call.geometry.dtype = dtype_;
  call.geometry.operands = schedule_.operands;
  if (stream != nullptr && !comm_->onDevice())
    call.local = Status(ulyssesInvalidArgument, "on host memory the stream is NULL");
  if (call.local.ok()) call.local = checkBuffers(schedule_, in, out);
  call.schedule = &schedule_;
  call.in = in;
  call.out = out;
  call.stream = stream;
  return comm_->onDevice() ? comm_->executeOnDevice(prepared_, call) : comm_->run(call);
}

void Plan::describe(ulyssesPlanInfo_t& info) const {
  const std::string reason = comm_->fallbackReason();
  std::snprintf(info.path, sizeof info.path, "%s", reason.empty() ? "fused" : "fallback");
  std::snprintf(info.reason, sizeof info.reason, "%s", reason.c_str());
  info.planeBytes = 0;
  for (const layout::Operand& o : operands_) {
    const layout::LocalShape shape = localShape(o, comm_->rank(), layout::Side::In);
    if (shape.batch != 0) info.planeBytes = std::max(info.planeBytes, dataBytes(shape) / shape.batch);
  }
  if (comm_->onDevice() && comm_->nranks() > 1) return comm_->describe(prepared_, schedule_.largestPayload, info);
  info.windowBytes = comm_->stagingBytes();
  info.chunkBytes = comm_->stagingChunkBytes();
  info.chunks = info.chunkBytes == 0 ? 0 : static_cast<int>(ceilDiv(schedule_.largestPayload, info.chunkBytes));
  info.ctas = 0;
}

}  // namespace ulysses
