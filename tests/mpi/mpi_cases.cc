// Cases 1, 3b and 27 and the MPI fallback, run under mpirun. Usage: mpi_tests NAME; exits nonzero with the reason.
#include <mpi.h>
#include <ulysses/ulysses_mpi.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "base/test_hooks.h"
#include "host/param_model.h"
#include "support/ranks.h"
#include "support/tensors.h"

namespace ulysses::testing {
namespace {

int rank = 0, nranks = 1;

ulyssesCommInfo_t infoOf(ulyssesComm_t comm) {
  ulyssesCommInfo_t info = ULYSSES_COMM_INFO_INITIALIZER;
  (void)ulyssesCommGetInfo(comm, &info);
  return info;
}

std::string exactExchange(ulyssesComm_t comm, const Shape& t, size_t shift = 0) {
  Fenced in(sequenceSide(t, nranks, rank)), out(headSide(t, nranks, rank).size(), shift), back(in.content().size());
  EXPECT_OK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
  EXPECT_RANK(out.content() == headSide(t, nranks, rank) && out.intact());
  EXPECT_OK(ulyssesA2A(out.data(), back.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesGatherHeads, comm, nullptr));
  EXPECT_RANK(back.content() == in.content() && back.intact());
  return "";
}

// A plan of a strided operand, its inverse, and the flat collectives.
std::string everythingElse(ulyssesComm_t comm) {
  const Shape t{2, 13, 7, 5, 4};
  ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
  d.batch = t.B, d.seq = t.S, d.heads = t.H, d.headDim = t.D, d.dtype = ulyssesFloat32;
  const Part seq = balanced(t.S, nranks, rank);
  const size_t row = t.H * t.D + 3;
  d.inStride[0] = seq.second * row, d.inStride[1] = row, d.inStride[2] = t.D;
  const std::vector<unsigned char> source = sequenceSide(t, nranks, rank);
  std::vector<unsigned char> strided(t.B * seq.second * row * 4 + 4, 0x11), back = strided;
  for (size_t i = 0; i < t.B * seq.second; ++i) std::memcpy(&strided[i * row * 4], &source[i * t.H * t.D * 4], t.H * t.D * 4);
  Fenced out(headSide(t, nranks, rank).size());
  ulyssesPlan_t plan = nullptr, inverse = nullptr;
  EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
  EXPECT_OK(ulyssesPlanInverse(plan, nullptr, &inverse));
  const void* in1[] = {strided.data()};
  void* out1[] = {out.data()};
  EXPECT_OK(ulyssesPlanExecute(plan, in1, out1, nullptr));
  EXPECT_RANK(out.content() == headSide(t, nranks, rank));
  const void* in2[] = {out.data()};
  void* out2[] = {back.data()};
  EXPECT_OK(ulyssesPlanExecute(inverse, in2, out2, nullptr));
  EXPECT_RANK(back == strided);
  EXPECT_OK(ulyssesPlanDestroy(plan));
  EXPECT_OK(ulyssesPlanDestroy(inverse));

  const size_t count = 1001, n = static_cast<size_t>(nranks);
  std::vector<int> all(count * n, -1);
  for (size_t i = 0; i < count; ++i) all[static_cast<size_t>(rank) * count + i] = rank * 10000 + static_cast<int>(i);
  EXPECT_OK(ulyssesAllGather(&all[static_cast<size_t>(rank) * count], all.data(), count, ulyssesInt32, comm, nullptr));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_RANK(all[i] == static_cast<int>(i / count * 10000 + i % count));
  return "";
}

std::string withComm(const std::function<std::string(ulyssesComm_t)>& body) {
  ulyssesComm_t comm = nullptr;
  EXPECT_OK(ulyssesCommInitMPI(&comm, MPI_COMM_WORLD, nullptr));
  const std::string text = body(comm);
  EXPECT_OK(ulyssesCommDestroy(comm));
  return text;
}

// The whole fallback, against the same calls fused.
std::string fallback() {
  for (const char* mode : {"off", "auto"}) {
    setenv("ULYSSES_A2A", mode, 1);
    const std::string text = withComm([&](ulyssesComm_t comm) -> std::string {
      for (const Shape& t : {Shape{2, 4, 4, 3, 4}, Shape{3, 10, 9, 5, 4}, Shape{1, 2, 8, 3, 4}, Shape{2, 900, 7, 33, 4}}) {
        const std::string wrong = exactExchange(comm, t);
        if (!wrong.empty()) return wrong;
        const bool off = std::string(mode) == "off" && nranks > 1;
        EXPECT_RANK((std::string(infoOf(comm).lastPath) == "mpi") == off);
        EXPECT_RANK(!off || std::string(infoOf(comm).lastReason).find("rank 0") != std::string::npos);
      }
      return everythingElse(comm);
    });
    if (!text.empty()) return std::string(mode) + ": " + text;
  }
  return "";
}

// Every rank on a host of its own: no shared memory, agreement over the wire.
std::string hosts() {
  setenv("ULYSSES_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
  return withComm([](ulyssesComm_t comm) -> std::string {
    EXPECT_RANK(infoOf(comm).nHosts == nranks);
    std::string text = exactExchange(comm, {3, 10, 9, 5, 4});
    if (text.empty()) text = everythingElse(comm);
    if (!text.empty() || nranks == 1) return text;
    EXPECT_RANK(std::string(infoOf(comm).lastPath) == "mpi");
    Fenced in(4096), out(4096);
    EXPECT_RANK(ulyssesA2A(in.data(), out.data(), 1, rank == 1 ? 8 : 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comm,
                           nullptr) == ulyssesMismatch);
    EXPECT_RANK(out.untouched() && std::string(ulyssesGetLastError()).find("seq") != std::string::npos);
    return exactExchange(comm, {2, 4, 4, 3, 4});
  });
}

// Case 1: the fused path off on one rank for one call.
std::string switched() {
  return withComm([](ulyssesComm_t comm) -> std::string {
    for (int i = 1; i <= 3; ++i) {
      hooks::setFusedOff(i == 2 && rank == 1);
      const Shape t{2, 4, 4, 3, 4};
      Fenced in(sequenceSide(t, 2, rank)), out(headSide(t, 2, rank).size());
      EXPECT_OK(ulyssesA2A(in.data(), out.data(), 2, 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
      EXPECT_RANK(crc(out.content()) == (rank == 0 ? "ebeffc76" : "4cf9e012"));
      EXPECT_RANK((std::string(infoOf(comm).lastPath) == "mpi") == (i == 2));
    }
    EXPECT_RANK(infoOf(comm).fusedCalls == 2 && infoOf(comm).fallbackCalls == 1);
    // One element further on rank 1: fused on both.
    const std::string text = exactExchange(comm, {2, 4, 4, 3, 4}, rank == 1 ? 4 : 0);
    EXPECT_RANK(infoOf(comm).fallbackCalls == 1);
    return text;
  });
}

// Case 3b: staging memory fails on rank 2: that call goes through the fallback on all, or fails on all where a rank
// wants none; the next one is staged.
std::string staging(bool fusedOnly) {
  setenv("ULYSSES_A2A", fusedOnly && rank == 0 ? "fused" : "auto", 1);
  return withComm([&](ulyssesComm_t comm) -> std::string {
    if (rank == 2) hooks::plantFailure(hooks::Stage::Allocate, Status(ulyssesOutOfMemory, "planted"));
    const Shape t{2, 900, 7, 33, 4};
    Fenced in(sequenceSide(t, nranks, rank)), out(headSide(t, nranks, rank).size());
    if (fusedOnly) {
      EXPECT_RANK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm,
                             nullptr) == ulyssesOutOfMemory);
      EXPECT_RANK(std::string(ulyssesGetLastError()).find("rank 2: planted") != std::string::npos);
      EXPECT_RANK(out.intact());
      return exactExchange(comm, t);
    }
    EXPECT_OK(ulyssesA2A(in.data(), out.data(), t.B, t.S, t.H, t.D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
    EXPECT_RANK(out.content() == headSide(t, nranks, rank) && out.intact());
    EXPECT_RANK(std::string(infoOf(comm).lastPath) == "mpi");
    EXPECT_RANK(std::string(infoOf(comm).lastReason).find("rank 2: planted") != std::string::npos);
    const std::string text = exactExchange(comm, t);
    EXPECT_RANK(std::string(infoOf(comm).lastPath) == "staged");
    return text;
  });
}

// Resident parameters where memory is not shared: gathered by the fallback, hits and versions as anywhere.
std::string parameters() {
  for (const bool ownHosts : {false, true}) {
    setenv("ULYSSES_A2A", ownHosts ? "auto" : "off", 1);
    if (ownHosts) setenv("ULYSSES_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
    for (const auto residency : {ulyssesResidencyPersistent, ulyssesResidencyBudget, ulyssesResidencyTransient}) {
      const std::string text = withComm([&](ulyssesComm_t comm) -> std::string {
        Model m(rank, nranks);
        EXPECT_OK(m.open(comm, residency, 300000, 1));
        std::vector<size_t> even, lastOnly(static_cast<size_t>(nranks));
        for (int r = 0; r < nranks; ++r) even.push_back(balanced(100003, nranks, r).second);
        lastOnly.back() = 1001;
        EXPECT_OK(m.add({{100003, ulyssesBfloat16}, {1001, ulyssesFloat32}}, {even, lastOnly}));
        EXPECT_OK(m.add({{50001, ulyssesFloat32}, {7, ulyssesInt8}}));
        EXPECT_OK(m.commit());
        for (int forward = 0; forward < 3; ++forward) {
          for (int g = 0; g < 2; ++g) EXPECT_VISIT(m, g);
          EXPECT_RANK(nranks == 1 || std::string(infoOf(comm).lastPath) == "mpi");
          EXPECT_RANK(nranks == 1 || !std::string(infoOf(comm).lastReason).empty());
        }
        m.change(0, 5000);
        EXPECT_OK(m.publish(0));
        EXPECT_VISIT(m, 0);
        EXPECT_VISIT(m, 1);
        const uint64_t gathers = m.stats().gathers;
        EXPECT_RANK(residency == ulyssesResidencyPersistent ? gathers == 3 : gathers >= 3);
        return exchangeWorks(rank, nranks, comm);
      });
      if (!text.empty()) return (ownHosts ? "hosts: " : "off: ") + text;
    }
  }
  return "";
}

// Case 27.
std::string lifecycle() {
  int incoming = -1;
  MPI_Request pending = MPI_REQUEST_NULL;
  MPI_Irecv(&incoming, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &pending);
  for (int i = 0; i < 2; ++i) {
    setenv("ULYSSES_A2A", i == 0 ? "auto" : "off", 1);
    const std::string text = withComm([](ulyssesComm_t comm) { return exactExchange(comm, {2, 4, 4, 3, 4}); });
    if (!text.empty()) return text;
    MPI_Barrier(MPI_COMM_WORLD);
  }
  int done = 1;
  MPI_Test(&pending, &done, MPI_STATUS_IGNORE);
  EXPECT_RANK(done == 0);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Send(&rank, 1, MPI_INT, 1 - rank, 5, MPI_COMM_WORLD);
  MPI_Wait(&pending, MPI_STATUS_IGNORE);
  EXPECT_RANK(incoming == 1 - rank);
  ulyssesComm_t comm = nullptr;
  EXPECT_RANK(ulyssesCommInitMPI(&comm, MPI_COMM_NULL, nullptr) == ulyssesInvalidArgument);
  ulyssesComm_t late = nullptr;
  EXPECT_OK(ulyssesCommInitMPI(&late, MPI_COMM_WORLD, nullptr));
  MPI_Finalize();
  EXPECT_OK(ulyssesCommDestroy(late));  // after MPI has gone: nothing is asked of it
  EXPECT_RANK(ulyssesCommInitMPI(&comm, MPI_COMM_WORLD, nullptr) == ulyssesInvalidUsage && comm == nullptr);
  return "";
}

}  // namespace
}  // namespace ulysses::testing

int main(int argc, char** argv) {
  using namespace ulysses::testing;
  const std::map<std::string, std::string (*)()> tests = {
      {"fallback", fallback},     {"hosts", hosts},
      {"switched", switched},     {"staging", [] { return staging(false) + staging(true); }},
      {"parameters", parameters}, {"lifecycle", lifecycle}};
  ulyssesComm_t comm = nullptr;
  const bool early = ulyssesCommInitMPI(&comm, MPI_COMM_WORLD, nullptr) == ulyssesInvalidUsage;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  const auto test = tests.find(argc > 1 ? argv[1] : "");
  std::string text = test == tests.end() ? "no such test" : test->second();
  if (!early) text += "init before MPI_Init was not refused";
  if (!text.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, text.c_str());
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) {
    if (!text.empty()) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
  }
  return text.empty() ? 0 : 1;
}
