#include "a2a/mpi_exchange.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

namespace ulysses::perf {
namespace {

Status mpiStatus(int code, const char* call) {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {ulyssesSystemError, fmt::format("{}: {}", call, text)};
}

// A peer's share of one side's tensor: per plane `rows` rows of rowBytes bytes, pitch apart, the first at offset.
struct Share {
  size_t planes = 0, planeBytes = 0, rows = 0, rowBytes = 0, pitch = 0, offset = 0;

  size_t bytes() const { return planes * rows * rowBytes; }
  bool contiguous() const { return bytes() == 0 || (planes == 1 && (rows == 1 || rowBytes == pitch)); }

  template <class Fn>
  void forEachRow(Fn&& fn) const {
    for (size_t b = 0; b < planes; ++b) {
      for (size_t r = 0; r < rows; ++r) fn(offset + b * planeBytes + r * pitch);
    }
  }
};

// The part [seq, heads] of the tensor that `held` describes.
Share shareOf(const Block& held, Part seq, Part heads) {
  const size_t head = held.headDim * held.elementBytes;
  Share share;
  share.planes = held.batch;
  share.pitch = held.heads.count * head;
  share.planeBytes = held.seq.count * share.pitch;
  share.rows = seq.count;
  share.rowBytes = heads.count * head;
  share.offset = (seq.begin - held.seq.begin) * share.pitch + (heads.begin - held.heads.begin) * head;
  return share;
}

// The offset is part of the type, so that displacements beyond 32 bits work.
Status makeType(const Share& share, MPI_Datatype& type) {
  if (share.rows > INT_MAX || share.rowBytes > INT_MAX || share.planes > INT_MAX) {
    return {ulyssesNotSupported, "MPI_Alltoallw: the geometry needs counts beyond 32 bits"};
  }
  MPI_Datatype rows = MPI_DATATYPE_NULL, planes = MPI_DATATYPE_NULL;
  const auto offset = static_cast<MPI_Aint>(share.offset);
  MPI_Type_create_hvector(static_cast<int>(share.rows), static_cast<int>(share.rowBytes),
                          static_cast<MPI_Aint>(share.pitch), MPI_BYTE, &rows);
  MPI_Type_create_hvector(static_cast<int>(share.planes), 1, static_cast<MPI_Aint>(share.planeBytes), rows, &planes);
  MPI_Type_create_hindexed_block(1, 1, &offset, planes, &type);
  MPI_Type_free(&rows);
  MPI_Type_free(&planes);
  return mpiStatus(MPI_Type_commit(&type), "MPI_Type_commit");
}

class WorldExchange final : public MpiExchange {
 public:
  Status open(const Geometry& geometry, int nranks, int rank) {
    const Block in = inputBlock(geometry, nranks, rank), out = outputBlock(geometry, nranks, rank);
    const size_t n = static_cast<size_t>(nranks);
    sendTypes_.assign(n, MPI_DATATYPE_NULL);
    receiveTypes_.assign(n, MPI_DATATYPE_NULL);
    for (int peer = 0; peer < nranks; ++peer) {
      const Block theirIn = inputBlock(geometry, nranks, peer), theirOut = outputBlock(geometry, nranks, peer);
      const bool scatter = geometry.direction == ulyssesScatterHeads;
      send_.push_back(scatter ? shareOf(in, in.seq, theirOut.heads) : shareOf(in, theirOut.seq, in.heads));
      receive_.push_back(scatter ? shareOf(out, theirIn.seq, out.heads) : shareOf(out, out.seq, theirIn.heads));
      ULYSSES_TRY(makeType(send_.back(), sendTypes_[static_cast<size_t>(peer)]));
      ULYSSES_TRY(makeType(receive_.back(), receiveTypes_[static_cast<size_t>(peer)]));
    }
    ones_.assign(n, 1);
    zeros_.assign(n, 0);
    ULYSSES_TRY(blockOffsets(send_, sendCounts_, sendOffsets_));
    ULYSSES_TRY(blockOffsets(receive_, receiveCounts_, receiveOffsets_));
    const auto contiguous = [](const Share& share) { return share.contiguous(); };
    packs_ = !std::all_of(send_.begin(), send_.end(), contiguous);
    unpacks_ = !std::all_of(receive_.begin(), receive_.end(), contiguous);
    // Everyone's choice has to be the same, so it follows from the geometry alone.
    equalBlocks_ = geometry.seq % n == 0 && geometry.heads % n == 0;
    return {};
  }

