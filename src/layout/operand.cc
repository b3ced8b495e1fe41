#include "layout/operand.h"

#include "base/format.h"

#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "base/checked.h"

namespace ulysses::layout {
namespace {

Status invalid(std::string message) {
  return {ulyssesInvalidArgument, std::move(message)};
}

size_t total(const std::vector<Range>& parts) {
  return std::accumulate(parts.begin(), parts.end(), size_t{0}, [](size_t n, const Range& r) { return n + r.count; });
}

// Parts of the given sizes, one behind the other. `what` is seq or heads, of which there are n.
Result<std::vector<Range>> explicitSplit(const char* what, const std::vector<size_t>& sizes, size_t n, int nranks) {
  if (sizes.size() != static_cast<size_t>(nranks)) {
    return invalid(formatText("{} {} splits for {} ranks: give one for each rank", sizes.size(), what, nranks));
  }
  std::vector<Range> parts;
  std::optional<size_t> begin = 0;
  for (const size_t size : sizes) {
    parts.push_back({*begin, size});
    begin = checkedAdd(*begin, size);
    if (!begin) return invalid(formatText("the {} splits [{}] overflow 64 bits", what, joinText(sizes, ", ")));
  }
  if (*begin != n) {
    return invalid(formatText("the {0} splits [{1}] add up to {2}, but {0} is {3}: they must cover it exactly", what,
                              joinText(sizes, ", "), *begin, n));
  }
  return parts;
}

// Every group's heads stay together: on one rank where there are enough groups, else on the ranks that share the group.
Result<std::vector<Range>> groupedSplit(size_t heads, size_t groups, int nranks) {
  const auto ranks = static_cast<size_t>(nranks);
  const size_t perGroup = heads / groups;
  if (groups >= ranks) {
    std::vector<Range> parts = balancedSplit(groups, nranks);
    for (Range& part : parts) part = {part.begin * perGroup, part.count * perGroup};
    return parts;
  }
  if (ranks % groups != 0) {
    return invalid(
        formatText("{} ranks cannot share {} head groups evenly: headGroups must divide the ranks, or be "
                   "at least as many",
                   ranks, groups));
  }
  std::vector<Range> parts;
  for (size_t group = 0; group < groups; ++group) {
    for (const Range& part : balancedSplit(perGroup, static_cast<int>(ranks / groups))) {
      parts.push_back({group * perGroup + part.begin, part.count});
    }
  }
  return parts;
}

Result<std::vector<Range>> headParts(const OperandRequest& request, int nranks) {
  const size_t heads = request.heads, groups = request.headGroups;
  const auto ranks = static_cast<size_t>(nranks);
  const bool replicate = request.replicateHeads && heads > 0 && heads < ranks;
  if (!request.headSplits.empty()) {
    if (groups != 0) return invalid(formatText("headSplits and headGroups ({}) are both given: choose one", groups));
    if (replicate) {
      return invalid(
          formatText("headSplits are given for {} heads to be replicated over {} ranks: leave them out", heads, ranks));
    }
    return explicitSplit("heads", request.headSplits, heads, nranks);
  }
  if (groups != 0 && heads % groups != 0) {
    return invalid(formatText("{} heads do not form {} equal groups: headGroups must divide heads", heads, groups));
  }
  if (replicate) {
    // Groups need no look here: ranks in order of heads are ranks in order of groups as well.
    if (ranks % heads != 0) {
      return invalid(
          formatText("{} heads cannot be replicated evenly over {} ranks: heads must divide the ranks", heads, ranks));
    }
    std::vector<Range> parts;
    for (size_t rank = 0; rank < ranks; ++rank) parts.push_back({rank / (ranks / heads), 1});
    return parts;
  }
  if (groups != 0) return groupedSplit(heads, groups, nranks);
  return balancedSplit(heads, nranks);
}

}  // namespace

std::vector<Range> balancedSplit(size_t n, int nranks) {
  const auto ranks = static_cast<size_t>(nranks);
  std::vector<Range> parts;
  size_t begin = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const size_t count = n / ranks + (rank < n % ranks);
    parts.push_back({begin, count});
    begin += count;
  }
  return parts;
}

Result<Operand> resolve(const OperandRequest& request, int nranks) {
  if (nranks < 1) return invalid(formatText("an exchange over {} ranks: there must be at least one", nranks));
  // A C caller can pass any number; loading one that is not in the enum would be undefined.
  std::underlying_type_t<ulyssesDirection_t> direction = 0;
  std::memcpy(&direction, &request.direction, sizeof direction);
  if (direction != ulyssesScatterHeads && direction != ulyssesGatherHeads) {
    return invalid(formatText("direction {} is neither ulyssesScatterHeads (0) nor ulyssesGatherHeads (1)", direction));
  }
  if (request.elementBytes == 0) return invalid("an element of 0 bytes: the data type is not one of ulyssesDataType_t");

  Operand operand;
  operand.batch = request.batch;
  operand.seq = request.seq;
  operand.heads = request.heads;
  operand.headDim = request.headDim;
  operand.elementBytes = request.elementBytes;
  ULYSSES_ASSIGN(operand.seqOf, request.seqSplits.empty()
                                    ? Result(balancedSplit(request.seq, nranks))
                                    : explicitSplit("seq", request.seqSplits, request.seq, nranks));
  ULYSSES_ASSIGN(operand.headsOf, headParts(request, nranks));

  // Replicas count: the inverse holds them all. 63 bits, so that differences of offsets fit as well.
  if (!operand.empty()) {
    const size_t held = total(operand.headsOf);
    const auto bytes = checkedProduct(request.batch, request.seq, held, request.headDim, request.elementBytes);
    if (!bytes || *bytes > static_cast<size_t>(INT64_MAX)) {
      return invalid(formatText("[{}, {}, {}, {}] elements of {} bytes do not fit in 63 bits", request.batch,
                                request.seq, held, request.headDim, request.elementBytes));
    }
  }
  // A gather is what undoes the scatter of the same request; only replication tells them apart.
  return request.direction == ulyssesScatterHeads ? operand : inverse(operand);
}

Operand inverse(const Operand& operand) {
  Operand result = operand;
  result.direction = operand.direction == ulyssesScatterHeads ? ulyssesGatherHeads : ulyssesScatterHeads;
  result.heads = 0;
  for (Range& part : result.headsOf) {
    part.begin = result.heads;  // unchanged unless ranks hold the same head
    result.heads += part.count;
  }
  return result;
}

}  // namespace ulysses::layout
