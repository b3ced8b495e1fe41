#include "gpu/support/exchange_case.h"

#include <stdexcept>

#include "base/checked.h"

namespace ulysses::testing {

namespace {

constexpr size_t kFence = 256;
constexpr unsigned char kPoison = 0xee;

std::vector<layout::Operand> resolveAll(const ExchangeCase& what, int nranks) {
  std::vector<layout::Operand> operands;
  for (const auto& request : what.operands) {
    auto resolved = layout::resolve(request, nranks);
    if (!resolved.ok()) throw std::runtime_error(resolved.status().message());
    operands.push_back(resolved.take());
  }
  return operands;
}

// Room for any rank's output of an operand: strides and skew included.
size_t roomFor(const layout::Operand& o) {
  return alignUp(o.batch * (o.seq + 1) * (o.heads + 1) * 2 * o.headDim * o.elementBytes + 2 * kFence + 256, 256);
}

}  // namespace

layout::OperandRequest request(ulyssesDirection_t direction, size_t batch, size_t seq, size_t heads, size_t headDim,
                               size_t elementBytes) {
  layout::OperandRequest r;
  r.direction = direction;
  r.batch = batch;
  r.seq = seq;
  r.heads = heads;
  r.headDim = headDim;
  r.elementBytes = elementBytes;
  return r;
}

size_t CheckedExchange::windowBytes(const ExchangeCase& what, int nranks) {
  size_t bytes = 0;
  for (const auto& operand : resolveAll(what, nranks)) bytes += roomFor(operand);
  return bytes;
}

size_t CheckedExchange::stagingBytes(const ExchangeCase& what, int nranks) {
  return device::stagingBytes(nranks, what.ctas, what.tileBytes);
}

CheckedExchange::CheckedExchange(GpuRank& rank, const ExchangeCase& what) : rank_(rank), what_(what) {
  operands_ = resolveAll(what, rank.nranks());
  const bool plain = what.plainRanks >> rank.rank() & 1;
  exchange_.channel = rank.channel();
  exchange_.operands = static_cast<int>(operands_.size());
  exchange_.ctas = what.ctas;
  exchange_.tileBytes = what.tileBytes;
  size_t windowAt = 0;
  for (size_t i = 0; i < operands_.size(); ++i) {
    const layout::Operand& operand = operands_[i];
    const auto make = [&](layout::Side side, size_t skew) {
      Buffer buffer;
      const auto shape = layout::localShape(operand, rank.rank(), side);
      buffer.data = kFence + skew * operand.elementBytes;
      buffer.bytes = buffer.data + *layout::extentBytes(shape, strides(operand, rank.rank(), side)) + kFence;
      return buffer;
    };
    Buffer in = make(layout::Side::In, what.inSkew);
    in.keep = deviceBytes(in.bytes);
    in.start = static_cast<std::byte*>(in.keep.get());
    Buffer out = make(layout::Side::Out, rank.rank() % 2 == 1 ? what.outSkew : 0);
    if (plain) {
      out.keep = deviceBytes(out.bytes);
      out.start = static_cast<std::byte*>(out.keep.get());
    } else {
      out.start = rank.window() + windowAt;
      exchange_.location[i] = device::windowLocation(1, windowAt + out.data);
      windowAt += roomFor(operand);
    }
    exchange_.in[i] = in.start + in.data;
    exchange_.out[i] = out.start + out.data;
    in_.push_back(in);
    out_.push_back(out);
  }
  const auto table =
      device::makeWorkTable(rank.rank(), rank.nranks(), exchange_.operands, [&](int from, int to, int i) {
        return layout::blockCopies(operands_[i], from, to, strides(operands_[i], from, layout::Side::In),
                                   strides(operands_[i], to, layout::Side::Out));
      });
  table_ = uploadTable(table);
  exchange_.table = static_cast<const device::WorkTable*>(table_.get());
  exchange_.blocks = device::blockCount(table);
}

layout::Strides CheckedExchange::strides(const layout::Operand& operand, int rank, layout::Side side) const {
  const layout::LocalShape local = layout::localShape(operand, rank, side);
  layout::Strides s = layout::definiteStrides(local, {});
  if (what_.padded) {
    s.head = local.headDim + 1;
    s.seq = s.head * (local.heads + 1);
    s.batch = s.seq * (local.seq + 1);
  }
  return s;
}

// Calls visit(byte offset, index in the global tensor) for every element of this rank's side.
template <class Visit>
void CheckedExchange::forEach(const layout::Operand& operand, layout::Side side, const Visit& visit) const {
  const int me = rank_.rank();
  const layout::LocalShape local = layout::localShape(operand, me, side);
  const layout::Strides st = strides(operand, me, side);
  const bool sequenceIsLocal = (operand.direction == ulyssesScatterHeads) == (side == layout::Side::In);
  const size_t firstS = sequenceIsLocal ? operand.seqOf[me].begin : 0;
  const size_t firstH = sequenceIsLocal ? 0 : operand.headsOf[me].begin;
  for (size_t b = 0; b < local.batch; ++b) {
    for (size_t s = 0; s < local.seq; ++s) {
      for (size_t h = 0; h < local.heads; ++h) {
        for (size_t d = 0; d < local.headDim; ++d) {
          visit((b * st.batch + s * st.seq + h * st.head + d) * operand.elementBytes,
                ((b * operand.seq + firstS + s) * operand.heads + firstH + h) * operand.headDim + d);
        }
      }
    }
  }
}

void CheckedExchange::fill(size_t operand, layout::Side side, uint32_t seed, std::vector<unsigned char>& bytes) const {
  const Buffer& buffer = side == layout::Side::In ? in_[operand] : out_[operand];
  bytes.assign(buffer.bytes, kPoison);
  forEach(operands_[operand], side, [&](size_t at, size_t index) {
    for (size_t i = 0; i < operands_[operand].elementBytes; ++i) {
      const size_t mixed = (index * 8 + i + operand * 977) * 2654435761u + seed * 40503u;
      bytes[buffer.data + at + i] = static_cast<unsigned char>(mixed >> 13);
    }
  });
}

void CheckedExchange::prepare(uint32_t seed) {
  std::vector<unsigned char> bytes;
  for (size_t i = 0; i < operands_.size(); ++i) {
    fill(i, layout::Side::In, seed, bytes);
    check(cudaMemcpyAsync(in_[i].start, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, rank_.stream()), "input");
  }
  poison();
}

void CheckedExchange::poison() {
  for (const Buffer& out : out_) check(cudaMemsetAsync(out.start, kPoison, out.bytes, rank_.stream()), "poison");
}

void CheckedExchange::launch(uint64_t contract) {
  if (contract == 0) throw std::runtime_error("contract 0 says that the call is wrong: nothing would be stored");
  exchange_.contract = contract;
  const int error = what_.small ? device::launchSmallExchange(exchange_, rank_.stream())
                                : device::launchExchange(exchange_, rank_.stream());
  check(static_cast<cudaError_t>(error), "launch");
}

void CheckedExchange::expectExchanged(uint32_t seed) {
  rank_.finish();
  std::vector<unsigned char> expected, got;
  for (size_t i = 0; i < operands_.size(); ++i) {
    fill(i, layout::Side::Out, seed, expected);
    got.resize(expected.size());
    check(cudaMemcpyAsync(got.data(), out_[i].start, got.size(), cudaMemcpyDeviceToHost, rank_.stream()), "output");
    check(cudaStreamSynchronize(rank_.stream()), "output");
    for (size_t at = 0; at < got.size(); ++at) {
      if (got[at] == expected[at]) continue;
      throw std::runtime_error("operand " + std::to_string(i) + ": byte " + std::to_string(at) + " of " +
                               std::to_string(got.size()) + " (data from " + std::to_string(out_[i].data) + ") is " +
                               std::to_string(got[at]) + ", not " + std::to_string(expected[at]));
    }
  }
}

void CheckedExchange::expectUntouched() {
  rank_.finish();
  for (const Buffer& out : out_) {
    std::vector<unsigned char> got(out.bytes);
    check(cudaMemcpyAsync(got.data(), out.start, got.size(), cudaMemcpyDeviceToHost, rank_.stream()), "output");
    check(cudaStreamSynchronize(rank_.stream()), "output");
    for (const unsigned char byte : got) {
      if (byte != kPoison) throw std::runtime_error("an output was written");
    }
  }
}

}  // namespace ulysses::testing
