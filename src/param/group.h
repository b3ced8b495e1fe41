// Groups of parameters: what a rank was given, how the gathered parameters lie, and the transfers that gather them.
// Pure.
#pragma once

#include <ulysses/ulysses.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "plan/contract.h"
#include "plan/schedule.h"

namespace ulysses {

struct Parameter {
  size_t count = 0;
  ulyssesDataType_t shardType{}, gatherType{};
  size_t alignment = 1;
  std::vector<size_t> splits;  // elements of each rank
  const void* shard = nullptr;
  size_t offset = 0;  // of the gathered parameter in the group's storage

  bool cast() const { return shardType != gatherType; }
  size_t bytes() const;
  size_t bytesOf(int rank) const;  // of that rank's shard, as gathered
};

// One transfer of as many parameters as the memory's transport takes at once.
struct GatherPart {
  size_t first = 0;  // parameter
  Schedule schedule;
};

struct ParamGroup {
  std::vector<Parameter> parameters;
  size_t bytes = 0;      // of its storage
  size_t alignment = 1;  // of its storage
  size_t gathered = 0;   // bytes of all parameters, without what lies between them
  size_t castBytes = 0;  // of this rank's shards that are cast
  std::vector<GatherPart> parts;
};

// Checks what rank `rank` was given and lays the group out. ulyssesInvalidArgument names parameter and field.
// A transfer has at most `mostOperands` parameters.
Result<ParamGroup> makeGroup(std::span<const ulyssesParamDesc_t> descs, int rank, int nranks,
                             size_t mostOperands = kMaxOperands);

// What all ranks must know of each other's groups; at most ControlChannel::kMaxBlobBytes for what makeGroup() allows.
Bytes encodeGroup(const ParamGroup& group);
// ulyssesMismatch names group, parameter, field and both values.
Status agreeGroup(size_t number, const std::vector<Bytes>& records);

}  // namespace ulysses
