#include "plan/desc_record.h"

#include "base/format.h"


#include "base/datatype.h"
#include "base/versioned.h"
#include "base/words.h"
#include "plan/contract.h"

namespace ulysses {
namespace {

// A record is a sequence of words: the number of operands, then for each operand these fields and, where given, splits.
enum Field : size_t { Batch, Seq, Heads, HeadDim, Dtype, Direction, Replicate, HeadGroups, GradTracked, Compared,
                      InStrides = Compared, OutStrides = InStrides + 3, HasSeqSplits = OutStrides + 3, HasHeadSplits, Fields };
constexpr const char* kFieldNames[Compared] = {"batch",     "seq",            "heads",      "headDim",    "dtype",
                                               "direction", "replicateHeads", "headGroups", "gradTracked"};

layout::OperandRequest requestOf(const ulyssesA2ADesc_t& d, int nranks) {
  layout::OperandRequest request;
  request.direction = d.direction;
  request.batch = d.batch;
  request.seq = d.seq;
  request.heads = d.heads;
  request.headDim = d.headDim;
  request.elementBytes = elementBytes(d.dtype);
  if (d.seqSplits != nullptr) request.seqSplits.assign(d.seqSplits, d.seqSplits + nranks);
  if (d.headSplits != nullptr) request.headSplits.assign(d.headSplits, d.headSplits + nranks);
  request.replicateHeads = d.replicateHeads != 0;
  request.headGroups = d.headGroups;
  return request;
}

layout::Strides stridesOf(const size_t s[3]) { return {s[0], s[1], s[2]}; }

Status checkDesc(const ulyssesA2ADesc_t& d) {
  ULYSSES_TRY(checkVersioned(d, "the descriptor", "ULYSSES_A2A_DESC_INITIALIZER"));
  if (elementBytes(d.dtype) == 0)
    return Status(ulyssesInvalidArgument, formatText("dtype is {}, not a ulyssesDataType_t", static_cast<int>(d.dtype)));
  if (d.direction != ulyssesScatterHeads && d.direction != ulyssesGatherHeads)
    return Status(ulyssesInvalidArgument,
                  formatText("direction is {}, not a ulyssesDirection_t", static_cast<int>(d.direction)));
  for (const auto& [field, flag] : {std::pair("replicateHeads", d.replicateHeads), std::pair("gradTracked", d.gradTracked)})
    if (flag != 0 && flag != 1) return Status(ulyssesInvalidArgument, formatText("{} is {}, not 0 or 1", field, flag));
  return {};
}

Status prefixed(size_t operand, const Status& status) {
  return Status(status.code(), formatText("operand {}: {}", operand, status.message()));
}

// Reads a record word by word; past its end it gives zeros and says so.
class Reader {
 public:
  explicit Reader(const Words& words) : words_(words) {}
  uint64_t next() { return at_ < words_.size() ? words_[at_++] : (short_ = true, 0); }
  Words take(size_t n) {
    Words out;
    while (n-- > 0 && !short_) out.push_back(next());
    return out;
  }
  bool tooShort() const { return short_; }

