// The record of a call on which all ranks must agree before any byte moves, and the judgement over all records. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "window/registrar.h"

namespace ulysses {

enum class Operation : uint32_t {
  Exchange = 1,
  AllGather,
  AllToAll,
  PlanCreate,
  PlanExecute,
  MemAlloc,
  WindowRegister,
  Split,
  ParamCommit,
  ParamAcquire,
  ParamSetBudget,
  TransferDone,  // the end of a transfer, not a call of its own
};
const char* operationName(Operation operation);

// Why a rank cannot take the fused path, as bits of Contract::ineligible.
enum Ineligible : uint32_t {
  kFusedSwitchedOff = 1u << 0,  // ULYSSES_A2A=off, or a test hook
  kNoWindows = 1u << 1,         // memory cannot be shared with every rank
  kCapTooSmall = 1u << 2,
  kPathForced = 1u << 3,  // ULYSSES_PATH asks for the fallback
};

// What a rank holds for a call on device memory from an earlier one of the same shape, as bits of Contract::prepared.
enum PreparedFor : uint32_t { kPreparedFused = 1u << 0, kPreparedFallback = 1u << 1 };

constexpr size_t kMaxOperands = 64;

struct Contract {
  Operation operation{};
  int32_t localCode = ulyssesSuccess;

  // Must be equal on all ranks; a difference is ulyssesMismatch and named.
  struct Geometry {
    uint32_t direction = 0, dtype = 0;
    uint64_t batch = 0, seq = 0, heads = 0, headDim = 0;  // batch: of flat collectives the count of elements,
                                                          // of parameter groups the number of their communicator
    uint64_t object = 0;                                  // number of the plan or parameter group
    uint64_t operands = 0;
    uint64_t version = 0;                    // of the parameter group
    uint64_t hits = 0, hitsHash = 0;         // calls without communication since the last round
    friend bool operator==(const Geometry&, const Geometry&) = default;
  } geometry;

  // May differ: the worst of all ranks decides.
  uint32_t ineligible = 0;
  uint32_t fusedOnly = 0;  // ULYSSES_A2A=fused: rather an error than the fallback
  uint32_t kernelRevision = 0;
  uint32_t capturing = 0;       // the stream records a graph
  uint32_t prepared = 0;        // this rank holds what this call needs, captured or not: bits of PreparedFor
  uint64_t freeWindowBytes = 0;   // what this rank may still register, its staging window given back
  uint64_t firstStagingBytes = 0;  // how large it wants the first staging window (0: as the policy says)

  // Windows this rank has given back since it last said so.
  uint32_t freedCount = 0;
  static constexpr size_t kMaxFreed = 8;
  uint32_t freed[kMaxFreed] = {};

  // Where each operand's output lies, and, where the call is wrong on this rank, why.
  union {
    Location out[kMaxOperands];
    char text[kMaxOperands * sizeof(Location)];
  };

  // What recordBytes() does not count stays as it is: a kilobyte less to clear in every call.
  Contract() {}  // NOLINT
  void setLocalStatus(const Status& status);

  bool anyPlainOutput() const;

  // Bytes of the record that carry something.
  size_t recordBytes() const;
};

// The same on all ranks, from all ranks' contracts.
struct Judgement {
  Status status;          // not ok: nothing moves, this is everybody's result
  bool fused = true;
  std::string reason;     // why not fused: the first ineligible rank and its reason
};
Judgement judge(std::span<const Contract* const> contracts);

bool anyPlainOutput(std::span<const Contract* const> contracts);

// Whether an eager call may be recorded in a graph, or made at all while others record: only where all do, and all hold
// what the path needs that it takes. Else ulyssesInvalidUsage.
Status judgeCapture(std::span<const Contract* const> contracts, PreparedFor path);
bool allPrepared(std::span<const Contract* const> contracts, PreparedFor path);

// The text of a difference: "rank 0 has seq 8, rank 1 has 16".
std::string differenceText(const char* field, int rankA, const std::string& a, int rankB, const std::string& b);

}  // namespace ulysses
