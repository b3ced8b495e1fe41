#include "plan/contract.h"

#include "base/format.h"

#include <algorithm>
#include <cstring>

#include "base/datatype.h"

namespace ulysses {
namespace {

const char* directionName(uint32_t direction) {
  switch (direction) {
    case ulyssesScatterHeads: return "scatter heads";
    case ulyssesGatherHeads: return "gather heads";
    default: return "an unknown direction";
  }
}

std::string ineligibleText(uint32_t bits) {
  if (bits & kFusedSwitchedOff) return "the fused path is switched off there";
  if (bits & kPathForced) return "ULYSSES_PATH asks for the fallback there";
  if (bits & kNoWindows) return "its memory cannot be shared with every rank";
  if (bits & kCapTooSmall) return "its window cap leaves no room for staging";
  return "it is not eligible for the fused path";
}

// What the contract's batch counts.
const char* batchName(Operation operation) {
  switch (operation) {
    case Operation::AllGather:
    case Operation::AllToAll: return "count";
    case Operation::ParamAcquire:
    case Operation::ParamSetBudget: return "parameter communicator";
    default: return "batch";
  }
}

// The first field in which two geometries differ, or "".
std::string geometryDifference(const Contract& a, int rankA, const Contract& b, int rankB) {
  const Contract::Geometry &x = a.geometry, &y = b.geometry;
  const auto number = [&](const char* field, uint64_t u, uint64_t v) {
    return differenceText(field, rankA, std::to_string(u), rankB, std::to_string(v));
  };
  // Calls that differ in their history are named by it: what follows from it would only confuse.
  if (x.hits != y.hits) return number("uses of resident parameter groups since the last common call", x.hits, y.hits);
  if (x.hitsHash != y.hitsHash)
    return formatText("ranks {} and {} used different resident parameter groups, or different versions of them", rankA,
                       rankB);
  if (x.dtype != y.dtype)
    return differenceText("dtype", rankA, std::string(dataTypeFacts(static_cast<int>(x.dtype)).name), rankB,
                          std::string(dataTypeFacts(static_cast<int>(y.dtype)).name));
  if (x.direction != y.direction)
    return differenceText("direction", rankA, directionName(x.direction), rankB, directionName(y.direction));
  if (x.batch != y.batch) return number(batchName(a.operation), x.batch, y.batch);
  if (x.seq != y.seq) return number("seq", x.seq, y.seq);
  if (x.heads != y.heads) return number("heads", x.heads, y.heads);
  if (x.headDim != y.headDim) return number("headDim", x.headDim, y.headDim);
  if (x.object != y.object)
    return number(a.operation == Operation::PlanExecute ? "plan" : "parameter group", x.object, y.object);
  if (x.version != y.version) return number("version of the parameter group", x.version, y.version);
  if (x.operands != y.operands) return number("number of operands", x.operands, y.operands);
  return "";
}

}  // namespace

const char* operationName(Operation operation) {
  switch (operation) {
    case Operation::Exchange: return "ulyssesA2A";
    case Operation::AllGather: return "ulyssesAllGather";
    case Operation::AllToAll: return "ulyssesAlltoAll";
    case Operation::PlanCreate: return "ulyssesPlanCreate";
    case Operation::PlanExecute: return "ulyssesPlanExecute";
    case Operation::MemAlloc: return "ulyssesMemAlloc";
    case Operation::WindowRegister: return "ulyssesWindowRegister";
    case Operation::Split: return "ulyssesCommSplit";
    case Operation::ParamCommit: return "ulyssesParamCommit";
    case Operation::ParamAcquire: return "ulyssesParamAcquire";
    case Operation::ParamSetBudget: return "ulyssesParamSetBudget";
    case Operation::TransferDone: return "the end of a transfer";
  }
  return "an unknown operation";
}

std::string differenceText(const char* field, int rankA, const std::string& a, int rankB, const std::string& b) {
  return formatText("{} differs: rank {} has {}, rank {} has {}", field, rankA, a, rankB, b);
}

void Contract::setLocalStatus(const Status& status) {
  localCode = status.code();
  if (status.ok()) return;
  const size_t n = std::min(status.message().size(), sizeof text - 1);
  std::memcpy(text, status.message().data(), n);
  text[n] = '\0';
}

bool Contract::anyPlainOutput() const {
  return std::any_of(out, out + geometry.operands, [](const Location& l) { return l.plain(); });
}

size_t Contract::recordBytes() const {
  const size_t tail = localCode == ulyssesSuccess ? geometry.operands * sizeof(Location) : std::strlen(text) + 1;
  return offsetof(Contract, out) + std::min(tail, sizeof text);
}

bool anyPlainOutput(std::span<const Contract* const> contracts) {
  return std::any_of(contracts.begin(), contracts.end(), [](const Contract* c) { return c->anyPlainOutput(); });
}

bool allPrepared(std::span<const Contract* const> contracts, PreparedFor path) {
  return std::all_of(contracts.begin(), contracts.end(), [&](const Contract* c) { return (c->prepared & path) != 0; });
}

Status judgeCapture(std::span<const Contract* const> contracts, PreparedFor path) {
  const auto first = [&](auto which) { return std::find_if(contracts.begin(), contracts.end(), which) - contracts.begin(); };
  const auto end = static_cast<std::ptrdiff_t>(contracts.size());
  const std::ptrdiff_t records = first([](const Contract* c) { return c->capturing != 0; });
  if (records == end) return {};
  const std::ptrdiff_t runs = first([](const Contract* c) { return c->capturing == 0; });
  if (runs != end)
    return Status(ulyssesInvalidUsage, formatText("rank {} records a graph and rank {} does not: an eager call agrees on the "
                                                  "host, so all ranks record it or none does", records, runs));
  const std::ptrdiff_t unprepared = first([&](const Contract* c) { return (c->prepared & path) == 0; });
  if (unprepared == end) return {};
  return Status(ulyssesInvalidUsage, formatText("rank {} records a graph and has not made this call before: make it once "
                                                "outside a capture, or capture the execution of a plan", unprepared));
}

Judgement judge(std::span<const Contract* const> contracts) {
  Judgement judgement;
  const Contract& first = *contracts[0];
  for (size_t r = 1; r < contracts.size(); ++r) {
    if (contracts[r]->operation == first.operation) continue;
    judgement.status = Status(ulyssesMismatch, differenceText("operation", 0, operationName(first.operation),
                                                            static_cast<int>(r), operationName(contracts[r]->operation)));
    return judgement;
  }
  for (size_t r = 0; r < contracts.size(); ++r) {
    if (contracts[r]->localCode == ulyssesSuccess) continue;
    judgement.status = Status(static_cast<ulyssesResult_t>(contracts[r]->localCode),
                            formatText("rank {}: {}", r, contracts[r]->text));
    return judgement;
  }
  for (size_t r = 1; r < contracts.size(); ++r) {
    if (contracts[r]->geometry == first.geometry) continue;
    judgement.status = Status(ulyssesMismatch, formatText("{}: {}", operationName(first.operation),
                                                         geometryDifference(first, 0, *contracts[r], static_cast<int>(r))));
    return judgement;
  }
  for (size_t r = 0; r < contracts.size() && judgement.fused; ++r) {
    if (contracts[r]->ineligible == 0) continue;
    judgement.fused = false;
    judgement.reason = formatText("rank {}: {}", r, ineligibleText(contracts[r]->ineligible));
  }
  return judgement;
}

}  // namespace ulysses