 private:
  const Words& words_;
  size_t at_ = 0;
  bool short_ = false;
};

struct DescWords {
  Words fields, seqSplits, headSplits;
};

DescWords readDesc(Reader& reader, size_t nranks) {
  DescWords d;
  d.fields = reader.take(Fields);
  if (reader.tooShort()) return d;
  if (d.fields[HasSeqSplits] != 0) d.seqSplits = reader.take(nranks);
  if (d.fields[HasHeadSplits] != 0) d.headSplits = reader.take(nranks);
  return d;
}

std::string valueText(size_t field, uint64_t value) {
  if (field == Dtype) return std::string(dataTypeFacts(static_cast<int>(value)).name);
  if (field == Direction) return value == ulyssesScatterHeads ? "scatter heads" : "gather heads";
  return std::to_string(value);
}

std::string splitsText(const Words& splits) {
  return splits.empty() ? std::string("balanced") : joinText(splits, ",");
}

Status compare(size_t operand, const DescWords& a, size_t rank, const DescWords& b) {
  const auto differ = [&](const char* field, const std::string& x, const std::string& y) {
    return Status(ulyssesMismatch, formatText("ulyssesPlanCreate, operand {}: {}", operand,
                                               differenceText(field, 0, x, static_cast<int>(rank), y)));
  };
  for (size_t f = 0; f < Compared; ++f)
    if (a.fields[f] != b.fields[f])
      return differ(kFieldNames[f], valueText(f, a.fields[f]), valueText(f, b.fields[f]));
  if (a.seqSplits != b.seqSplits) return differ("seqSplits", splitsText(a.seqSplits), splitsText(b.seqSplits));
  if (a.headSplits != b.headSplits) return differ("headSplits", splitsText(a.headSplits), splitsText(b.headSplits));
  return {};
}

layout::Strides readStrides(const Words& fields, size_t at) { return {fields[at], fields[at + 1], fields[at + 2]}; }

}  // namespace

Status resolveDescs(std::span<const ulyssesA2ADesc_t> descs, int rank, int nranks,
                    std::vector<layout::Operand>* operands) {
  if (descs.empty() || descs.size() > kMaxOperands)
    return Status(ulyssesInvalidArgument, formatText("a plan has 1 to {} operands, not {}", kMaxOperands, descs.size()));
  for (size_t i = 0; i < descs.size(); ++i) {
    const ulyssesA2ADesc_t& d = descs[i];
    if (const Status status = checkDesc(d); !status.ok()) return prefixed(i, status);
    Result<layout::Operand> operand = layout::resolve(requestOf(d, nranks), nranks);
    if (!operand.ok()) return prefixed(i, operand.status());
    for (const layout::Side side : {layout::Side::In, layout::Side::Out}) {
      const size_t* strides = side == layout::Side::In ? d.inStride : d.outStride;
      const Status status = checkStrides(localShape(operand.value(), rank, side), stridesOf(strides), side);
      if (!status.ok()) return prefixed(i, status);
    }
    if (!operands->empty() && operands->front().seqOf != operand.value().seqOf)
      return Status(ulyssesInvalidArgument, formatText("operand {} has another sequence, or other seqSplits, than operand "
                                                        "0: operands of one plan share them", i));
    operands->push_back(operand.take());
  }
  return {};
}

Bytes encodeDescs(std::span<const ulyssesA2ADesc_t> descs, int nranks) {
  Words words{descs.size()};
  for (const ulyssesA2ADesc_t& d : descs) {
    const uint64_t fields[Compared] = {d.batch,
                                       d.seq,
                                       d.heads,
                                       d.headDim,
                                       static_cast<uint64_t>(d.dtype),
                                       static_cast<uint64_t>(d.direction),
                                       d.replicateHeads != 0,
                                       d.headGroups,
                                       d.gradTracked != 0};
    words.insert(words.end(), fields, fields + Compared);
    words.insert(words.end(), d.inStride, d.inStride + 3);
    words.insert(words.end(), d.outStride, d.outStride + 3);
    words.push_back(d.seqSplits != nullptr);
    words.push_back(d.headSplits != nullptr);
    if (d.seqSplits != nullptr) words.insert(words.end(), d.seqSplits, d.seqSplits + nranks);
    if (d.headSplits != nullptr) words.insert(words.end(), d.headSplits, d.headSplits + nranks);
  }
  return recordOf(words);
}

Status agreeDescs(const std::vector<Bytes>& records, std::vector<OperandStrides>* strides) {
  const size_t nranks = records.size();
  std::vector<DescWords> first;
  for (size_t r = 0; r < nranks; ++r) {
    const Words words = wordsOf(records[r]);
    Reader reader(words);
    const uint64_t operands = reader.next();
    if (reader.tooShort()) return Status(ulyssesInternalError, formatText("rank {} sent a malformed descriptor", r));
    if (r == 0) strides->resize(std::min<size_t>(operands, kMaxOperands));
    if (operands != strides->size())
      return Status(ulyssesMismatch, formatText("ulyssesPlanCreate: {}",
                                                 differenceText("number of operands", 0, std::to_string(strides->size()),
                                                                static_cast<int>(r), std::to_string(operands))));
    for (size_t i = 0; i < operands; ++i) {
      DescWords d = readDesc(reader, nranks);
      if (reader.tooShort())
        return Status(ulyssesInternalError, formatText("rank {} sent a malformed descriptor", r));
      (*strides)[i].in.push_back(readStrides(d.fields, InStrides));
      (*strides)[i].out.push_back(readStrides(d.fields, OutStrides));
      if (r == 0) first.push_back(std::move(d));
      else ULYSSES_TRY(compare(i, first[i], r, d));
    }
  }
  return {};
}

}  // namespace ulysses
