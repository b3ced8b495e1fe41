#include "param/group.h"

#include <algorithm>
#include <bit>

#include "base/checked.h"
#include "base/datatype.h"
#include "base/format.h"
#include "base/versioned.h"
#include "base/words.h"
#include "layout/operand.h"

namespace ulysses {
namespace {

constexpr size_t kMostBytes = SIZE_MAX / 4;  // sums of two still fit
constexpr size_t kMostAlignment = size_t{1} << 30;

// A record is a word for each of these, then the splits.
enum Field : size_t { ShardType, GatherType, Count, Alignment, Fields };
constexpr const char* kFieldNames[Fields] = {"shardType", "gatherType", "count", "alignment"};

size_t wordsOfParameter(int nranks) {
  return Fields + static_cast<size_t>(nranks);
}

std::string typeName(int type) {
  return std::string(dataTypeFacts(type).name);
}

Status checkTypes(const ulyssesParamDesc_t& d) {
  for (const auto& [field, type] : {std::pair("shardType", d.shardType), std::pair("gatherType", d.gatherType)})
    if (elementBytes(type) == 0)
      return Status(ulyssesInvalidArgument,
                    formatText("{} is {}, not a ulyssesDataType_t", field, static_cast<int>(type)));
  if (d.shardType == d.gatherType) return {};
  if (d.shardType == ulyssesFloat32 && (d.gatherType == ulyssesBfloat16 || d.gatherType == ulyssesFloat16)) return {};
  return Status(ulyssesInvalidArgument,
                formatText("shards of {} can't be gathered as {}: types are equal, or float32 and bfloat16 or float16",
                           typeName(d.shardType), typeName(d.gatherType)));
}

Status checkDesc(const ulyssesParamDesc_t& d, int rank, int nranks, Parameter* p) {
  ULYSSES_TRY(checkVersioned(d, "the descriptor", "ULYSSES_PARAM_DESC_INITIALIZER"));
  ULYSSES_TRY(checkTypes(d));
  const size_t element = elementBytes(d.gatherType);
  p->count = d.count;
  p->shardType = d.shardType;
  p->gatherType = d.gatherType;
  p->shard = d.shard;
  if (const auto bytes = checkedMul(d.count, elementBytes(d.shardType)); !bytes || *bytes > kMostBytes)
    return Status(ulyssesInvalidArgument,
                  formatText("{} elements of {} exceed 62 bits", d.count, typeName(d.shardType)));
  if (d.alignment > kMostAlignment || (d.alignment != 0 && !std::has_single_bit(d.alignment)))
    return Status(ulyssesInvalidArgument,
                  formatText("alignment is {}: a power of two up to {}, or 0", d.alignment, kMostAlignment));
  p->alignment = std::max(d.alignment, element);

  if (d.splits != nullptr) {
    p->splits.assign(d.splits, d.splits + nranks);
    std::optional<size_t> sum = 0;
    for (const size_t n : p->splits) sum = sum ? checkedAdd(*sum, n) : std::nullopt;
    if (sum != d.count)
      return Status(ulyssesInvalidArgument,
                    formatText("the splits {} do not add up to count {}", joinText(p->splits, ","), d.count));
  } else {
    for (const layout::Range& range : layout::balancedSplit(d.count, nranks)) p->splits.push_back(range.count);
  }
  if (p->splits[static_cast<size_t>(rank)] == 0) return {};
  if (d.shard == nullptr)
    return Status(ulyssesInvalidArgument,
                  formatText("shard is NULL, with {} elements on this rank", p->splits[static_cast<size_t>(rank)]));
  if (reinterpret_cast<uintptr_t>(d.shard) % elementBytes(d.shardType) != 0)
    return Status(ulyssesInvalidArgument,
                  formatText("shard {} is not aligned to its {}", d.shard, typeName(d.shardType)));
  return {};
}

// Every shard is one row from its rank to its place in everybody's storage.
Schedule gatherSchedule(std::span<const Parameter> parameters, int rank, int nranks) {
  Schedule s;
  s.rank = rank;
  s.nranks = nranks;
  s.operands = parameters.size();
  const auto ranks = static_cast<size_t>(nranks);
  s.shares.resize(ranks);
  s.sendBytes.resize(ranks);
  s.recvBytes.resize(ranks);
  s.recvOffset.resize(ranks);
  using Rows = std::vector<layout::BlockCopy>;
  const auto row = [](size_t bytes, size_t from, size_t to) {
    return bytes == 0 ? Rows() : Rows{{1, bytes, from, bytes, to, bytes}};
  };
  std::vector<std::vector<Rows>> rows;  // [operand][from]: the same to everybody
  std::vector<size_t> sent(ranks);      // by each rank to any
  for (const Parameter& p : parameters) {
    const size_t mine = p.bytesOf(rank);
    std::vector<size_t> begins;
    for (size_t r = 0, at = 0; r < ranks; at += p.bytesOf(static_cast<int>(r++))) begins.push_back(at);
    rows.emplace_back();
    for (size_t peer = 0; peer < ranks; ++peer) {
      const size_t theirs = p.bytesOf(static_cast<int>(peer)), begin = begins[peer];
      rows.back().push_back(row(theirs, 0, begin));
      if (theirs > 0) s.shortestRow = std::min(s.shortestRow, theirs);
      s.shares[peer].push_back({layout::PayloadMap(row(mine, 0, begins[static_cast<size_t>(rank)])),
                                layout::PayloadMap(row(mine, 0, 0)), layout::PayloadMap(row(theirs, 0, begin))});
      s.sendBytes[peer] += mine;
      s.recvBytes[peer] += theirs;
      sent[peer] += theirs;
    }
    s.inExtent.push_back(mine);
    s.outExtent.push_back(p.bytes());
    s.elementBytes.push_back(elementBytes(p.gatherType));
  }
  s.copies = [rows = std::move(rows)](int from, int, size_t i) { return rows[i][static_cast<size_t>(from)]; };
  s.broadcast = true;
  s.largestPayload = *std::max_element(sent.begin(), sent.end());
  s.largestSend = s.largestPayload * ranks;
  return s;
}

}  // namespace

size_t Parameter::bytes() const {
  return count * elementBytes(gatherType);
}
size_t Parameter::bytesOf(int rank) const {
  return splits[static_cast<size_t>(rank)] * elementBytes(gatherType);
}

Result<ParamGroup> makeGroup(std::span<const ulyssesParamDesc_t> descs, int rank, int nranks, size_t mostOperands) {
  const size_t most = ControlChannel::kMaxBlobBytes / (wordsOfParameter(nranks) * sizeof(uint64_t));
  if (descs.empty() || descs.size() > most)
    return Status(ulyssesInvalidArgument, formatText("a group has 1 to {} parameters, not {}", most, descs.size()));
  ParamGroup group;
  for (size_t i = 0; i < descs.size(); ++i) {
    Parameter p;
    if (const Status status = checkDesc(descs[i], rank, nranks, &p); !status.ok())
      return Status(status.code(), formatText("parameter {}: {}", i, status.message()));
    p.offset = alignUp(group.bytes, p.alignment);
    group.bytes = p.offset + p.bytes();
    if (group.bytes > kMostBytes)
      return Status(ulyssesInvalidArgument, formatText("the group exceeds 62 bits with parameter {}", i));
    group.alignment = std::max(group.alignment, p.alignment);
    group.gathered += p.bytes();
    if (p.cast()) group.castBytes += p.bytesOf(rank);
    group.parameters.push_back(std::move(p));
  }
  for (size_t first = 0; first < descs.size(); first += mostOperands) {
    const size_t n = std::min(mostOperands, descs.size() - first);
    group.parts.push_back({first, gatherSchedule(std::span(group.parameters).subspan(first, n), rank, nranks)});
  }
  return group;
}

Bytes encodeGroup(const ParamGroup& group) {
  std::vector<uint64_t> words;
  for (const Parameter& p : group.parameters) {
    words.insert(words.end(),
                 {static_cast<uint64_t>(p.shardType), static_cast<uint64_t>(p.gatherType), p.count, p.alignment});
    words.insert(words.end(), p.splits.begin(), p.splits.end());
  }
  return recordOf(words);
}

Status agreeGroup(size_t number, const std::vector<Bytes>& records) {
  const size_t width = wordsOfParameter(static_cast<int>(records.size()));
  for (size_t r = 0; r < records.size(); ++r)
    if (records[r].size() % (width * sizeof(uint64_t)) != 0)
      return Status(ulyssesInternalError, formatText("rank {} sent a malformed group of parameters", r));
  const std::vector<uint64_t> first = wordsOf(records[0]);
  const auto text = [](size_t field, uint64_t value) {
    return field <= GatherType ? typeName(static_cast<int>(value)) : std::to_string(value);
  };
  for (size_t r = 1; r < records.size(); ++r) {
    const std::vector<uint64_t> other = wordsOf(records[r]);
    const auto differ = [&](const std::string& where, const char* field, const std::string& a, const std::string& b) {
      return Status(ulyssesMismatch, formatText("ulyssesParamCommit, group {}{}: {}", number, where,
                                                differenceText(field, 0, a, static_cast<int>(r), b)));
    };
    if (first.size() != other.size())
      return differ("", "number of parameters", std::to_string(first.size() / width),
                    std::to_string(other.size() / width));
    for (size_t at = 0; at < first.size(); at += width) {
      const std::string where = formatText(", parameter {}", at / width);
      for (size_t f = 0; f < Fields; ++f)
        if (first[at + f] != other[at + f])
          return differ(where, kFieldNames[f], text(f, first[at + f]), text(f, other[at + f]));
      const std::span a(first.data() + at + Fields, records.size()), b(other.data() + at + Fields, records.size());
      if (!std::equal(a.begin(), a.end(), b.begin()))
        return differ(where, "splits", joinText(a, ","), joinText(b, ","));
    }
  }
  return {};
}

}  // namespace ulysses
