// libulysses_mpi: communicators from an MPI communicator, and the fallback by derived datatypes. The only file that
// knows MPI.
#include <mpi.h>
#include <ulysses/ulysses_mpi.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/checked.h"
#include "transport/fallback_entry.h"

namespace {

using ulysses::Share;
using ulysses::Transfer;
using ulysses::layout::BlockCopy;

constexpr size_t kRoundBytes = size_t{1} << 30;  // of one pair at once: counts stay below INT_MAX

std::string mpiText(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

// A datatype that frees itself.
class Datatype {
 public:
  Datatype() = default;
  Datatype(const Datatype&) = delete;
  Datatype& operator=(const Datatype&) = delete;
  Datatype(Datatype&& other) noexcept { std::swap(type_, other.type_); }
  ~Datatype() {
    if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
  }
  MPI_Datatype* out() { return &type_; }
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

// The blocks of one peer, by absolute addresses, gathered in the order of the payload.
class TypeBuilder {
 public:
  void add(const std::byte* base, size_t rows, size_t rowBytes, size_t pitch) {
    // kRoundBytes bounds rows * rowBytes, so both fit an int.
    Datatype block;
    MPI_Type_create_hvector(static_cast<int>(rows), static_cast<int>(rowBytes), static_cast<MPI_Aint>(pitch), MPI_BYTE,
                            block.out());
    MPI_Aint address = 0;
    MPI_Get_address(base, &address);
    blocks_.push_back(std::move(block));
    addresses_.push_back(address);
  }
  bool empty() const { return blocks_.empty(); }
  Datatype finish() const {
    std::vector<int> lengths(blocks_.size(), 1);
    std::vector<MPI_Datatype> types;
    for (const Datatype& b : blocks_) types.push_back(b.get());
    Datatype whole;
    MPI_Type_create_struct(static_cast<int>(blocks_.size()), lengths.data(), addresses_.data(), types.data(), whole.out());
    MPI_Type_commit(whole.out());
    return whole;
  }

 private:
  std::vector<Datatype> blocks_;
  std::vector<MPI_Aint> addresses_;
};

// Bytes [begin, end) of what goes to (or comes from) one peer, all operands together.
template <class Add>
void forRange(const std::vector<Share>& shares, bool sending, size_t begin, size_t end, Add add) {
  size_t base = 0;
  for (size_t o = 0; o < shares.size() && base < end; ++o) {
    const ulysses::layout::PayloadMap& map = sending ? shares[o].pack : shares[o].unpack;
    const size_t from = std::max(begin, base), to = std::min(end, base + map.bytes());
    if (from < to) map.forEachPiece(from - base, to - base, [&](const BlockCopy& c) { add(o, c); });
    base += map.bytes();
  }
}

struct Side {
  std::vector<int> counts, displacements;
  std::vector<MPI_Datatype> types;
  std::vector<Datatype> owned;

  void add(const TypeBuilder& builder) {
    displacements.push_back(0);
    counts.push_back(builder.empty() ? 0 : 1);
    if (!builder.empty()) owned.push_back(builder.finish());
    types.push_back(builder.empty() ? MPI_BYTE : owned.back().get());
  }
};

// The whole exchange as it is: no pack, no unpack, one MPI_Alltoallw for every GiB of the largest pair.
class MpiTransport {
 public:
  explicit MpiTransport(MPI_Comm comm) : comm_(comm) {}

  ~MpiTransport() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) MPI_Comm_free(&comm_);
  }

  int allgather(const void* send, void* recv, size_t bytes) {
    if (bytes > INT_MAX) return MPI_ERR_COUNT;
    return MPI_Allgather(send, static_cast<int>(bytes), MPI_BYTE, recv, static_cast<int>(bytes), MPI_BYTE, comm_);
  }

  int exchange(const Transfer& t, char* text, size_t textBytes) {
    for (size_t begin = 0; begin < t.schedule.largestPayload; begin += kRoundBytes) {
      if (const int code = exchangeRange(t, begin, begin + kRoundBytes); code != MPI_SUCCESS) {
        std::snprintf(text, textBytes, "MPI_Ialltoallw: %s", mpiText(code).c_str());
        return ulyssesSystemError;
      }
    }
    return ulyssesSuccess;
  }

 private:
  int exchangeRange(const Transfer& t, size_t begin, size_t end) {
    const ulysses::Schedule& s = t.schedule;
    Side send, recv;
    TypeBuilder nothing;
    for (int p = 0; p < s.nranks; ++p) {
      const std::vector<Share>& shares = s.shares[static_cast<size_t>(p)];
      TypeBuilder to, from;
      forRange(shares, true, begin, end, [&](size_t o, const BlockCopy& c) {
        to.add(static_cast<const std::byte*>(t.in[o]) + c.srcOffset, c.rows, c.rowBytes, c.srcPitch);
      });
      forRange(shares, false, begin, end, [&](size_t o, const BlockCopy& c) {
        from.add(static_cast<const std::byte*>(t.out[o]) + c.dstOffset, c.rows, c.rowBytes, c.dstPitch);
      });
      // In place, the own block is where it belongs: MPI allows no aliasing.
      const bool inPlace = p == s.rank && isInPlace(t);
      send.add(inPlace ? nothing : to);
      recv.add(inPlace ? nothing : from);
    }
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Ialltoallw(MPI_BOTTOM, send.counts.data(), send.displacements.data(), send.types.data(), MPI_BOTTOM,
                              recv.counts.data(), recv.displacements.data(), recv.types.data(), comm_, &request);
    if (code == MPI_SUCCESS) code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    return code;
  }

  static bool isInPlace(const Transfer& t) {
    const std::vector<Share>& own = t.schedule.shares[static_cast<size_t>(t.schedule.rank)];
    if (own.size() != 1 || own[0].direct.copies().empty()) return false;
    const BlockCopy& c = own[0].direct.copies().front();
    return static_cast<const std::byte*>(t.in[0]) + c.srcOffset == static_cast<std::byte*>(t.out[0]) + c.dstOffset;
  }

  MPI_Comm comm_;
};

int allgather(void* context, const void* send, void* recv, size_t bytes) {
  return static_cast<MpiTransport*>(context)->allgather(send, recv, bytes);
}
int exchange(void* context, const Transfer* transfer, char* text, size_t textBytes) {
  return static_cast<MpiTransport*>(context)->exchange(*transfer, text, textBytes);
}
void release(void* context) { delete static_cast<MpiTransport*>(context); }

// Why MPI cannot serve now, or nothing.
const char* unusable(MPI_Comm comm, ulyssesResult_t* code) {
  int initialized = 0, finalized = 0, inter = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  *code = ulyssesInvalidUsage;
  if (initialized == 0) return "MPI_Init has not been called: the application initialises MPI";
  if (finalized != 0) return "MPI_Finalize has been called";
  *code = ulyssesInvalidArgument;
  if (comm == MPI_COMM_NULL) return "mpiComm is MPI_COMM_NULL";
  MPI_Comm_test_inter(comm, &inter);
  if (inter != 0) return "mpiComm is an inter-communicator";
  *code = ulyssesSuccess;
  return nullptr;
}

}  // namespace

extern "C" ulyssesResult_t ulyssesCommInitMPI(ulyssesComm_t* comm, MPI_Comm mpiComm, const ulyssesConfig_t* config) {
  ulyssesInternalTransport transport{ULYSSES_VERSION_CODE, "mpi", nullptr, exchange, release, ulyssesSuccess, nullptr};
  ulyssesOob_t oob{0, 1, nullptr, allgather};
  transport.refusal = unusable(mpiComm, &transport.refusalCode);
  MPI_Comm own = MPI_COMM_NULL;
  if (transport.refusal == nullptr && MPI_Comm_dup(mpiComm, &own) != MPI_SUCCESS) {
    transport.refusal = "MPI_Comm_dup failed";
    transport.refusalCode = ulyssesSystemError;
  }
  if (transport.refusal == nullptr) {
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    MPI_Comm_rank(own, &oob.rank);
    MPI_Comm_size(own, &oob.nranks);
    transport.context = oob.context = new MpiTransport(own);
  }
  return ulyssesInternalTransport_v1(comm, &oob, config, &transport);
}
