#include "plan/schedule.h"

#include "base/format.h"

#include <algorithm>
#include <numeric>

namespace ulysses {
namespace {

using layout::BlockCopy;
using layout::Operand;
using layout::PayloadMap;
using layout::Side;

Schedule emptySchedule(int rank, int nranks, size_t operands) {
  Schedule s;
  s.rank = rank;
  s.nranks = nranks;
  s.operands = operands;
  s.shares.resize(static_cast<size_t>(nranks));
  s.sendBytes.resize(static_cast<size_t>(nranks));
  s.recvBytes.resize(static_cast<size_t>(nranks));
  s.recvOffset.resize(static_cast<size_t>(nranks));
  return s;
}

// One flat collective: `copyFor(from, to)` is the one row that moves.
template <class CopyFor>
Schedule flatSchedule(size_t bytes, size_t elementBytes, size_t inBytes, int rank, int nranks, CopyFor copyFor) {
  Schedule s = emptySchedule(rank, nranks, 1);
  const auto payload = [](BlockCopy copy, bool sending) {
    (sending ? copy.dstOffset : copy.srcOffset) = 0;
    return PayloadMap({copy});
  };
  for (int p = 0; p < nranks; ++p) {
    Share share;
    if (bytes > 0) {
      share.direct = PayloadMap({copyFor(rank, p)});
      share.pack = payload(copyFor(rank, p), true);
      share.unpack = payload(copyFor(p, rank), false);
    }
    s.shares[static_cast<size_t>(p)].push_back(std::move(share));
    s.sendBytes[static_cast<size_t>(p)] = s.recvBytes[static_cast<size_t>(p)] = bytes;
    s.recvOffset[static_cast<size_t>(p)] = bytes * static_cast<size_t>(rank);
  }
  s.copies = [bytes, copyFor](int from, int to, size_t) {
    return bytes == 0 ? std::vector<BlockCopy>() : std::vector<BlockCopy>{copyFor(from, to)};
  };
  s.inExtent = {inBytes};
  s.outExtent = {bytes * static_cast<size_t>(nranks)};
  s.elementBytes = {elementBytes};
  if (bytes > 0) s.shortestRow = bytes;
  s.largestPayload = bytes;
  s.largestSend = bytes * static_cast<size_t>(nranks);
  return s;
}

}  // namespace

Status checkCopies(std::span<const Operand> operands, std::span<const OperandStrides> strides) {
  constexpr size_t kMostCopies = size_t{1} << 23;  // half a gigabyte
  const int nranks = operands.empty() ? 0 : operands.front().nranks();
  for (int from = 0; from < nranks; ++from) {
    size_t copies = 0;
    for (int to = 0; to < nranks; ++to) {
      for (size_t i = 0; i < operands.size(); ++i) {
        const layout::Strides &in = strides[i].in[static_cast<size_t>(from)], &out = strides[i].out[static_cast<size_t>(to)];
        copies += layout::countCopies(operands[i], from, to, in, out);
        if (copies > kMostCopies)
          return Status(ulyssesInvalidArgument,
                        formatText("the exchange takes rank {} more than {} copies, so small are the pieces of operand {} "
                                   "that lie together; give it fewer planes, or strides with longer rows",
                                   from, kMostCopies, i));
      }
    }
  }
  return {};
}

Schedule exchangeSchedule(std::span<const Operand> operands, std::span<const OperandStrides> strides, int rank) {
  const int nranks = operands.empty() ? 1 : operands.front().nranks();
  Schedule s = emptySchedule(rank, nranks, operands.size());
  for (int p = 0; p < nranks; ++p) {
    for (size_t i = 0; i < operands.size(); ++i) {
      const Operand& o = operands[i];
      const OperandStrides& st = strides[i];
      const auto me = static_cast<size_t>(rank), peer = static_cast<size_t>(p);
      Share share;
      share.direct = PayloadMap(layout::blockCopies(o, rank, p, st.in[me], st.out[peer]));
      share.pack = PayloadMap(layout::packCopies(o, rank, p, st.in[me]));
      share.unpack = PayloadMap(layout::unpackCopies(o, p, rank, st.out[me]));
      s.sendBytes[peer] += share.pack.bytes();
      s.recvBytes[peer] += share.unpack.bytes();
      s.shares[peer].push_back(std::move(share));
    }
  }
  s.copies = [o = std::vector<Operand>(operands.begin(), operands.end()),
              st = std::vector<OperandStrides>(strides.begin(), strides.end())](int from, int to, size_t i) {
    return layout::blockCopies(o[i], from, to, st[i].in[static_cast<size_t>(from)], st[i].out[static_cast<size_t>(to)]);
  };
  s.inPlaceWhole = nranks == 1;
  for (size_t i = 0; i < operands.size(); ++i) {
    const layout::LocalShape in = localShape(operands[i], rank, Side::In), out = localShape(operands[i], rank, Side::Out);
    const layout::Strides& inStrides = strides[i].in[static_cast<size_t>(rank)];
    const layout::Strides& outStrides = strides[i].out[static_cast<size_t>(rank)];
    s.inExtent.push_back(extentBytes(in, inStrides).value_or(0));
    s.outExtent.push_back(extentBytes(out, outStrides).value_or(0));
    s.elementBytes.push_back(operands[i].elementBytes);
    s.inPlaceWhole = s.inPlaceWhole && definiteStrides(in, inStrides) == definiteStrides(out, outStrides);
  }
  for (int from = 0; from < nranks; ++from) {
    size_t send = 0;
    for (int to = 0; to < nranks; ++to) {
      size_t bytes = 0;
      for (size_t i = 0; i < operands.size(); ++i) {
        bytes += layout::payloadBytes(operands[i], from, to);
        if (from == to) continue;
        for (const BlockCopy& copy : s.copies(from, to, i)) s.shortestRow = std::min(s.shortestRow, copy.rowBytes);
      }
      s.largestPayload = std::max(s.largestPayload, bytes);
      if (to == rank) s.recvOffset[static_cast<size_t>(from)] = send;
      send += bytes;
    }
    s.largestSend = std::max(s.largestSend, send);
  }
  return s;
}

OperandStrides contiguousStrides(int nranks) {
  const auto n = static_cast<size_t>(nranks);
  return {std::vector<layout::Strides>(n), std::vector<layout::Strides>(n)};
}

Result<Schedule> contiguousSchedule(const Operand& operand, int rank) {
  const OperandStrides contiguous = contiguousStrides(operand.nranks());
  ULYSSES_TRY(checkCopies(std::span(&operand, 1), std::span(&contiguous, 1)));
  return exchangeSchedule(std::span(&operand, 1), std::span(&contiguous, 1), rank);
}

Schedule allGatherSchedule(size_t bytes, size_t elementBytes, int rank, int nranks) {
  Schedule s = flatSchedule(bytes, elementBytes, bytes, rank, nranks,
                            [bytes](int from, int) { return layout::allGatherCopy(bytes, from); });
  s.inPlaceOwn = true;
  s.broadcast = true;
  s.recvOffset.assign(static_cast<size_t>(nranks), 0);
  return s;
}

Schedule allToAllSchedule(size_t bytes, size_t elementBytes, int rank, int nranks) {
  return flatSchedule(bytes, elementBytes, bytes * static_cast<size_t>(nranks), rank, nranks,
                      [bytes](int from, int to) { return layout::allToAllCopy(bytes, from, to); });
}

}  // namespace ulysses