  ~WorldExchange() override {
    for (auto* types : {&sendTypes_, &receiveTypes_}) {
      for (MPI_Datatype& type : *types) {
        if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
      }
    }
  }

  Status alltoallw(const std::byte* in, std::byte* out) override {
    return mpiStatus(MPI_Alltoallw(in, ones_.data(), zeros_.data(), sendTypes_.data(), out, ones_.data(), zeros_.data(),
                                   receiveTypes_.data(), MPI_COMM_WORLD),
                     "MPI_Alltoallw");
  }

  Status packed(const std::byte* in, std::byte* out, std::byte* scratch) override {
    const std::byte* from = in;
    std::byte* to = out;
    if (packs_) {
      std::byte* next = scratch;
      for (const Share& share : send_) {
        share.forEachRow([&](size_t offset) {
          std::memcpy(next, in + offset, share.rowBytes);
          next += share.rowBytes;
        });
      }
      from = scratch;
      scratch = next;
    }
    if (unpacks_) to = scratch;
    ULYSSES_TRY(transfer(from, to));
    if (unpacks_) {
      const std::byte* next = to;
      for (const Share& share : receive_) {
        share.forEachRow([&](size_t offset) {
          std::memcpy(out + offset, next, share.rowBytes);
          next += share.rowBytes;
        });
      }
    }
    return {};
  }

  size_t packedScratchBytes() const override {
    size_t bytes = 0;
    for (const Share& share : send_) bytes += packs_ ? share.bytes() : 0;
    for (const Share& share : receive_) bytes += unpacks_ ? share.bytes() : 0;
    return bytes;
  }

 private:
  static Status blockOffsets(const std::vector<Share>& shares, std::vector<int>& counts, std::vector<int>& offsets) {
    size_t offset = 0;
    for (const Share& share : shares) {
      if (offset + share.bytes() > INT_MAX) {
        return {
            ulyssesNotSupported,
            fmt::format("MPI_Alltoall: the operand ({} bytes or more) needs offsets beyond 32 bits; compare a smaller "
                        "sequence",
                        offset + share.bytes())};
      }
      counts.push_back(static_cast<int>(share.bytes()));
      offsets.push_back(static_cast<int>(offset));
      offset += share.bytes();
    }
    return {};
  }

  Status transfer(const std::byte* from, std::byte* to) {
    if (equalBlocks_) {
      return mpiStatus(MPI_Alltoall(from, sendCounts_[0], MPI_BYTE, to, receiveCounts_[0], MPI_BYTE, MPI_COMM_WORLD),
                       "MPI_Alltoall");
    }
    return mpiStatus(MPI_Alltoallv(from, sendCounts_.data(), sendOffsets_.data(), MPI_BYTE, to, receiveCounts_.data(),
                                   receiveOffsets_.data(), MPI_BYTE, MPI_COMM_WORLD),
                     "MPI_Alltoallv");
  }

  std::vector<Share> send_, receive_;
  std::vector<MPI_Datatype> sendTypes_, receiveTypes_;
  std::vector<int> ones_, zeros_, sendCounts_, receiveCounts_, sendOffsets_, receiveOffsets_;
  bool packs_ = false, unpacks_ = false, equalBlocks_ = false;
};

}  // namespace

Result<std::unique_ptr<MpiExchange>> makeMpiExchange(const Geometry& geometry, int nranks, int rank) {
  auto exchange = std::make_unique<WorldExchange>();
  ULYSSES_TRY(exchange->open(geometry, nranks, rank));
  return std::unique_ptr<MpiExchange>(std::move(exchange));
}

}  // namespace ulysses::perf
